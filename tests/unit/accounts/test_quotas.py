"""Budgets of users and teams: reserved before an action, settled after it (RBAC-4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from cellwall.accounts.quotas import BudgetSettings, Quotas
from cellwall.accounts.rates import Rates, RateSettings
from cellwall.core.accounts import Budget, Meter
from cellwall.core.errors import BadInput, Denied, LimitExceeded, StorageError
from cellwall.core.files import FileOperation
from cellwall.core.limits import Limits
from cellwall.core.outcomes import Outcome, Status, Usage
from cellwall.core.types import AccountRef, Action, CallTool, Principal, RunCode, RunCommand
from cellwall.storage.store import Store, open_store
from conftest import audit_records
from databases import in_store
from unit.accounts.worlds import ROOT, Clock, World, in_world
from unit.storage.test_store import race

pytestmark = pytest.mark.requirement("RBAC-4")
ANN = AccountRef(
    user_id="usr_ann", teams=frozenset({"team_blue"}), credential="tok_1", address="192.0.2.1"
)
BOB = replace(ANN, user_id="usr_bob", credential="tok_2")
PRICES = {"run_code": 0.1, "tool:mail": 2.0, "cpu_s": 0.5, "sent_gib": 8.0}


def action(account: AccountRef | None = ANN, operation: object = None) -> Action:
    principal = Principal("ann", "http", "user", None, account)
    chosen: Any = operation or RunCode("python", b"1")
    return Action(principal=principal, operation=chosen, limits=Limits(cpu_s=7.0))


def outcome(status: Status = Status.OK, **changes: Any) -> Outcome:
    return Outcome(status=status, action_id="act_1", **changes)


def quotas(store: Any, clock: Clock | None = None, **changes: Any) -> Quotas:
    found = clock or Clock()
    return Quotas(store, Rates(RateSettings(), found), BudgetSettings(**changes), found)


async def used(found: Quotas, account: AccountRef = ANN) -> dict[str, float]:
    return {
        f"{each.budget.meter.kind} {each.budget.meter.resource}": round(each.used, 6)
        for each in await found.usage_of(account)
    }


async def is_refused(found: Quotas, what: Action) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        await found.reserve(what)
    return caught.value


def test_usage_is_booked_for_the_user_and_the_teams(settings):
    limits = {"runs": 10.0, "cpu_s": 10.0, "sent_bytes": 2.0**40, "money": 100.0}

    async def go(store: Store) -> None:
        found = quotas(store, user=limits, team=limits, prices=PRICES)
        for who in (ANN, BOB):
            held = await found.reserve(action(who))
            held.start()
            usage = Usage(wall_s=9.0, cpu_s=2.0, sent_bytes=2**29)
            held.add(usage)
            await held.settle(outcome())
            held.add(usage)
            await held.settle(outcome())  # only the first one counts
        one = {"runs": 1.0, "cpu_s": 2.0, "sent_bytes": 2.0**29, "money": 0.1 + 1.0 + 4.0}
        expected = {f"user {name}": amount for name, amount in one.items()}
        expected |= {f"team {name}": 2 * amount for name, amount in one.items()}
        assert await used(found) == expected
        held = await found.reserve(action(operation=CallTool("mail")))
        held.start()
        await held.settle(outcome())
        held = await found.reserve(action(operation=FileOperation("read", "x")))
        held.start()
        await held.settle(outcome())
        after = await used(found)
        assert (after["user money"], after["user runs"]) == (7.1, 1.0)
        # A restart keeps what was used.
        async with open_store(settings) as other:
            assert await used(quotas(other, user=limits, team=limits, prices=PRICES)) == after

    in_store(settings, go)


@pytest.mark.parametrize(
    ("limits", "usage", "count", "what"),
    [
        ({"runs": 3.0}, Usage(), 3, "3 runs per 24 hours for this user"),
        ({"cpu_s": 3.0}, Usage(cpu_s=1.5), 2, "3 CPU seconds"),
        ({"sent_bytes": 100.0}, Usage(sent_bytes=99), 2, "100 bytes sent"),
        ({"money": 0.3}, Usage(), 3, "0.3 units of money"),
    ],
)
def test_a_budget_that_is_used_up_refuses_until_its_period_ends(
    sqlite_settings, limits, usage, count, what
):
    async def go(store: Store) -> None:
        clock = Clock(now_s=10 * 86_400.0 + 3600)
        found = quotas(store, clock, user=limits, prices={"run_code": 0.1})
        for _ in range(count):
            held = await found.reserve(action())
            held.start()
            held.add(usage)
            await held.settle(outcome())
        refused = await is_refused(found, action())
        listing = action(operation=FileOperation("list", "/"))
        assert await found.reserve(listing)  # uses nothing of it
        assert refused.code == "CW-BUDGET"
        assert isinstance(refused, Denied)
        assert what in refused.message
        assert refused.retry_after_s == 23 * 3600
        assert not refused.is_repeated
        assert await found.reserve(action(BOB))  # of one user
        assert await found.reserve(action(None))  # a user of this machine
        clock.now_s += refused.retry_after_s
        assert await found.reserve(action())

    in_store(sqlite_settings, go)


@pytest.mark.parametrize("resource", ["runs", "cpu_s", "sent_bytes", "money"])
def test_there_is_room_until_a_budget_is_used_up_and_asking_costs_nothing(
    sqlite_settings, resource
):
    async def go(store: Store) -> None:
        found = quotas(store, user={resource: 2.0}, prices={"run_code": 1.0})
        for _ in range(2):
            assert await found.has_room(action())
            assert await found.has_room(action())
            held = await found.reserve(action())
            held.start()
            held.add(Usage(cpu_s=1.0, sent_bytes=1))
            await held.settle(outcome())
        before = await used(found)
        assert not await found.has_room(action())
        assert await used(found) == before == {f"user {resource}": 2.0}
        await is_refused(found, action())
        assert await found.has_room(action(BOB))
        assert await found.has_room(action(operation=FileOperation("list", ".")))

    in_store(sqlite_settings, go)


def test_runs_at_once_cannot_exceed_the_budget(settings):
    async def go(store: Store) -> None:
        async with open_store(settings) as other:
            both = [quotas(each, user={"runs": 5.0}) for each in (store, other)]
            calls = [lambda each=each: each.reserve(action()) for each in both * 8]
            found = await race(calls)
            refused = [each for each in found if isinstance(each, LimitExceeded)]
            assert len(refused) == 11
            assert await used(both[0]) == {"user runs": 5.0}

    in_store(settings, go)


def test_measured_usage_exceeds_a_budget_by_no_more_than_the_runs_under_way(sqlite_settings):
    async def go(store: Store) -> None:
        found = quotas(store, user={"cpu_s": 10.0})
        held = [await found.reserve(action()) for _ in range(3)]
        for each in held:
            each.start()
            each.add(Usage(cpu_s=6.0))
            await each.settle(outcome())
        await is_refused(found, action())
        assert await used(found) == {"user cpu_s": 18.0}

    in_store(sqlite_settings, go)


@pytest.mark.parametrize("status", [Status.DENIED, Status.ERROR])
def test_an_action_that_did_not_run_costs_nothing(sqlite_settings, status):
    async def go(store: Store) -> None:
        limits = {"runs": 1.0, "money": 0.1, "cpu_s": 1.0}
        found = quotas(store, user=limits, prices=PRICES)
        for _ in range(3):
            held = await found.reserve(action())
            await held.settle(outcome(status))
        held = await found.reserve(action())
        held.start()
        await held.settle(outcome(Status.ERROR))
        assert await used(found) == {"user runs": 0.0, "user money": 0.0, "user cpu_s": 0.0}

    in_store(sqlite_settings, go)


@pytest.mark.parametrize("end", [None, outcome(Status.ERROR)])
def test_a_run_that_is_cancelled_or_breaks_its_sandbox_pays_for_what_it_used(sqlite_settings, end):
    """Else a client that hangs up before the end runs for free."""

    async def go(store: Store) -> None:
        found = quotas(store, user={"runs": 9.0, "cpu_s": 9.0})
        held = await found.reserve(action())
        held.start()
        held.add(Usage(cpu_s=3.0))
        await held.settle(end)
        after = {"user runs": 1.0 if end is None else 0.0, "user cpu_s": 3.0}
        assert await used(found) == after
        # The control: cancelled while a person was asked, so nothing has run.
        held = await found.reserve(action())
        await held.settle(end)
        assert await used(found) == after

    in_store(sqlite_settings, go)


def test_what_runs_on_is_booked_in_its_own_period_until_the_budget_is_used_up(settings):
    async def go(store: Store) -> None:
        clock = Clock(now_s=10 * 86_400.0)
        limits = {"cpu_s": 3.0, "runs": 9.0, "money": 1.6}
        found = quotas(store, clock, user=limits, prices=PRICES)
        held = await found.reserve(action())
        held.start()
        await held.settle(outcome())
        for cpu_s in (1.0, 1.5):
            held.add(Usage(cpu_s=cpu_s))
            await held.book()
        await held.book()  # nothing new
        assert await used(found) == {"user runs": 1.0, "user cpu_s": 2.5, "user money": 1.35}
        held.add(Usage(cpu_s=0.5))
        with pytest.raises(LimitExceeded, match="3 CPU seconds"):
            await held.book()
        clock.now_s += 86_400.0
        held.add(Usage(cpu_s=0.25))
        await held.book()
        after = await used(found)
        assert (after["user cpu_s"], after["user runs"]) == (0.25, 0.0)

    in_store(settings, go)


def test_usage_that_could_not_be_booked_is_booked_before_the_next_action(sqlite_settings):
    class Failing:
        """A store that does not answer for a while."""

        def __init__(self, store: Store) -> None:
            self._store, self.fails = store, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def settle(self, charges: Any) -> None:
            if self.fails:
                raise StorageError("the database did not answer in time")
            await self._store.settle(charges)

    async def go(store: Store) -> None:
        failing = Failing(store)
        found = quotas(failing, user={"cpu_s": 9.0})
        held = await found.reserve(action())
        held.start()
        failing.fails = True
        held.add(Usage(cpu_s=8.0))
        await held.settle(outcome())
        with pytest.raises(StorageError):
            await found.reserve(action())
        failing.fails = False
        held = await found.reserve(action())
        held.start()
        held.add(Usage(cpu_s=1.0))
        await held.settle(outcome())
        assert await used(found) == {"user cpu_s": 9.0}

    in_store(sqlite_settings, go)


def test_a_cancelled_task_still_settles(sqlite_settings):
    async def go(store: Store) -> None:
        found = quotas(store, user={"runs": 9.0})
        held = await found.reserve(action())
        with anyio.CancelScope() as scope:
            scope.cancel()
            await held.settle(outcome(Status.DENIED))
        assert await used(found) == {"user runs": 0.0}

    in_store(sqlite_settings, go)


def test_an_administrator_sets_the_budget_of_one_user(settings):
    async def go(world: World) -> None:
        directory = world.accounts.directory
        runs = Meter("user", "usr_ann", "runs")
        found, other = world.accounts.quotas, world.another().quotas
        assert await other.budgets_of(ANN) == ()
        await directory.set_budget(runs, limit=0.0, period_s=3600.0, by=ROOT)
        for each in (found, other):  # in every process, at once
            assert await each.budgets_of(ANN) == (Budget(meter=runs, limit=0.0, period_s=3600.0),)
            await is_refused(each, action())
        assert await other.reserve(action(BOB))
        await directory.remove_budget(runs, by=ROOT)
        assert await other.reserve(action())
        with pytest.raises(Denied):
            await directory.set_budget(
                runs, limit=1.0, period_s=3600.0, by=Principal("eve", "http", "user")
            )
        for meter, limit, period_s in (
            (replace(runs, resource="gold"), 1.0, 3600.0),
            (replace(runs, kind="all"), 1.0, 3600.0),
            (runs, -1.0, 3600.0),
            (runs, float("nan"), 3600.0),
            (runs, 1.0, 0.0),
            (runs, 1.0, float("inf")),
        ):
            with pytest.raises(BadInput):
                await directory.set_budget(meter, limit=limit, period_s=period_s, by=ROOT)

    in_world(settings, go)
    changes = [record["body"].get("change") for record in audit_records()]
    assert changes.count("set budget") == 1


def test_without_budgets_nothing_is_written(sqlite_settings):
    class Reading:
        def __init__(self, store: Store) -> None:
            self.revision, self.budgets = store.revision, store.budgets

    async def go(store: Store) -> None:
        found = quotas(Reading(store))
        for operation in (RunCommand(("true",)), RunCode("python", b"")):
            held = await found.reserve(action(operation=operation))
            held.start()
            held.add(Usage(cpu_s=1.0))
            await held.settle(outcome())

    in_store(sqlite_settings, go)
