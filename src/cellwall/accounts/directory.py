"""Users, teams, service tokens and revocations, as people manage them.

Each change: (1) the role of the principal permits it; (2) the input is valid; (3) it is recorded;
(4) it is made. What concerns the user's own credentials needs no permission.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cellwall.accounts import failures
from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.authentication import SERVICE_PREFIX, hash_secret, new_secret
from cellwall.accounts.guesses import Guesses
from cellwall.accounts.identity import Identity
from cellwall.accounts.names import canonical_name
from cellwall.accounts.passwords import Passwords
from cellwall.accounts.quotas import check_budget
from cellwall.accounts.roles import Roles
from cellwall.accounts.sign_in import TokenSettings
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import AccountsPort
from cellwall.core.accounts import (
    Budget,
    ExternalIdentity,
    LastOwner,
    Meter,
    NameTaken,
    Passkey,
    ServiceToken,
    Team,
    User,
)
from cellwall.core.ids import new_id
from cellwall.core.types import ROLE_NAMES, Permission, Principal

_MANAGE = Permission.USERS_MANAGE


class Directory:
    """The accounts of one service."""

    def __init__(
        self,
        store: AccountsPort,
        roles: Roles,
        passwords: Passwords,
        guesses: Guesses,
        log: AccountLog,
        clock: Clock,
        settings: TokenSettings,
    ) -> None:
        self._store, self._roles, self._passwords = store, roles, passwords
        self._guesses, self._log, self._clock = guesses, log, clock
        self._settings = settings

    async def add_user(self, name: str, *, role: str, by: Principal) -> User:
        """A user without a password: a sign-in link sets it."""
        self._roles.require(by, _MANAGE)
        self._require_grantable(role, by)
        user = User(
            id=new_id("usr"),
            name=canonical_name(name),
            role=_check_role(role),
            password_hash=None,
            is_disabled=False,
            generation=1,
            created_s=self._clock(),
        )
        await self._log.change("add user", by=by, user=user.name, role=role)
        try:
            await self._store.add_user(user)
        except NameTaken:
            raise failures.name_taken() from None
        return user

    def check_password(self, password: str, *, name: str) -> None:
        """Raise `BadInput` for a password that must not be set."""
        self._passwords.check_new(password, name=name)

    async def find_user(self, name: str, *, by: Principal) -> User:
        self._roles.require(by, _MANAGE)
        user = await self._store.find_user_named(canonical_name(name))
        if user is None:
            raise failures.not_found("user")
        return user

    async def list_users(
        self, *, by: Principal, after: str = "", limit: int = 100
    ) -> tuple[User, ...]:
        self._roles.require(by, _MANAGE)
        return await self._store.list_users(after=after, limit=limit)

    async def set_role(self, user_id: str, role: str, *, by: Principal) -> None:
        self._roles.require(by, _MANAGE)
        self._require_grantable(_check_role(role), by)
        await self._log.change("set role", by=by, user=user_id, role=role)
        try:
            is_found = await self._store.set_role(user_id, role)
        except LastOwner:
            raise failures.last_owner() from None
        _require_found(is_found, "user")

    async def require_linkable(self, user_id: str, *, by: Principal) -> None:
        """Before a sign-in link: who opens the link can do all that the user can."""
        self._roles.require(by, _MANAGE)
        if by.scopes is None:
            return
        user = await self._store.find_user(user_id)
        if user is None:
            raise failures.not_found("user")
        if user.name == by.name:
            raise failures.not_a_person()
        self._require_grantable(user.role, by)

    def _require_grantable(self, role: str, by: Principal) -> None:
        """A service token gives no user a permission that the token lacks: a thief of the token
        would sign in as that user, with more than was stolen."""
        held = self._roles.role_of(by).permissions
        given = self._roles.role_of(Principal("", "http", role)).permissions
        if by.scopes is not None and not given <= held:
            raise failures.beyond_token()

    async def set_disabled(self, user_id: str, *, is_disabled: bool, by: Principal) -> None:
        self._roles.require(by, _MANAGE)
        what = "disable user" if is_disabled else "enable user"
        await self._log.change(what, by=by, user=user_id)
        try:
            is_found = await self._store.set_disabled(user_id, is_disabled=is_disabled)
        except LastOwner:
            raise failures.last_owner() from None
        _require_found(is_found, "user")

    async def remove_user(self, user_id: str, *, by: Principal) -> None:
        """With every token, session and approval of the user; audit records stay."""
        self._roles.require(by, _MANAGE)
        await self._log.change("remove user", by=by, user=user_id)
        try:
            is_found = await self._store.remove_user(user_id)
        except LastOwner:
            raise failures.last_owner() from None
        _require_found(is_found, "user")

    async def set_password(self, user: User, new: str, *, by: Principal) -> None:
        """A new password for another user, by a principal who manages users; ends every token."""
        self._roles.require(by, _MANAGE)
        self._passwords.check_new(new, name=user.name)
        await self._log.change("set password", by=by, user=user.name)
        password_hash = await self._passwords.hash(new)
        _require_found(await self._store.set_password(user.id, password_hash), "user")

    async def change_password(self, who: Identity, old: str, new: str, *, address: str) -> None:
        """Needs the old password, also of a user who is signed in; ends every token of the user."""
        self._passwords.check_new(new, name=who.name)
        await self._guesses.begin(address=address, account=who.name)
        user = await self._store.find_user(who.user_id)
        if who.scopes is not None or not await self._passwords.verify(user, old):
            await self._log.sign_in("password", "refused", address=address, user=who.name)
            raise failures.bad_credentials()
        await self._log.change("change password", by=who.principal("http"))
        await self._guesses.succeeded(address=address, account=who.name)
        await self._store.set_password(who.user_id, await self._passwords.hash(new))

    async def add_team(self, name: str, *, by: Principal) -> Team:
        self._roles.require(by, _MANAGE)
        team = Team(id=new_id("team"), name=canonical_name(name), created_s=self._clock())
        await self._log.change("add team", by=by, team=team.name)
        try:
            await self._store.add_team(team)
        except NameTaken:
            raise failures.name_taken() from None
        return team

    async def list_teams(self, who: Identity, *, by: Principal) -> tuple[Team, ...]:
        """All teams for those who manage users, else the user's own."""
        is_manager = _MANAGE in self._roles.role_of(by).permissions
        found = await self._store.list_teams()
        return tuple(each for each in found if is_manager or each.id in who.teams)

    async def add_member(self, team_id: str, user_id: str, *, by: Principal) -> None:
        self._roles.require(by, _MANAGE)
        await self._log.change("add member", by=by, team=team_id, user=user_id)
        try:
            await self._store.add_member(team_id, user_id)
        except KeyError:
            raise failures.not_found("team or user") from None

    async def remove_member(self, team_id: str, user_id: str, *, by: Principal) -> None:
        self._roles.require(by, _MANAGE)
        await self._log.change("remove member", by=by, team=team_id, user=user_id)
        _require_found(await self._store.remove_member(team_id, user_id), "member")

    async def find_team(self, name: str, *, by: Principal) -> Team:
        """By its name, for those who manage users."""
        self._roles.require(by, _MANAGE)
        wanted = canonical_name(name)
        for team in await self._store.list_teams():
            if team.name == wanted:
                return team
        raise failures.not_found("team")

    async def teams_of(self, user_id: str, *, by: Principal) -> frozenset[str]:
        """The ids of a user's teams."""
        self._roles.require(by, _MANAGE)
        return await self._store.teams_of(user_id)

    async def list_passkeys(self, user_id: str, *, by: Principal) -> tuple[Passkey, ...]:
        """The passkeys of a user, the oldest first."""
        self._roles.require(by, _MANAGE)
        return await self._store.list_passkeys(user_id)

    async def remove_passkey(self, passkey_id: str, user_id: str, *, by: Principal) -> None:
        """One passkey of a user; sign-ins with it go on until they are revoked."""
        self._roles.require(by, _MANAGE)
        await self._log.change("remove passkey", by=by, user=user_id, passkey=passkey_id[:64])
        is_found = await self._store.remove_passkey(passkey_id, user_id=user_id)
        _require_found(is_found, "passkey")

    async def remove_passkeys(self, user_id: str, *, by: Principal) -> int:
        """All passkeys of a user, as after a theft; their sign-ins end with `revoke_user`."""
        self._roles.require(by, _MANAGE)
        await self._log.change("remove passkeys", by=by, user=user_id)
        found = await self._store.list_passkeys(user_id)
        return sum([await self._store.remove_passkey(each.id, user_id=user_id) for each in found])

    async def list_own_identities(self, who: Identity) -> tuple[ExternalIdentity, ...]:
        """The identities at a provider with which the user signs in."""
        return await self._store.list_identities(who.user_id)

    async def remove_own_identity(self, who: Identity, subject: str) -> None:
        """One of them; one of another user answers like one that does not exist (RBAC-3)."""
        if who.scopes is not None:
            raise failures.not_a_person()
        await self._log.change("remove identity", by=who.principal("http"), user=who.user_id)
        found = await self._store.list_identities(who.user_id)
        removed = [await self._remove(each) for each in found if each.subject == subject]
        _require_found(any(removed), "identity")

    async def remove_identities(self, user_id: str, *, by: Principal) -> int:
        """All identities of a user, as after a theft; their sign-ins end with `revoke_user`."""
        self._roles.require(by, _MANAGE)
        await self._log.change("remove identities", by=by, user=user_id)
        return sum(
            [await self._remove(each) for each in await self._store.list_identities(user_id)]
        )

    async def _remove(self, found: ExternalIdentity) -> bool:
        store = self._store
        return await store.remove_identity(found.issuer, found.subject, user_id=found.user_id)

    async def set_budget(
        self, meter: Meter, *, limit: float, period_s: float, by: Principal
    ) -> None:
        """A budget of one user or team, in place of the configured one."""
        self._roles.require(by, _MANAGE)
        check_budget(meter, limit, period_s)
        await self._log.change(
            "set budget", by=by, subject=meter.subject, resource=meter.resource, limit=limit
        )
        await self._store.set_budget(Budget(meter=meter, limit=limit, period_s=period_s))

    async def remove_budget(self, meter: Meter, *, by: Principal) -> None:
        """The configured budget applies again."""
        self._roles.require(by, _MANAGE)
        await self._log.change(
            "remove budget", by=by, subject=meter.subject[:64], resource=meter.resource[:64]
        )
        _require_found(await self._store.remove_budget(meter), "budget")

    async def create_own_token(
        self, who: Identity, *, name: str, scopes: Sequence[str], lives_s: float
    ) -> tuple[str, ServiceToken]:
        """A service token for oneself; it cannot hold more than the credential that asks for it."""
        user = await self._store.find_user(who.user_id)
        if user is None:
            raise failures.not_found("user")
        return await self._create_token(user, name, scopes, lives_s, by=who.principal("http"))

    async def create_token(
        self, user_id: str, *, name: str, scopes: Sequence[str], lives_s: float, by: Principal
    ) -> tuple[str, ServiceToken]:
        """A service token for another user, by a principal who manages users."""
        self._roles.require(by, _MANAGE)
        user = await self._store.find_user(user_id)
        if user is None:
            raise failures.not_found("user")
        return await self._create_token(user, name, scopes, lives_s, by=by)

    async def _create_token(
        self, user: User, name: str, scopes: Sequence[str], lives_s: float, *, by: Principal
    ) -> tuple[str, ServiceToken]:
        # A scoped credential creates no wider one, not even for its own user.
        held = self._roles.role_of(Principal(user.name, "http", user.role)).permissions
        held &= self._roles.role_of(by).permissions
        granted = sorted(permission.value for permission in held)
        wanted = sorted(set(scopes)) if scopes else granted
        if not set(wanted) <= set(granted):
            raise failures.bad_scope()
        most_s = self._settings.max_service_s
        if not math.isfinite(lives_s) or not 0 < lives_s <= most_s:
            raise failures.bad_lifetime(most_s)
        secret, now_s = new_secret(SERVICE_PREFIX), self._clock()
        token = ServiceToken(
            id=new_id("tok"),
            user_id=user.id,
            name=canonical_name(name),
            token_hash=hash_secret(secret),
            scopes=tuple(wanted),
            created_s=now_s,
            expires_s=now_s + lives_s,
            is_revoked=False,
        )
        await self._log.change("create token", by=by, user=user.name, token=token.id, scopes=wanted)
        if not await self._store.add_service_token(token, generation=user.generation):
            raise failures.not_found("user")
        return secret, token

    async def list_tokens(self, user_id: str, *, by: Principal) -> tuple[ServiceToken, ...]:
        """The service tokens of a user, expired and revoked ones included."""
        self._roles.require(by, _MANAGE)
        return await self._store.list_service_tokens(user_id)

    async def revoke_token(self, token_id: str, *, by: Principal) -> None:
        """A service token of any user, by a principal who manages users."""
        self._roles.require(by, _MANAGE)
        await self._log.change("revoke token", by=by, token=token_id[:64])
        _require_found(await self._store.revoke_service_token(token_id, user_id=None), "token")

    async def list_own_tokens(self, who: Identity) -> tuple[ServiceToken, ...]:
        """The user's service tokens; of the secrets only the hashes are known."""
        return await self._store.list_service_tokens(who.user_id)

    async def revoke_own_token(self, who: Identity, token_id: str) -> None:
        """A token of another user answers like one that does not exist (RBAC-3)."""
        await self._log.change("revoke token", by=who.principal("http"), token=token_id[:64])
        is_found = await self._store.revoke_service_token(token_id, user_id=who.user_id)
        _require_found(is_found, "token")

    async def revoke_access(self, who: Identity) -> None:
        """The access token itself, before it expires; for a sign-in, its refresh tokens as well."""
        await self._log.change("revoke access", by=who.principal("http"), token=who.credential)
        if who.family_id:
            await self._store.revoke_token(who.credential, until_s=who.expires_s)
            await self._store.revoke_family(who.family_id)
        else:
            await self._store.revoke_service_token(who.credential, user_id=who.user_id)

    async def revoke_own(self, who: Identity) -> None:
        """Every token of the user, by the user."""
        await self._log.change("revoke all tokens", by=who.principal("http"), user=who.user_id)
        await self._store.revoke_user(who.user_id)

    async def revoke_user(self, user_id: str, *, by: Principal) -> None:
        """Every token of a user."""
        self._roles.require(by, _MANAGE)
        await self._log.change("revoke user", by=by, user=user_id)
        _require_found(await self._store.revoke_user(user_id), "user")

    async def revoke_everybody(self, *, by: Principal) -> None:
        """Every token of every user."""
        self._roles.require(by, _MANAGE)
        await self._log.change("revoke everybody", by=by)
        await self._store.revoke_everybody()


def _check_role(role: str) -> str:
    if role not in ROLE_NAMES:
        raise failures.bad_role()
    return role


def _require_found(is_found: bool, what: str) -> None:  # noqa: FBT001  # the result of a store's method
    if not is_found:
        raise failures.not_found(what)
