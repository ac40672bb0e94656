"""Failed attempts to sign in, by subject."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import case, delete, select, update

from cellwall.core.accounts import GuessLimit
from cellwall.storage.models import AttemptRow
from cellwall.storage.repository import Repository, insert_missing


class AttemptRepository(Repository):
    """Implements `AttemptsPort`."""

    async def begin_attempt(
        self, subjects: Sequence[tuple[str, GuessLimit]], *, now_s: float
    ) -> float:
        ordered = sorted(subjects, key=lambda each: each[0])  # two callers lock in one order
        async with self._database.write() as connection:
            counted: list[tuple[str, GuessLimit, int]] = []
            blocked_until_s = 0.0
            for subject, limit in ordered:
                await connection.execute(
                    insert_missing(
                        connection,
                        AttemptRow,
                        subject=subject,
                        failures=0,
                        last_s=now_s,
                        blocked_until_s=0.0,
                        forget_after_s=now_s + limit.forget_s,
                    )
                )
                query = select(AttemptRow).where(AttemptRow.subject == subject).with_for_update()
                row = (await connection.execute(query)).one()
                if row.blocked_until_s > now_s:
                    blocked_until_s = max(blocked_until_s, row.blocked_until_s)
                is_forgotten = row.forget_after_s <= now_s
                counted.append((subject, limit, 1 if is_forgotten else row.failures + 1))
            if blocked_until_s:
                return blocked_until_s
            for subject, limit, failures in counted:
                until_s = now_s + limit.delay_s(failures)
                await connection.execute(
                    update(AttemptRow)
                    .where(AttemptRow.subject == subject)
                    .values(
                        failures=failures,
                        last_s=now_s,
                        blocked_until_s=until_s,
                        forget_after_s=until_s + limit.forget_s,
                    )
                )
            return 0.0

    async def clear_attempts(self, subjects: Sequence[str]) -> None:
        async with self._database.write() as connection:
            for subject in sorted(subjects):
                await connection.execute(delete(AttemptRow).where(AttemptRow.subject == subject))

    async def forgive_attempt(self, subjects: Sequence[str]) -> None:
        failures = AttemptRow.failures
        async with self._database.write() as connection:
            for subject in sorted(subjects):
                await connection.execute(
                    update(AttemptRow)
                    .where(AttemptRow.subject == subject)
                    .values(
                        failures=case((failures > 0, failures - 1), else_=0), blocked_until_s=0.0
                    )
                )
