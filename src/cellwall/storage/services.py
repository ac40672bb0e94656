"""The services that use this database, so that one does not end the sessions of another."""

from __future__ import annotations

from sqlalchemy import delete, func, select, update

from cellwall.storage.fleet_models import HostRow
from cellwall.storage.hosts import database_now
from cellwall.storage.models import ApprovalRow, ServiceRow, SessionRow
from cellwall.storage.repository import Repository, insert_or_update

_FORGET_AFTER_S = 30 * 86_400.0
LEASES_DECIDE_S = 86_400.0
"""After a day without a lease and without a front, the sessions of a host count no more."""


class ServiceRepository(Repository):
    """Implements `ServicesPort`."""

    async def note_service(self, *, now_s: float) -> None:
        async with self._database.write() as connection:
            values = {"id": self.service_id, "seen_s": now_s}
            await connection.execute(insert_or_update(connection, ServiceRow, ["id"], **values))

    async def forget_service(self) -> None:
        async with self._database.write() as connection:
            await connection.execute(delete(ServiceRow).where(ServiceRow.id == self.service_id))

    async def count_other_services(self, *, seen_since_s: float) -> int:
        others = (ServiceRow.id != self.service_id, ServiceRow.seen_s >= seen_since_s)
        query = select(func.count()).select_from(ServiceRow).where(*others)
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar_one()

    async def end_for_unseen_services(
        self, *, unseen_since_s: float, answer: str, now_s: float
    ) -> int:
        seen = select(ServiceRow.id).where(ServiceRow.seen_s >= unseen_since_s)
        async with self._database.write() as connection:
            # A host of a fleet has a lease, by the clock of the database. The front that calls the
            # host lost ends its sessions with that reason; without it none of them starts again.
            since_s = await database_now(connection) - LEASES_DECIDE_S
            leased = select(HostRow.id).where(HostRow.lost_s.is_(None), HostRow.seen_s > since_s)
            sessions = update(SessionRow).where(
                SessionRow.ended_s.is_(None),
                SessionRow.service_id.not_in(seen),
                SessionRow.service_id.not_in(leased),
            )
            approvals = update(ApprovalRow).where(
                ApprovalRow.answered_s.is_(None),
                ApprovalRow.service_id.not_in(seen),
                ApprovalRow.service_id.not_in(leased),
            )
            ended = await connection.execute(sessions.values(ended_s=now_s))
            denied = await connection.execute(approvals.values(answer=answer, answered_s=now_s))
            old = ServiceRow.seen_s < now_s - _FORGET_AFTER_S
            await connection.execute(delete(ServiceRow).where(old))
            return ended.rowcount + denied.rowcount
