"""Metadata of sessions and of approvals.

The owner is part of each query, so that a resource of another user and one that does not exist
take the same path (RBAC-3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.accounts import ApprovalRecord, SessionRecord, Viewer
from cellwall.core.hosts import HOST_LOST
from cellwall.storage.models import ApprovalRow, RunKeyRow, SessionRow
from cellwall.storage.repository import Repository, insert_missing, lock_user


def _may_see(user_id: str, teams: frozenset[str]) -> ColumnElement[bool]:
    return or_(SessionRow.owner_id == user_id, SessionRow.team_id.in_(sorted(teams)))


def _is_shown(viewer: Viewer) -> ColumnElement[bool]:
    """A question is shown to its asker, to the team of its session, and to who sees all."""
    if viewer.sees_all:
        return true()
    shared = select(SessionRow.id).where(SessionRow.team_id.in_(sorted(viewer.teams)))
    return or_(ApprovalRow.owner_id == viewer.user_id, ApprovalRow.session_id.in_(shared))


async def _has_room(connection: AsyncConnection, owner_id: str, max_live: int) -> bool:
    """Whether an enabled user may have one more session. The row of the user stays locked, so two
    transactions cannot exceed the number together."""
    if not await lock_user(connection, owner_id):
        return False
    own = SessionRow.owner_id == owner_id, SessionRow.ended_s.is_(None)
    live = select(func.count()).select_from(SessionRow).where(*own)
    return (await connection.execute(live)).scalar_one() < max_live


# One statement has one snapshot, and SQLite one writer: the count holds until the row is there.
_ADD = """
INSERT INTO sessions
(id, owner_id, team_id, created_s, ended_s, about, service_id, end_reason)
SELECT ?, id, ?, ?, ?, ?, ?, ? FROM users WHERE id = ? AND NOT is_disabled
AND (SELECT count(*) FROM sessions WHERE owner_id = users.id AND ended_s IS NULL) < ?
"""
_END = "UPDATE sessions SET ended_s = ? WHERE id = ? AND service_id IN ('', ?) AND ended_s IS NULL"


class SessionRepository(Repository):
    """Implements `SessionsPort`."""

    async def add_session(self, session: SessionRecord, *, max_live: int) -> bool:
        writer = self._database.sqlite_writer
        if writer is not None:
            about = json.dumps(dict(session.about))
            times = session.created_s, session.ended_s
            rest = about, self.service_id, session.end_reason, session.owner_id, max_live
            row = (session.id, session.team_id, *times, *rest)
            return await writer.execute(_ADD, row) == 1
        async with self._database.write() as connection:
            if not await _has_room(connection, session.owner_id, max_live):
                return False
            own = {"about": dict(session.about), "service_id": self.service_id}
            values = {**asdict(session), **own}
            await connection.execute(insert(SessionRow).values(**values))
            return True

    async def find_session(
        self, session_id: str, *, user_id: str, teams: frozenset[str]
    ) -> SessionRecord | None:
        query = select(SessionRow).where(SessionRow.id == session_id, _may_see(user_id, teams))
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else SessionRecord(**row._mapping)  # noqa: SLF001  # public name

    async def list_sessions(
        self,
        *,
        user_id: str,
        teams: frozenset[str],
        after: str = "",
        limit: int = 100,
        among: Sequence[str] | None = None,
    ) -> tuple[SessionRecord, ...]:
        query = select(SessionRow).where(SessionRow.id > after, _may_see(user_id, teams))
        if among is not None:
            query = query.where(SessionRow.id.in_(among))
        async with self._database.read() as connection:
            rows = await connection.execute(query.order_by(SessionRow.id).limit(limit))
            return tuple(SessionRecord(**row._mapping) for row in rows)  # noqa: SLF001  # public name

    async def end_session(self, session_id: str, *, now_s: float) -> bool:
        writer = self._database.sqlite_writer
        if writer is not None:
            return await writer.execute(_END, (now_s, session_id, self.service_id)) == 1
        # A host that was lost ends what it had: not the session that another one has started again.
        own = SessionRow.service_id.in_(("", self.service_id))
        return await self._end(now_s, SessionRow.id == session_id, own) == 1

    async def take_over_session(self, session_id: str, *, owner_id: str, max_live: int) -> bool:
        lost = update(SessionRow).where(
            SessionRow.id == session_id,
            SessionRow.owner_id == owner_id,
            SessionRow.end_reason == HOST_LOST,
        )
        values = {"service_id": self.service_id, "ended_s": None, "end_reason": ""}
        async with self._database.write() as connection:
            if not await _has_room(connection, owner_id, max_live):
                return False
            return (await connection.execute(lost.values(**values))).rowcount == 1

    async def lose_session(self, session_id: str, *, now_s: float) -> bool:
        return await self._lose(now_s, SessionRow.id == session_id) == 1

    async def lose_all_sessions(self, *, now_s: float) -> int:
        return await self._lose(now_s, SessionRow.ended_s.is_(None))

    async def _lose(self, now_s: float, condition: ColumnElement[bool]) -> int:
        own = update(SessionRow).where(condition, SessionRow.service_id == self.service_id)
        async with self._database.write() as connection:
            lost = own.values(ended_s=now_s, end_reason=HOST_LOST)
            return (await connection.execute(lost)).rowcount

    async def add_run_key(self, session_id: str, key_hash: bytes) -> bool:
        values = {"session_id": session_id, "key_hash": key_hash}
        async with self._database.write() as connection:
            added = insert_missing(connection, RunKeyRow, **values).returning(RunKeyRow.key_hash)
            return (await connection.execute(added)).one_or_none() is not None

    async def end_all_sessions(self, *, now_s: float) -> int:
        return await self._end(now_s, SessionRow.service_id == self.service_id)

    async def forget_sessions(self, *, ended_before_s: float) -> int:
        async with self._database.write() as connection:
            old = delete(SessionRow).where(SessionRow.ended_s < ended_before_s)
            return (await connection.execute(old)).rowcount

    async def _end(self, now_s: float, *conditions: ColumnElement[bool]) -> int:
        async with self._database.write() as connection:
            statement = update(SessionRow).where(SessionRow.ended_s.is_(None), *conditions)
            return (await connection.execute(statement.values(ended_s=now_s))).rowcount

    async def add_approval(self, approval: ApprovalRecord) -> bool:
        own = {"question": dict(approval.question), "service_id": self.service_id}
        values = {**asdict(approval), **own}
        async with self._database.write() as connection:
            if not await lock_user(connection, approval.owner_id):
                return False
            await connection.execute(insert(ApprovalRow).values(**values))
            return True

    async def find_approval(self, approval_id: str, *, seen_by: Viewer) -> ApprovalRecord | None:
        query = select(ApprovalRow).where(ApprovalRow.id == approval_id, _is_shown(seen_by))
        async with self._database.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else ApprovalRecord(**row._mapping)  # noqa: SLF001  # public name

    async def list_ended_approvals(
        self, *, seen_by: Viewer, before: str = "", limit: int = 100
    ) -> tuple[ApprovalRecord, ...]:
        query = select(ApprovalRow).where(ApprovalRow.answered_s.is_not(None), _is_shown(seen_by))
        if before:
            # A foreign id is as unknown as one that does not exist.
            known = select(ApprovalRow.asked_s).where(ApprovalRow.id == before, _is_shown(seen_by))
            asked_s = known.scalar_subquery()
            is_same = and_(ApprovalRow.asked_s == asked_s, ApprovalRow.id < before)
            query = query.where(or_(ApprovalRow.asked_s < asked_s, is_same))
        query = query.order_by(ApprovalRow.asked_s.desc(), ApprovalRow.id.desc()).limit(limit)
        async with self._database.read() as connection:
            rows = await connection.execute(query)
            return tuple(ApprovalRecord(**row._mapping) for row in rows)  # noqa: SLF001  # public name

    async def end_approval(
        self, approval_id: str, *, answer: str, answered_by: str | None, now_s: float
    ) -> bool:
        values = {"answer": answer, "answered_by": answered_by, "answered_s": now_s}
        return await self._end_approvals(values, ApprovalRow.id == approval_id) == 1

    async def end_all_approvals(self, *, answer: str, now_s: float) -> int:
        values = {"answer": answer, "answered_s": now_s}
        return await self._end_approvals(values, ApprovalRow.service_id == self.service_id)

    async def _end_approvals(
        self, values: Mapping[str, object], *conditions: ColumnElement[bool]
    ) -> int:
        async with self._database.write() as connection:
            statement = update(ApprovalRow).where(ApprovalRow.answered_s.is_(None), *conditions)
            return (await connection.execute(statement.values(**values))).rowcount
