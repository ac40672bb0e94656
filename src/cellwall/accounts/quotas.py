"""Budgets of users and teams: runs, CPU seconds, bytes sent and money, per period (RBAC-4).

An action is paid for so:
  (1) its rates are counted (`rates`);
  (2) what is known before it runs is reserved in one transaction: one run, the price of its tool or
      operation. A budget for what is only measured (CPU, bytes) must not be used up yet;
  (3) when it has ended, what it used is added, and what it did not need is given back;
  (4) programs that it left running are booked as they go on, and the caller ends them once a budget
      is used up.
So actions that run at once exceed a budget by no more than what they themselves measure. A process
that is killed in between leaves its reservation booked.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import anyio

from cellwall.accounts import failures
from cellwall.accounts.rates import Rates
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import UsagePort
from cellwall.core.accounts import Budget, Charge, Meter
from cellwall.core.errors import LimitExceeded, StorageError
from cellwall.core.outcomes import Outcome, Status, Usage
from cellwall.core.packages import InstallPackages
from cellwall.core.tool_servers import RunServer
from cellwall.core.types import (
    AccountRef,
    Action,
    CallTool,
    FetchUrl,
    RunCode,
    RunCommand,
    UseTool,
)

RUNS, CPU, SENT, MONEY = RESOURCES = ("runs", "cpu_s", "sent_bytes", "money")
_UNITS = {RUNS: "runs", CPU: "CPU seconds", SENT: "bytes sent", MONEY: "units of money"}
CPU_PRICE, SENT_PRICE = "cpu_s", "sent_gib"
OPERATIONS = {
    RunCommand: "run_command",
    RunCode: "run_code",
    InstallPackages: "install_packages",
    FetchUrl: "fetch_url",
}
"""Operations that can have a price; a tool has its own, under `tool:NAME`."""
_STARTS_A_RUN = (RunCommand, RunCode, InstallPackages)
_GIB = 1024.0**3
_RAN = frozenset({Status.OK, Status.FAILED, Status.LIMIT})
_MAX_KNOWN = 4096
_MAX_UNSETTLED = 10_000


class BudgetStore(UsagePort, Protocol):
    """Usage, and the revision that changes with every budget."""

    async def revision(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Budgets of everybody who has no own one, by resource, and prices."""

    period_s: float = 86_400.0
    user: Mapping[str, float] = field(default_factory=dict)
    team: Mapping[str, float] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """How much of a budget is used."""

    budget: Budget
    used: float
    resets_s: float


@dataclass(slots=True)
class _Hold:
    """Implements `Reservation` for one action."""

    quotas: Quotas
    action: Action
    charges: tuple[Charge, ...]
    has_started: bool = False
    unbooked: Usage = Usage()

    def start(self) -> None:
        self.has_started = True

    def add(self, usage: Usage) -> None:
        cpu_s = self.unbooked.cpu_s + usage.cpu_s
        sent_bytes = self.unbooked.sent_bytes + usage.sent_bytes
        self.unbooked = Usage(cpu_s=cpu_s, sent_bytes=sent_bytes)

    async def settle(self, outcome: Outcome | None) -> None:
        charges, self.charges = self.charges, ()
        if charges:
            usage, self.unbooked = self.unbooked, Usage()
            has_run = self.has_started if outcome is None else outcome.status in _RAN
            with anyio.CancelScope(shield=True):
                await self.quotas.settle(self.action, charges, usage, has_run=has_run)

    async def book(self) -> None:
        charges = await self.quotas.measured(self.action, self.unbooked)
        self.unbooked = Usage()
        await self.quotas.book(charges)


class Quotas:
    """Implements `QuotaPort` over one store."""

    def __init__(
        self, store: BudgetStore, rates: Rates, settings: BudgetSettings, clock: Clock = time.time
    ) -> None:
        self._store, self._rates, self._settings, self._clock = store, rates, settings, clock
        self._revision = -1
        self._known: OrderedDict[tuple[str, frozenset[str]], tuple[Budget, ...]] = OrderedDict()
        """By user and teams: an account has no other budgets."""
        self._unsettled: list[Charge] = []

    async def reserve(self, action: Action) -> _Hold:
        """Raise `LimitExceeded` if a rate or budget of the action's account is used up."""
        account = action.principal.account
        if account is None:
            return _Hold(self, action, ())
        await self._rates.count_action(account)  # (1)
        await self._settle_late()
        now_s = self._clock()
        charges = await self._known_charges(action, account, now_s)
        if charges:
            exceeded = await self._store.reserve(charges)  # (2)
            if exceeded is not None:
                raise _refusal(exceeded, now_s)
        return _Hold(self, action, charges)

    async def has_room(self, action: Action) -> bool:
        """Whether `reserve` would succeed now. Counts, reserves and notes nothing."""
        account = action.principal.account
        if account is None:
            return True
        if self._unsettled or not await self._rates.has_room(account):
            return False
        for charge in await self._known_charges(action, account, self._clock()):
            meter, limit = charge.budget.meter, charge.budget.limit
            used = await self._store.usage(meter, period_start_s=charge.period_start_s)
            if used >= limit or used + charge.amount > limit:
                return False
        return True

    async def _known_charges(
        self, action: Action, account: AccountRef, now_s: float
    ) -> tuple[Charge, ...]:
        """What is known to be needed before the action runs."""
        return tuple(
            Charge(
                budget=budget,
                amount=self._known_cost(action, budget.meter.resource),
                period_start_s=period_start_s(budget, now_s),
            )
            for budget in await self.budgets_of(account)
            if self._concerns(action, budget.meter.resource)
        )

    async def settle(
        self, action: Action, charges: Sequence[Charge], usage: Usage, *, has_run: bool
    ) -> None:
        """Book what the action has used beyond its reservation; never raises."""
        used = [self._settled(charge, action, usage, has_run=has_run) for charge in charges]
        with suppress(StorageError):
            await self._add([charge for charge in used if charge.amount])  # (3)

    async def measured(self, action: Action, usage: Usage) -> tuple[Charge, ...]:
        """What the usage costs now, without the price of the action itself."""
        account = action.principal.account
        if account is None or not (usage.cpu_s or usage.sent_bytes):
            return ()
        now_s = self._clock()
        budgets = await self.budgets_of(account)
        empty = [
            Charge(budget=each, amount=0.0, period_start_s=period_start_s(each, now_s))
            for each in budgets
        ]
        charges = [self._settled(each, action, usage, has_run=True) for each in empty]
        return tuple(charge for charge in charges if charge.amount)

    async def book(self, charges: Sequence[Charge]) -> None:
        """Add these amounts; raise `LimitExceeded` if one of their budgets is used up."""
        if not charges:
            return
        await self._add(charges)  # (4)
        exceeded = await self._store.reserve([replace(each, amount=0.0) for each in charges])
        if exceeded is not None:
            raise _refusal(exceeded, self._clock())

    async def _add(self, charges: Sequence[Charge]) -> None:
        try:
            if charges:
                await self._store.settle(charges)
        except StorageError:
            # Kept for the next action, which is refused until it is booked.
            self._unsettled = [*self._unsettled, *charges][-_MAX_UNSETTLED:]
            raise

    async def _settle_late(self) -> None:
        if self._unsettled:
            late, self._unsettled = self._unsettled, []
            try:
                await self._store.settle(late)
            except StorageError:
                self._unsettled = [*late, *self._unsettled]
                raise

    async def budgets_of(self, account: AccountRef) -> tuple[Budget, ...]:
        """The budgets that bind an account: its own, those of its teams, or the configured ones."""
        revision = await self._store.revision()
        if revision != self._revision:
            self._known.clear()
            self._revision = revision
        key = account.user_id, account.teams
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = await self._find_budgets(account)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found

    async def _find_budgets(self, account: AccountRef) -> tuple[Budget, ...]:
        meters = [Meter("user", account.user_id, each) for each in RESOURCES]
        meters += [
            Meter("team", team, each) for team in sorted(account.teams) for each in RESOURCES
        ]
        return await self._budgets_for(meters)

    async def _budgets_for(self, meters: Sequence[Meter]) -> tuple[Budget, ...]:
        own = {budget.meter: budget for budget in await self._store.budgets(meters)}
        found = [own.get(meter) or self._default(meter) for meter in meters]
        return tuple(budget for budget in found if budget is not None)

    def _default(self, meter: Meter) -> Budget | None:
        settings = self._settings
        limits = settings.user if meter.kind == "user" else settings.team
        limit = limits.get(meter.resource, 0.0)
        if not limit:
            return None
        return Budget(meter=meter, limit=limit, period_s=settings.period_s)

    async def usage_of(self, account: AccountRef) -> tuple[BudgetUse, ...]:
        """What an account has used of each of its budgets in the current period."""
        return await self._usage(await self.budgets_of(account))

    async def usage_of_team(self, team_id: str) -> tuple[BudgetUse, ...]:
        """What all members together have used of the team's budgets."""
        meters = [Meter("team", team_id, each) for each in RESOURCES]
        return await self._usage(await self._budgets_for(meters))

    async def _usage(self, budgets: Sequence[Budget]) -> tuple[BudgetUse, ...]:
        now_s = self._clock()
        found = []
        for budget in budgets:
            start_s = period_start_s(budget, now_s)
            used = await self._store.usage(budget.meter, period_start_s=start_s)
            found.append(BudgetUse(budget=budget, used=used, resets_s=start_s + budget.period_s))
        return tuple(found)

    def _concerns(self, action: Action, resource: str) -> bool:
        """Whether the action can use the resource: to list files when all runs are used is fine."""
        is_run = isinstance(action.operation, _STARTS_A_RUN)
        is_measured = is_run or isinstance(action.operation, RunServer)
        if resource == MONEY:
            prices = self._settings.prices
            is_metered = bool(prices.get(CPU_PRICE) or prices.get(SENT_PRICE))
            return (is_measured and is_metered) or self._known_cost(action, resource) > 0
        return is_run if resource == RUNS else is_measured

    def _known_cost(self, action: Action, resource: str) -> float:
        match resource:
            case "runs":
                return 1.0 if isinstance(action.operation, _STARTS_A_RUN) else 0.0
            case "money":
                return self._settings.prices.get(_priced_name(action), 0.0)
            case _:
                return 0.0

    def _settled(self, charge: Charge, action: Action, usage: Usage, *, has_run: bool) -> Charge:
        resource, prices = charge.budget.meter.resource, self._settings.prices
        match resource:
            case "cpu_s":
                measured = usage.cpu_s
            case "sent_bytes":
                measured = float(usage.sent_bytes)
            case "money":
                measured = usage.cpu_s * prices.get(CPU_PRICE, 0.0)
                measured += usage.sent_bytes / _GIB * prices.get(SENT_PRICE, 0.0)
            case _:
                measured = 0.0
        returned = 0.0 if has_run else self._known_cost(action, resource)
        return replace(charge, amount=measured - returned)


def _refusal(exceeded: Charge, now_s: float) -> LimitExceeded:
    resets_s = exceeded.period_start_s + exceeded.budget.period_s
    return failures.budget_exceeded(_describe(exceeded.budget), retry_after_s=resets_s - now_s)


def _priced_name(action: Action) -> str:
    operation = action.operation
    if isinstance(operation, CallTool):
        return f"tool:{operation.name}"
    if isinstance(operation, UseTool):
        return f"tool:{operation.tool}"
    return OPERATIONS.get(type(operation), "")


def period_start_s(budget: Budget, now_s: float) -> float:
    """When the current period of a budget began."""
    return math.floor(now_s / budget.period_s) * budget.period_s


def _describe(budget: Budget) -> str:
    meter = budget.meter
    whose = "this user" if meter.kind == "user" else "a team of this user"
    hours = budget.period_s / 3600.0
    return f"{budget.limit:g} {_UNITS[meter.resource]} per {hours:g} hours for {whose}"


def check_budget(meter: Meter, limit: float, period_s: float) -> None:
    """Raise `BadInput` for a budget that cannot be set."""
    is_known = meter.kind in {"user", "team"} and meter.resource in RESOURCES
    is_number = math.isfinite(limit) and limit >= 0 and math.isfinite(period_s)
    if not is_known or not is_number or not 60.0 <= period_s <= 366 * 86_400.0:
        raise failures.bad_budget(RESOURCES)
