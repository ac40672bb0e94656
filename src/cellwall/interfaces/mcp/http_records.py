"""The sandboxes of MCP clients in the service's database, where all of a user's sandboxes count."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cellwall.admin.accounts import Identity, require_tenant
from cellwall.core.account_ports import SessionsPort
from cellwall.core.accounts import SessionRecord
from cellwall.core.errors import Busy


@dataclass(frozen=True, slots=True)
class StoredSandboxes:
    """Implements `SandboxRecords` for one user."""

    store: SessionsPort
    owner: Identity
    max_live: int
    tenant: str = ""
    """The team that the host is reserved for."""

    async def add(self, sandbox_id: str) -> None:
        require_tenant(self.owner, self.tenant)
        record = SessionRecord(
            id=sandbox_id,
            owner_id=self.owner.user_id,
            team_id=None,
            created_s=time.time(),
            ended_s=None,
            about={"interface": "mcp-http"},
        )
        if not await self.store.add_session(record, max_live=self.max_live):
            raise Busy(
                f"{self.max_live} sandboxes of this user are live already",
                hint="End one of them with end_session.",
                code="CW-TOO-MANY-SESSIONS",
            )

    async def remove(self, sandbox_id: str) -> None:
        await self.store.end_session(sandbox_id, now_s=time.time())
