"""Events of accounts. A failed write refuses what it records (AUD-1)."""

from __future__ import annotations

from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.ports import AuditPort
from cellwall.core.types import Json, Principal

_UNKNOWN = Principal("unknown", "http")


class AccountLog:
    """Writes sign-ins and changes of accounts; never a password, token or unknown name."""

    def __init__(self, audit: AuditPort) -> None:
        self._audit = audit

    async def sign_in(
        self, what: str, status: str, *, address: str, user: str = "", **more: Json
    ) -> None:
        """`user` is the name of an account that exists: an unknown name may be a password."""
        who = Principal(user, "http") if user else _UNKNOWN
        body: dict[str, Json] = {"address": address[:64], **more}
        await self._write(EventKind.SIGN_IN, what, status, who, body)

    async def change(self, what: str, *, by: Principal, **more: Json) -> None:
        """A change that is about to be made."""
        await self._write(EventKind.ACCOUNT, what, "begins", by, dict(more))

    async def _write(
        self, kind: EventKind, what: str, status: str, who: Principal, body: dict[str, Json]
    ) -> None:
        message = f"{what}: {status}"
        full: dict[str, Json] = {"change": what, "status": status, "message": message, **body}
        await self._audit.record(Event(kind, new_id("act"), who.name, who.interface, full))
