"""Rates and budgets at step 2 of the pipeline, usage at step 10 (RBAC-4)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import anyio
import pytest

from cellwall.accounts.quotas import BudgetSettings, Quotas
from cellwall.accounts.rates import Rates, RateSettings
from cellwall.core.errors import AuditFailed, LimitExceeded, SandboxFailed
from cellwall.core.outcomes import EventKind, Outcome, RunResult, Status, Usage
from cellwall.core.types import AccountRef, Action, Principal, RunCode
from cellwall.core.verdict import Verdict
from cellwall.runtime.wiring import open_app
from cellwall.storage.engine import StorageSettings
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store
from conftest import audit_records
from databases import in_store
from unit.runtime.test_pipeline import LEASED, RELEASED, Stage, action

pytestmark = pytest.mark.requirement("RBAC-4")
ANN = AccountRef(user_id="usr_ann", teams=frozenset(), credential="tok_1", address="192.0.2.1")
PRINCIPAL = Principal("ann", "http", "user", None, ANN)


@dataclass
class Spy:
    """Plays the quota, as a part of the stage."""

    stage: Stage
    refusal: LimitExceeded | None = None
    settled: list[Outcome | None] = field(default_factory=list)
    added: list[Usage] = field(default_factory=list)

    async def reserve(self, _: Action) -> Spy:
        self.stage.steps.append("reserve")
        if self.refusal is not None:
            raise self.refusal
        return self

    def start(self) -> None:
        self.stage.steps.append("start")

    def add(self, usage: Usage) -> None:
        self.added.append(usage)

    async def book(self) -> None:
        raise AssertionError

    async def settle(self, outcome: Outcome | None) -> None:
        if not self.settled:
            self.stage.steps.append("pay")
        self.settled.append(outcome)


def perform(stage: Stage, spy: Spy, wanted: Action | None = None) -> Outcome:
    runtime = replace(stage.runtime(), quota=spy)
    return anyio.run(runtime.perform, wanted or action())


def refusal(*, is_repeated: bool = False) -> LimitExceeded:
    error = LimitExceeded("the budget is used up", hint="Wait.", code="CW-BUDGET")
    error.retry_after_s, error.is_repeated = 42.0, is_repeated
    return error


def test_an_action_is_paid_for_before_it_is_judged_and_after_it_ran():
    stage = Stage(result=RunResult(0, usage=Usage(cpu_s=2.0)))
    spy = Spy(stage)
    outcome = perform(stage, spy)
    begun = ["reserve", *LEASED[:3], "start", *LEASED[3:]]
    assert stage.steps == [*begun, "run", "settle", "clean", *RELEASED, "pay", "write outcome"]
    assert [each and each.status for each in spy.settled] == [Status.OK, Status.OK]
    assert spy.added == [outcome.usage] == [Usage(cpu_s=2.0)]


def test_a_used_up_budget_is_a_denial_with_its_reset_and_a_record():
    stage = Stage()
    outcome = perform(stage, Spy(stage, refusal()))
    assert stage.steps[0] == "reserve"
    assert not {"screen", "judge", "run"} & set(stage.steps)
    assert (outcome.status, outcome.decision.verdict) == (Status.DENIED, Verdict.DENY)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retry_after_s) == ("CW-BUDGET", 42.0)
    with pytest.raises(LimitExceeded) as caught:
        outcome.raise_for_status()
    assert caught.value.retry_after_s == 42.0
    (event,) = stage.events
    assert (event.kind, event.body["code"]) == (EventKind.DENIAL, "CW-BUDGET")


def test_a_refusal_that_repeats_is_recorded_once():
    stage = Stage()
    outcome = perform(stage, Spy(stage, refusal(is_repeated=True)))
    assert (outcome.status, stage.events) == (Status.DENIED, [])


@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.ASK])
def test_a_denied_action_is_settled_without_a_start(verdict):
    stage = Stage(verdict=verdict)
    spy = Spy(stage)
    perform(stage, spy)
    assert "start" not in stage.steps
    assert [each.status for each in spy.settled if each] == [Status.DENIED]


@pytest.mark.parametrize("step", ["run", "clean", "write intent", "write outcome"])
def test_a_failure_of_any_step_is_settled(step):
    error = AuditFailed("x") if step.startswith("write") else SandboxFailed("x")
    stage = Stage(fails={step: error}, result=RunResult(0, usage=Usage(cpu_s=2.0)))
    spy = Spy(stage)
    assert perform(stage, spy).status is Status.ERROR
    assert spy.settled[0] is not None
    # What was used is known before the output is cleaned and the outcome is written. Without a
    # measurement the time counts.
    measured = {"run": False, "write intent": None}.get(step, True)
    assert [each.cpu_s == 2.0 for each in spy.added] == ([] if measured is None else [measured])


def test_a_cancelled_action_is_settled():
    stage = Stage(fails={"run": KeyboardInterrupt()})
    spy = Spy(stage)
    with pytest.raises(KeyboardInterrupt):
        perform(stage, spy)
    assert spy.settled == [None]
    (added,) = spy.added
    assert 0 < added.cpu_s <= action().limits.cpu_s


def test_a_runtime_without_accounts_serves_none():
    stage = Stage()
    outcome = anyio.run(stage.runtime().perform, action(principal=PRINCIPAL))
    assert outcome.error is not None
    assert outcome.error.code == "CW-UNMETERED"
    assert "run" not in stage.steps


@pytest.mark.slow
def test_a_real_run_is_booked_by_what_was_measured(state_home):
    settings = StorageSettings(home=state_home)
    migrate(settings)
    app = open_app()
    code = b"import time\nwhile time.process_time() < 0.3: pass\nprint(1)"

    async def go(store: Store) -> None:
        budgets = BudgetSettings(user={"runs": 2.0, "cpu_s": 1000.0})
        quotas = Quotas(store, Rates(RateSettings()), budgets)
        runtime = app.metered(quotas).runtime
        # The interface is one of a person's own, so that no policy file is needed.
        wanted = Action(
            principal=replace(PRINCIPAL, interface="sdk"), operation=RunCode("python", code)
        )
        first = await runtime.perform(wanted)
        assert (first.status, first.stdout) == (Status.OK, "1\n")
        use = {each.budget.meter.resource: each.used for each in await quotas.usage_of(ANN)}
        assert use["runs"] == 1.0
        assert use["cpu_s"] == pytest.approx(first.usage.cpu_s)
        assert use["cpu_s"] >= 0.25
        found = [await runtime.perform(replace(wanted, id=f"act_{n}" + "0" * 24)) for n in "12"]
        assert [each.status for each in found] == [Status.OK, Status.DENIED]

    try:
        in_store(settings, go)
    finally:
        app.close()
    denied = audit_records(kind=EventKind.DENIAL)
    assert [record["body"]["code"] for record in denied] == ["CW-BUDGET"]
    assert "2 runs per 24 hours" in denied[0]["body"]["message"]
