"""Usage counters and budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.accounts import Budget, Charge, Meter
from cellwall.storage.models import BudgetRow, UsageRow
from cellwall.storage.repository import Repository, bump_revision, insert_or_update

_KEYS = ["kind", "subject", "resource"]
_SLACK = 1e-9
"""Sums of prices are rounded: 0.1 + 0.2 must fit a budget of 0.3."""


class _Exceeded(Exception):
    """Ends the transaction without a trace of it."""

    def __init__(self, charge: Charge) -> None:
        super().__init__()
        self.charge = charge


class UsageRepository(Repository):
    """Implements `UsagePort`."""

    async def set_budget(self, budget: Budget) -> None:
        values = {**asdict(budget.meter), "limit": budget.limit, "period_s": budget.period_s}
        async with self._database.write() as connection:
            await bump_revision(connection)
            await connection.execute(insert_or_update(connection, BudgetRow, _KEYS, **values))

    async def remove_budget(self, meter: Meter) -> bool:
        statement = delete(BudgetRow).filter_by(**asdict(meter))
        async with self._database.write() as connection:
            await bump_revision(connection)
            return (await connection.execute(statement)).rowcount == 1

    async def budgets(self, meters: Sequence[Meter]) -> tuple[Budget, ...]:
        if not meters:
            return ()
        is_wanted = or_(
            *(
                and_(
                    BudgetRow.kind == meter.kind,
                    BudgetRow.subject == meter.subject,
                    BudgetRow.resource == meter.resource,
                )
                for meter in meters
            )
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(select(BudgetRow).where(is_wanted))).all()
        return tuple(
            Budget(
                meter=Meter(row.kind, row.subject, row.resource),
                limit=row.limit,
                period_s=row.period_s,
            )
            for row in rows
        )

    async def reserve(self, charges: Sequence[Charge]) -> Charge | None:
        if any(charge.amount < 0 for charge in charges):
            raise ValueError(charges)
        try:
            async with self._database.write() as connection:
                totals = await _add(connection, charges)
                for charge in charges:
                    _check(charge, totals[charge.budget.meter])
        except _Exceeded as exceeded:
            return exceeded.charge
        return None

    async def settle(self, charges: Sequence[Charge]) -> None:
        async with self._database.write() as connection:
            await _add(connection, charges)

    async def usage(self, meter: Meter, *, period_start_s: float) -> float:
        query = select(UsageRow.amount).filter_by(**asdict(meter), period_start_s=period_start_s)
        async with self._database.read() as connection:
            return (await connection.execute(query)).scalar_one_or_none() or 0.0


def _key(meter: Meter) -> tuple[str, str, str]:
    return meter.kind, meter.subject, meter.resource


def _check(charge: Charge, total: float) -> None:
    limit = charge.budget.limit
    if total > limit + _SLACK or (charge.amount == 0 and total >= limit):
        raise _Exceeded(charge)


async def _add(connection: AsyncConnection, charges: Sequence[Charge]) -> dict[Meter, float]:
    """Add to all counters by one statement; returns the totals."""
    sums: dict[tuple[Meter, float], float] = {}
    for charge in charges:
        if not math.isfinite(charge.amount):
            raise ValueError(charge.amount)
        key = charge.budget.meter, charge.period_start_s
        sums[key] = sums.get(key, 0.0) + charge.amount
    # Sorted: two callers lock the counters in one order.
    ordered = sorted(sums.items(), key=lambda each: (*_key(each[0][0]), each[0][1]))
    statement = _upsert(len(ordered), is_postgres=connection.dialect.name == "postgresql")
    values = tuple(
        value
        for (meter, start_s), amount in ordered
        for value in (meter.kind, meter.subject, meter.resource, start_s, amount)
    )
    found = await connection.exec_driver_sql(statement, values)
    return {Meter(row.kind, row.subject, row.resource): row.amount for row in found}


@cache
def _upsert(count: int, *, is_postgres: bool) -> str:
    """As text: SQLAlchemy compiles an insert of several rows anew each time, which takes longer
    than the transaction. Never below zero, whatever was rounded."""
    row = "(%s, %s, %s, %s, %s)" if is_postgres else "(?, ?, ?, ?, ?)"
    total = "usage.amount + excluded.amount"
    return (
        "INSERT INTO usage (kind, subject, resource, period_start_s, amount) "  # noqa: S608  # no value is part of the text
        f"VALUES {', '.join([row] * count)} "
        "ON CONFLICT (kind, subject, resource, period_start_s) "
        f"DO UPDATE SET amount = CASE WHEN {total} > 0 THEN {total} ELSE 0 END "
        "RETURNING kind, subject, resource, amount"
    )
