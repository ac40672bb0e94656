"""The hosts of a fleet, and which of them has a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    delete,
    exists,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.errors import Denied
from cellwall.core.hosts import (
    HOST_LOST,
    SESSION_LABELS,
    Held,
    Holder,
    HostRecord,
    SessionPlacement,
    has_rivals,
    second_coordinator,
)
from cellwall.core.types import Json
from cellwall.storage.fleet_models import HostCertificateRow, HostRow
from cellwall.storage.models import ApprovalRow, SessionRow
from cellwall.storage.repository import Repository, insert_or_update

_FORGET_AFTER_S = 86_400.0


class HostRepository(Repository):
    """Implements `HostsPort`."""

    async def join_host(
        self, incarnation: str, about: Mapping[str, Json], *, rivals_s: float
    ) -> None:
        async with self._database.write() as connection:
            if connection.dialect.name == "postgresql":  # of two that join at once, one is second
                await connection.execute(text("LOCK TABLE hosts IN SHARE ROW EXCLUSIVE MODE"))
            if await _is_revoked(connection, self.service_id):
                raise Denied(
                    "this host was removed from the fleet for good",
                    hint="Remove `service-id` and the folder `fleet` from the state folder, and "
                    "join with a new token.",
                    code="CW-FLEET-REVOKED",
                )
            now_s = await database_now(connection)
            others = await connection.execute(select(HostRow).where(HostRow.id != self.service_id))
            records = [_record(row, unseen_s=now_s - row.seen_s) for row in others]
            if has_rivals(records, str(about.get("coordinator", "")), seen_s=rivals_s):
                raise second_coordinator()
            values = {
                "id": self.service_id,
                "incarnation": incarnation,
                "about": dict(about),
                "seen_s": now_s,
                "is_draining": False,
                "lost_s": None,
            }
            await connection.execute(insert_or_update(connection, HostRow, ["id"], **values))
            old = HostRow.lost_s < now_s - _FORGET_AFTER_S
            await connection.execute(delete(HostRow).where(old))

    async def renew_host(self, incarnation: str, about: Mapping[str, Json]) -> HostRecord | None:
        ours = (
            HostRow.id == self.service_id,
            HostRow.incarnation == incarnation,
            HostRow.lost_s.is_(None),
        )
        revoked = exists().where(
            HostCertificateRow.host_id == self.service_id, HostCertificateRow.revoked_s.is_not(None)
        )
        async with self._database.write_at_once() as connection:
            values = {"seen_s": _clock(connection), "about": dict(about)}
            renewed = update(HostRow).where(*ours, ~revoked).values(**values).returning(HostRow)
            row = (await connection.execute(renewed)).one_or_none()
            return None if row is None else _record(row, unseen_s=0.0)

    async def leave_host(self, incarnation: str) -> None:
        ours = HostRow.id == self.service_id, HostRow.incarnation == incarnation
        async with self._database.write() as connection:
            await connection.execute(delete(HostRow).where(*ours, HostRow.lost_s.is_(None)))

    async def list_hosts(self) -> tuple[HostRecord, ...]:
        async with self._database.read() as connection:
            unseen_s = (_clock(connection) - HostRow.seen_s).label("unseen_s")
            rows = await connection.execute(select(HostRow, unseen_s).order_by(HostRow.id))
            return tuple(_record(row, unseen_s=row.unseen_s) for row in rows)

    async def set_draining(self, host_id: str, *, is_draining: bool) -> bool:
        known = update(HostRow).where(HostRow.id == host_id, HostRow.lost_s.is_(None))
        async with self._database.write() as connection:
            return (await connection.execute(known.values(is_draining=is_draining))).rowcount == 1

    async def remove_host(self, host_id: str) -> bool:
        async with self._database.write() as connection:
            done = await connection.execute(delete(HostRow).where(HostRow.id == host_id))
            return done.rowcount == 1

    async def declare_lost(self, host: HostRecord, *, unseen_s: float, answer: str) -> bool:
        async with self._database.write() as connection:
            now_s = await database_now(connection)
            mark = update(HostRow).where(
                HostRow.id == host.id,
                HostRow.incarnation == host.incarnation,
                HostRow.lost_s.is_(None),
                HostRow.seen_s < now_s - unseen_s,
            )
            if (await connection.execute(mark.values(lost_s=now_s))).rowcount != 1:
                return False
            await connection.execute(
                update(SessionRow)
                .where(SessionRow.ended_s.is_(None), SessionRow.service_id == host.id)
                .values(ended_s=now_s, end_reason=HOST_LOST)
            )
            await connection.execute(
                update(ApprovalRow)
                .where(ApprovalRow.answered_s.is_(None), ApprovalRow.service_id == host.id)
                .values(answer=answer, answered_s=now_s)
            )
            return True

    async def count_sessions(self) -> Mapping[str, int]:
        live = select(SessionRow.service_id, func.count()).where(SessionRow.ended_s.is_(None))
        async with self._database.read() as connection:
            rows = await connection.execute(live.group_by(SessionRow.service_id))
            return {str(service): int(count) for service, count in rows}

    async def find_holder(self, kind: Held, name: str) -> Holder | None:
        if kind == "session":
            known = SessionRow.service_id, SessionRow.ended_s, SessionRow.end_reason
            query = select(*known, SessionRow.about).where(SessionRow.id == name)
        else:
            none: ColumnElement[Any] = literal_column("''")
            answered = ApprovalRow.service_id, ApprovalRow.answered_s, none
            query = select(*answered, none).where(ApprovalRow.id == name)
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        labels = dict(row[3] or {}).get(SESSION_LABELS, {})
        return Holder(row[0], row[1] is not None, row[2] == HOST_LOST, labels)

    async def session_placement(self, session_id: str, *, host_id: str) -> SessionPlacement | None:
        about = select(SessionRow.owner_id, SessionRow.service_id, SessionRow.ended_s)
        async with self._database.read() as connection:
            now_s = await database_now(connection)
            row = (await connection.execute(about.where(SessionRow.id == session_id))).one_or_none()
            asked = select(HostRow).where(HostRow.id == host_id)
            host = (await connection.execute(asked)).one_or_none()
        if row is None:
            return None
        return SessionPlacement(
            owner_id=row.owner_id,
            holder_id=row.service_id,
            is_ended=row.ended_s is not None,
            host=None if host is None else _record(host, unseen_s=now_s - host.seen_s),
        )


async def _is_revoked(connection: AsyncConnection, host_id: str) -> bool:
    query = select(HostCertificateRow.revoked_s).where(HostCertificateRow.host_id == host_id)
    return (await connection.execute(query)).scalar() is not None


async def database_now(connection: AsyncConnection) -> float:
    """By the clock of the database, in seconds since 1970."""
    return float((await connection.execute(select(_clock(connection)))).scalar_one())


def _clock(connection: AsyncConnection) -> ColumnElement[float]:
    clock = "(julianday('now') - 2440587.5) * 86400.0"
    if connection.dialect.name == "postgresql":
        clock = "extract(epoch from clock_timestamp())::float8"
    return literal_column(clock, Double)


def _record(row: Any, *, unseen_s: float) -> HostRecord:  # noqa: ANN401  # a row of SQLAlchemy
    return HostRecord(
        id=row.id,
        incarnation=row.incarnation,
        about=row.about,
        unseen_s=max(0.0, unseen_s),
        is_draining=row.is_draining,
        is_lost=row.lost_s is not None,
    )
