"""Steps 2 and 5: a role bounds everything, and a question waits for a person (RBAC-2, POL-8)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cellwall.accounts.roles import Roles
from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import AuditFailed
from cellwall.core.outcomes import EventKind, Outcome, RunResult, Status
from cellwall.core.types import CallTool, Principal, RunCode
from cellwall.core.verdict import Verdict
from cellwall.runtime.approval_queue import ApprovalQueue
from cellwall.runtime.approvals import CallbackApprover
from cellwall.runtime.pipeline import Runtime
from unit.runtime.questions_for_tests import Record, broker_for, said
from unit.runtime.test_pipeline import LEASED, Stage, action

YES = CallbackApprover(lambda _: said(AnswerKind.ONCE))


def runtime(stage: Stage, home: str | None = None, **parts: object) -> Runtime:
    broker = broker_for(home, record=Writing(stage), timeout_s=60.0)
    return replace(stage.runtime(), **{"approvals": broker, **parts})


class Writing(Record):
    """The broker's events go to the same record as those of the pipeline."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def write(self, event: object) -> str:
        return self._stage.write(event)  # type: ignore[arg-type]  # an event


class Calling(Stage):
    """Its code calls a tool of the host."""

    async def record(self, event: object) -> str:
        return self.write(event)  # type: ignore[arg-type]  # an event

    async def run(self, wanted: object, *, tools: object = None, **_: object) -> RunResult:
        answer = await tools({"name": "add", "args": [1], "kwargs": {}})  # type: ignore[operator]
        return replace(self.result, value=answer)

    async def call(self, *_: object) -> int:
        return 3


def perform(found: Runtime, wanted: object = None, **more: object) -> Outcome:
    async def run() -> Outcome:
        return await found.perform(wanted or action(), **more)  # type: ignore[arg-type]

    return anyio.run(run)


# Step 2


@pytest.mark.requirement("RBAC-1", "RBAC-2")
@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_role_stands_before_policy_and_person(verdict: Verdict) -> None:
    stage = Stage(verdict=verdict)
    found = runtime(stage, roles=Roles(users={"me": "guest"}))
    outcome = perform(found, ask=YES)
    assert stage.steps == ["write denial"]  # neither guard nor policy nor a person was asked
    assert (outcome.status, outcome.decision.verdict) == (Status.DENIED, Verdict.DENY)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == (
        "CW-ROLE", "me has the role guest, which lacks sandbox:execute",
    )  # fmt: skip
    assert stage.events[0].body["rule"] == "role:guest"


@pytest.mark.requirement("RBAC-2")
def test_no_yes_gives_the_network_to_a_role_without_it() -> None:
    wanted = action(allow_domains=("example.org",))
    for role, status in (("user", Status.DENIED), ("power-user", Status.OK)):
        found = runtime(Stage(verdict=Verdict.ASK), roles=Roles(interfaces={"sdk": role}))
        assert perform(found, wanted, ask=YES).status is status


@pytest.mark.requirement("RBAC-1")
def test_an_interface_cannot_claim_more_than_the_configuration_gives() -> None:
    stage = Stage()
    found = runtime(stage, roles=Roles(default="guest"))
    outcome = perform(found, action(principal=Principal("me", "sdk", "owner")))
    assert outcome.status is Status.DENIED
    outcome = perform(runtime(Stage()), action(principal=Principal("me", "sdk", "guest")))
    assert outcome.status is Status.DENIED


@pytest.mark.requirement("RBAC-1")
def test_calls_of_tools_are_bound_by_the_role_of_the_code_that_makes_them() -> None:
    seen: list[Principal] = []

    class Judging(Calling):
        def judge(self, wanted: object, findings: object) -> object:
            seen.append(wanted.principal)  # type: ignore[attr-defined]
            return super().judge(wanted, findings)  # type: ignore[arg-type]

    stage = Judging()
    found = runtime(stage, roles=Roles(interfaces={"sdk": "user"}))
    wanted = action(operation=RunCode("python", b"1"), tools=("add",))
    assert perform(found, wanted, tools=stage).status is Status.OK
    assert [who.role for who in seen] == ["user", "user"]


# Step 5


@pytest.mark.requirement("POL-8")
def test_a_yes_runs_it_after_the_answer_and_the_intent_were_recorded() -> None:
    stage = Stage(verdict=Verdict.ASK)
    outcome = perform(runtime(stage), ask=YES)
    assert stage.steps[:6] == ["screen", "judge", "write approval", *LEASED[2:]]
    assert (outcome.status, outcome.decision.verdict) == (Status.OK, Verdict.ALLOW)
    assert outcome.decision.reason == "me (callback) allowed it this once; asked because: because"
    assert [event.kind for event in stage.events] == [
        EventKind.APPROVAL, EventKind.INTENT, EventKind.OUTCOME,
    ]  # fmt: skip
    assert len({event.action_id for event in stage.events}) == 1


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize(
    "ask",
    [None, CallbackApprover(lambda _: said(AnswerKind.DENY)), CallbackApprover(lambda _: None)],
)
def test_a_no_or_no_answer_denies_and_nothing_runs(ask: CallbackApprover | None) -> None:
    stage = Stage(verdict=Verdict.ASK)
    outcome = perform(runtime(stage), ask=ask)
    assert stage.steps == ["screen", "judge", "write approval", "write denial"]
    assert (outcome.status, outcome.decision.verdict) == (Status.DENIED, Verdict.DENY)


@pytest.mark.requirement("POL-8", "AUD-1")
def test_a_yes_that_cannot_be_recorded_runs_nothing() -> None:
    stage = Stage(verdict=Verdict.ASK, fails={"write approval": AuditFailed("full")})
    outcome = perform(runtime(stage), ask=YES)
    assert "run" not in stage.steps
    assert (outcome.status, outcome.error and outcome.error.code) == (
        Status.ERROR, "CW-AUDIT-FAILED",
    )  # fmt: skip


@pytest.mark.requirement("POL-8")
def test_while_a_question_waits_nothing_is_leased(state_home: str) -> None:
    stage = Stage(verdict=Verdict.ASK)
    seen: list[list[str]] = []

    def person(_: Question) -> Answer:
        seen.append(list(stage.steps))
        return said(AnswerKind.ONCE)

    perform(runtime(stage, state_home), ask=CallbackApprover(person))
    assert seen == [["screen", "judge"]]


@pytest.mark.requirement("POL-8")
def test_a_cancelled_question_is_denied_on_the_record(state_home: str) -> None:
    stage = Stage(verdict=Verdict.ASK)

    async def main() -> bool:
        with anyio.move_on_after(0.1) as scope:
            await runtime(stage, state_home).perform(action())
        return scope.cancelled_caught

    assert anyio.run(main)
    approval, outcome = stage.events
    assert (approval.kind, approval.body["verdict"]) == (EventKind.APPROVAL, "deny")
    assert (outcome.kind, outcome.body["status"]) == (EventKind.OUTCOME, "interrupted")
    assert "run" not in stage.steps
    assert ApprovalQueue(state_home).list_waiting() == []
    assert not list(Path(state_home, "approvals").glob(".*"))


def test_code_whose_tool_is_asked_about_waits_for_the_same_person() -> None:
    asked: list[str] = []

    class Judging(Calling):
        def judge(self, wanted: object, findings: object) -> object:
            decision = super().judge(wanted, findings)  # type: ignore[arg-type]
            is_call = isinstance(wanted.operation, CallTool)  # type: ignore[attr-defined]
            return replace(decision, verdict=Verdict.ASK) if is_call else decision

    def person(question: Question) -> Answer:
        asked.append(question.tool)
        return said(AnswerKind.ONCE)

    wanted = action(operation=RunCode("python", b"1"), tools=("add",))
    stage = Judging()
    outcome = perform(runtime(stage), wanted, tools=stage, ask=CallbackApprover(person))
    assert (asked, outcome.value) == (["add"], {"value": 3})


@pytest.mark.requirement("GRD-3", "POL-8")
def test_a_yes_to_the_call_is_no_yes_to_what_it_brings_back() -> None:
    asked: list[Question] = []

    def answer(question: Question) -> Answer:
        asked.append(question)
        return said(AnswerKind.SESSION if question.tool != "Show" else AnswerKind.DENY)

    stage = Stage(
        verdict=Verdict.ASK,
        result=RunResult(0, shown="the page", withheld="it may attack", results=({"png": "x"},)),
    )
    wanted = action(audience="model", session_id="sbx_" + "a" * 26)
    outcome = perform(runtime(stage), wanted, ask=CallbackApprover(answer))
    assert [question.tool for question in asked] == ["Bash", "Show"]
    assert (asked[1].call_sha256, asked[1].proposals) == ("", ())
    assert not asked[1].takes(AnswerKind.SESSION)
    assert outcome.shown == "[cellwall: withheld: it may attack]"
    assert outcome.results == ()
