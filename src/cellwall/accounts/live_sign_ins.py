"""Sign-ins that go on: a person sees and ends the own ones, who manages users those of all."""

from __future__ import annotations

from cellwall.accounts import failures
from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.identity import Identity
from cellwall.accounts.roles import Roles
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import TokensPort
from cellwall.core.accounts import RefreshFamily
from cellwall.core.types import Permission, Principal


class LiveSignIns:
    """A sign-in of another user answers like one that does not exist (RBAC-3)."""

    def __init__(self, store: TokensPort, roles: Roles, log: AccountLog, clock: Clock) -> None:
        self._store, self._roles, self._log, self._clock = store, roles, log, clock

    async def list_own(self, who: Identity) -> tuple[RefreshFamily, ...]:
        """Of the user, the newest first."""
        return await self._store.list_families(who.user_id, now_s=self._clock())

    async def list_of(self, user_id: str, *, by: Principal) -> tuple[RefreshFamily, ...]:
        """Of another user."""
        self._roles.require(by, Permission.USERS_MANAGE)
        return await self._store.list_families(user_id, now_s=self._clock())

    async def end_own(self, who: Identity, sign_in_id: str) -> None:
        """End one of the user's own, with its tokens."""
        await self._end(sign_in_id, who.user_id, by=who.principal("http"))

    async def end_of(self, user_id: str, sign_in_id: str, *, by: Principal) -> None:
        """End one of another user."""
        self._roles.require(by, Permission.USERS_MANAGE)
        await self._end(sign_in_id, user_id, by=by)

    async def _end(self, sign_in_id: str, user_id: str, *, by: Principal) -> None:
        await self._log.change("end sign-in", by=by, sign_in=sign_in_id[:64], user=user_id[:64])
        if not await self._store.revoke_family(sign_in_id, user_id=user_id):
            raise failures.not_found("sign-in")
