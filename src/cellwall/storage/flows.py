"""Sign-ins that have begun, sealed by the caller."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, insert, select

from cellwall.core.accounts import PendingFlow
from cellwall.storage.models import FlowRow
from cellwall.storage.repository import Repository


class FlowRepository(Repository):
    """Implements `FlowsPort`."""

    async def add_flow(self, flow: PendingFlow, *, max_live: int, now_s: float) -> None:
        async with self._database.write() as connection:
            await connection.execute(delete(FlowRow).where(FlowRow.expires_s <= now_s))
            newest = select(FlowRow.expires_s).order_by(FlowRow.expires_s.desc())
            kept_s = (
                await connection.execute(newest.offset(max_live - 1).limit(1))
            ).scalar_one_or_none()
            if kept_s is not None:
                await connection.execute(delete(FlowRow).where(FlowRow.expires_s <= kept_s))
            await connection.execute(insert(FlowRow).values(**asdict(flow)))

    async def take_flow(self, flow_hash: bytes, *, kind: str, now_s: float) -> bytes | None:
        statement = (
            delete(FlowRow)
            .where(FlowRow.flow_hash == flow_hash, FlowRow.kind == kind, FlowRow.expires_s > now_s)
            .returning(FlowRow.sealed)
        )
        async with self._database.write() as connection:
            found: bytes | None = (await connection.execute(statement)).scalar_one_or_none()
            return found
