"""Signing in: by password, by one-time link, by refresh token.

A sign-in by password goes:
  (1) count the attempt as failed, by account and address; a blocked one ends here;
  (2) look the user up, and verify the password, or a hash of no user in the same time;
  (3) record the result; a failed write refuses the sign-in (AUD-1);
  (4) take the counted failure back, renew a hash of other parameters;
  (5) store the family of refresh tokens, unless the user's tokens were revoked meanwhile; sign.
"""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.accounts import failures
from cellwall.accounts.access_tokens import AccessClaims
from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.authentication import (
    LINK_PREFIX,
    REFRESH_PREFIX,
    hash_secret,
    new_secret,
)
from cellwall.accounts.guesses import Guesses
from cellwall.accounts.identity import Identity
from cellwall.accounts.names import canonical_name
from cellwall.accounts.passwords import Passwords
from cellwall.accounts.signing_keys import Clock, SigningKeys
from cellwall.core.account_ports import AccountsPort, KeySealer
from cellwall.core.accounts import NameTaken, OwnerExists, RefreshFamily, Rotation, SignInLink, User
from cellwall.core.ids import new_id
from cellwall.core.types import OWNER, Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """How long each credential lives."""

    issuer: str
    access_s: float = 600.0
    family_s: float = 30 * 86_400.0
    link_s: float = 900.0
    max_service_s: float = 365 * 86_400.0
    key_s: float = 30 * 86_400.0
    refresh_grace_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPair:
    """What a sign-in returns, once. Both are secrets."""

    access: str
    refresh: str
    user_id: str
    expires_s: float
    """Of the access token."""

    def __repr__(self) -> str:
        return f"TokenPair({self.user_id})"  # never the tokens


class SignIn:
    """Issues tokens of one issuer."""

    def __init__(
        self,
        store: AccountsPort,
        keys: SigningKeys,
        sealer: KeySealer,
        passwords: Passwords,
        guesses: Guesses,
        log: AccountLog,
        clock: Clock,
        settings: TokenSettings,
    ) -> None:
        self._store, self._keys, self._passwords = store, keys, passwords
        self._sealer = sealer
        self._guesses, self._log, self._clock = guesses, log, clock
        self._settings = settings

    async def by_password(
        self, name: str, password: str, *, address: str, audience: str
    ) -> TokenPair:
        """Raises `SignInRefused`, with one text for every cause."""
        account = name[:256].lower()
        await self._guesses.begin(address=address, account=account)  # (1)
        user = await self._store.find_user_named(account)  # (2)
        is_right = await self._passwords.verify(user, password)
        known = user.name if user is not None else ""
        if user is None or not is_right:
            await self._log.sign_in("password", "refused", address=address, user=known)  # (3)
            raise failures.bad_credentials()
        await self._log.sign_in("password", "ok", address=address, user=known)
        await self._guesses.succeeded(address=address, account=account)  # (4)
        if self._passwords.needs_rehash(user):
            renewed = await self._passwords.hash(password)
            await self._store.set_password(user.id, renewed, replaces=user.password_hash)
        return await self.issue_for(user, audience)  # (5)

    async def confirm(self, who: Identity, password: str | None, *, address: str) -> User:
        """Before a new way to sign in: a person, with the password where there is one. A stolen
        access token alone must not add a way that outlives the token."""
        if who.scopes is not None:
            raise failures.not_a_person()
        user = await self._store.find_user(who.user_id)
        if user is None:
            raise failures.not_found("user")
        if user.password_hash is None:
            return user
        await self._guesses.begin(address=address, account=user.name)
        if not await self._passwords.verify(user, password or ""):
            await self._log.sign_in("password", "refused", address=address, user=user.name)
            raise failures.bad_credentials()
        await self._guesses.succeeded(address=address, account=user.name)
        return user

    async def refresh(self, token: str, *, address: str) -> TokenPair:
        """Exchange a refresh token. One that was used before ends the whole sign-in, unless it was
        used seconds ago and its successor is unused: then the answer is that successor again."""
        self._guesses.require_unblocked(address)
        digest, successor = hash_secret(token), new_secret(REFRESH_PREFIX)
        grace_s = self._settings.refresh_grace_s
        sealed = self._sealer.seal(successor.encode(), name=digest.hex()) if grace_s else b""
        status, family, known = await self._store.rotate(
            digest, successor=hash_secret(successor), now_s=self._clock(),
            sealed=sealed, grace_s=grace_s,
        )  # fmt: skip
        if status is Rotation.REPEATED:
            successor = self._sealer.unseal(known, name=digest.hex()).decode()
            status = Rotation.DONE
        if status is not Rotation.DONE or family is None:
            refused = failures.TokenRefused(status.value, is_guess=status is Rotation.UNKNOWN)
            if status is Rotation.REUSED and family is not None:
                await self._log.sign_in(
                    "refresh", "reused, so the sign-in is ended", address=address,
                    user=await self._name_of(family.user_id), family=family.id,
                )  # fmt: skip
            await self._guesses.note_bad_token(refused, address=address, kind="refresh")
            raise refused
        user = await self._store.find_user(family.user_id)
        if user is None or user.is_disabled:
            raise failures.ended_token("disabled")
        return await self._issue(user, family, successor)

    async def sign_out(self, token: str, *, address: str) -> None:
        """End the sign-in of a refresh token; an unknown one is no error (RFC 7009)."""
        successor = hash_secret(new_secret(REFRESH_PREFIX))
        _, family, _ = await self._store.rotate(
            hash_secret(token), successor=successor, now_s=self._clock()
        )
        if family is not None:
            name = await self._name_of(family.user_id)
            await self._log.sign_in("sign-out", "ok", address=address, user=name, family=family.id)
            await self._store.revoke_family(family.id)

    async def first_owner_link(self) -> str | None:
        """The secret of a new link for the first owner; None once there is a user.

        It replaces the unused link of an earlier start.
        """
        if await self._store.has_users():
            return None
        return await self._make_link(None)

    async def make_link(self, user_id: str, *, by: Principal) -> str:
        """The secret of a link with which the user sets a password. The caller checks the role."""
        if await self._store.find_user(user_id) is None:
            raise failures.not_found("user")
        await self._log.change("sign-in link", by=by, user=user_id)
        return await self._make_link(user_id)

    async def _make_link(self, user_id: str | None) -> str:
        secret = new_secret(LINK_PREFIX)
        expires_s = self._clock() + self._settings.link_s
        link = SignInLink(link_hash=hash_secret(secret), user_id=user_id, expires_s=expires_s)
        await self._store.add_link(link)
        return secret

    async def by_link(
        self, secret: str, password: str, *, address: str, audience: str, name: str = ""
    ) -> TokenPair:
        """Set the password of the link's user and sign in. With a name: become the first owner."""
        owner_name = canonical_name(name) if name else ""
        self._passwords.check_new(password, name=owner_name)
        await self._guesses.begin(address=address)
        password_hash = await self._passwords.hash(password)
        now_s = self._clock()
        owner = None
        if owner_name:
            owner = User(
                id=new_id("usr"), name=owner_name, role=OWNER, password_hash=password_hash,
                is_disabled=False, generation=1, created_s=now_s,
            )  # fmt: skip
        try:
            user_id = await self._store.use_link(
                hash_secret(secret), password_hash=password_hash, now_s=now_s, first_owner=owner
            )
        except OwnerExists:
            raise failures.owner_exists() from None
        except NameTaken:
            raise failures.name_taken() from None
        user = None if user_id is None else await self._store.find_user(user_id)
        if user is None:
            await self._log.sign_in("link", "refused", address=address)
            raise failures.bad_link()
        await self._log.sign_in("link", "ok", address=address, user=user.name)
        await self._guesses.succeeded(address=address, account=user.name)
        return await self.issue_for(user, audience)

    async def issue_for(self, user: User, audience: str) -> TokenPair:
        """Begin a sign-in of a user who was just authenticated. The caller has recorded it."""
        now_s, refresh = self._clock(), new_secret(REFRESH_PREFIX)
        family = RefreshFamily(
            id=new_id("fam"),
            user_id=user.id,
            audience=audience,
            created_s=now_s,
            expires_s=now_s + self._settings.family_s,
            is_revoked=False,
        )
        is_stored = await self._store.add_family(
            family, token_hash=hash_secret(refresh), generation=user.generation
        )
        if not is_stored:
            raise failures.bad_credentials()
        return await self._issue(user, family, refresh)

    async def _issue(self, user: User, family: RefreshFamily, refresh: str) -> TokenPair:
        now_s, jti = self._clock(), new_id("jti")
        revision = await self._store.revision()
        state = await self._store.access_state(user_id=user.id, family_id=family.id, jti=jti)
        if state is None or not state.is_family_live:
            raise failures.ended_token("revoked")
        claims = AccessClaims(
            user_id=user.id,
            family_id=family.id,
            jti=jti,
            audience=family.audience,
            issued_s=now_s,
            expires_s=min(now_s + self._settings.access_s, family.expires_s),
            generation=state.generation,
            user_generation=state.user.generation,
        )
        access = await self._keys.sign(claims, issuer=self._settings.issuer, revision=revision)
        return TokenPair(
            access=access, refresh=refresh, user_id=user.id, expires_s=claims.expires_s
        )

    async def _name_of(self, user_id: str) -> str:
        user = await self._store.find_user(user_id)
        return "" if user is None else user.name
