"""Usage counters and budgets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from cellwall.core.accounts import Budget, Meter
from cellwall.storage.models import BudgetRow, UsageRow
from cellwall.storage.repository import Repository, insert_missing, insert_or_update

_DAY_S = 86_400.0
_KEYS = ["kind", "subject", "resource"]


class _Exceeded(Exception):
    """Ends the transaction without a trace of it."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget


def _period_start_s(budget: Budget | None, now_s: float) -> float:
    period_s = _DAY_S if budget is None else budget.period_s
    return math.floor(now_s / period_s) * period_s


class Usage(Repository):
    """Implements `UsagePort`."""

    async def set_budget(self, budget: Budget) -> None:
        values = {**asdict(budget.meter), "limit": budget.limit, "period_s": budget.period_s}
        async with self._database.write() as connection:
            await connection.execute(insert_or_update(connection, BudgetRow, _KEYS, **values))

    async def budgets(self, meters: Sequence[Meter]) -> tuple[Budget, ...]:
        async with self._database.read() as connection:
            found = [await _find_budget(connection, meter) for meter in meters]
        return tuple(budget for budget in found if budget is not None)

    async def charge(
        self, amount: float, *, meters: Sequence[Meter], now_s: float
    ) -> Budget | None:
        if not math.isfinite(amount) or amount < 0:
            raise ValueError(amount)
        # Sorted: two callers lock the counters in one order.
        ordered = sorted(set(meters), key=lambda each: (each.kind, each.subject, each.resource))
        try:
            async with self._database.write() as connection:
                for meter in ordered:
                    await _add(connection, meter, amount, now_s)
        except _Exceeded as exceeded:
            return exceeded.budget
        return None

    async def usage(self, meter: Meter, *, now_s: float) -> float:
        async with self._database.read() as connection:
            start_s = _period_start_s(await _find_budget(connection, meter), now_s)
            query = select(UsageRow.amount).filter_by(**asdict(meter), period_start_s=start_s)
            return (await connection.execute(query)).scalar_one_or_none() or 0.0


async def _find_budget(connection: AsyncConnection, meter: Meter) -> Budget | None:
    query = select(BudgetRow.limit, BudgetRow.period_s).filter_by(**asdict(meter))
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else Budget(meter=meter, limit=row.limit, period_s=row.period_s)


async def _add(connection: AsyncConnection, meter: Meter, amount: float, now_s: float) -> None:
    budget = await _find_budget(connection, meter)
    key = {**asdict(meter), "period_start_s": _period_start_s(budget, now_s)}
    await connection.execute(insert_missing(connection, UsageRow, **key, amount=0.0))
    total = (
        await connection.execute(
            update(UsageRow)
            .filter_by(**key)
            .values(amount=UsageRow.amount + amount)
            .returning(UsageRow.amount)
        )
    ).scalar_one()
    if budget is not None and total > budget.limit:
        raise _Exceeded(budget)
