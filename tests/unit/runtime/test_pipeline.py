"""The steps of an action, their order, and what a failure of each becomes (AUD-1, ERR-2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import anyio
import pytest

from cellwall.accounts.roles import Roles
from cellwall.core.approvals import Answer, Question, denial
from cellwall.core.errors import (
    AuditFailed,
    BadInput,
    Busy,
    CellwallError,
    Denied,
    SandboxFailed,
    SkillRefused,
)
from cellwall.core.files import FileOperation
from cellwall.core.limits import LimitName
from cellwall.core.network import EgressUsage, Page, SecretUse
from cellwall.core.outcomes import ErrorInfo, Event, EventKind, Finding, RunResult, Status
from cellwall.core.sandbox_ports import Slot
from cellwall.core.skills import Skill
from cellwall.core.types import (
    Action,
    FetchUrl,
    OutputSink,
    Principal,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    WorkspaceMode,
    WorkspaceMount,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.bounds import ActionBounds
from cellwall.runtime.destination_questions import DestinationQuestions
from cellwall.runtime.egress import ConfiguredReach
from cellwall.runtime.pipeline import Runtime
from cellwall.sandbox.stop_flag import StopFlag

INPUT_FINDING = Finding("input", "low", "seen on the way in")
NETWORK_FINDING = Finding("network", "low", "seen on egress")
BORDER_FINDING = Finding("workspace", "medium", "seen after the run")


class Ending:
    """A sink that says which of its pieces it has seen, and when there was no more."""

    def __init__(self, sink: OutputSink, steps: list[str]) -> None:
        self._sink, self._steps = sink, steps

    def __call__(self, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        self._sink(name, chunk.upper())

    def end(self) -> None:
        self._steps.append("end of output")


@dataclass
class Stage:
    """All ports at once; each writes down that it was called, and fails if told to."""

    verdict: Verdict = Verdict.ALLOW
    fails: dict[str, BaseException] = field(default_factory=dict)
    result: RunResult = RunResult(0, stdout=b"out")
    steps: list[str] = field(default_factory=list)
    tidied: int = 0
    events: list[Event] = field(default_factory=list)
    id: str | None = "act_workspace"
    mount: WorkspaceMount = WorkspaceMount(mode=WorkspaceMode.PRIVATE)
    shown: tuple[Skill, ...] = ()
    ran: Action | None = None
    network: object = None
    domains: tuple[str, ...] = ()

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name in self.fails:
            raise self.fails[name]

    def screen(self, action: Action) -> Sequence[Finding]:
        self._step("screen")
        return (INPUT_FINDING,)

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision:
        assert findings == (INPUT_FINDING,)
        self._step("judge")
        return Decision(self.verdict, "rule", "because", "test")

    timeout_s = 1.0

    async def ask(self, question: Question, *, near: object = None) -> Answer:
        self._step("ask")
        return denial("nobody is here")

    def write(self, event: Event) -> str:
        self._step(f"write {event.kind.value}")
        self.events.append(event)
        return f"aud_{len(self.events)}"

    @asynccontextmanager
    async def _lease(self, name: str, what: object) -> AsyncIterator[object]:
        self._step(f"take {name}")
        try:
            yield what
        finally:
            self.steps.append(f"release {name}")

    def lease(self, action: Action | None = None, *, memory_bytes: int = 0) -> object:
        if action is None:
            return self._lease("slot", Slot(0, memory_bytes))
        return self._lease("workspace", self)

    env: ClassVar = {"HTTP_PROXY": "http://inside", "MINE": "the proxy's"}
    files: ClassVar = {"ca.pem": b"authority"}
    usage: ClassVar = EgressUsage(connections=2, bytes_up=3, bytes_down=4)

    def session(self, action: Action, secrets: Sequence[SecretUse]) -> object:
        assert [use.name for use in secrets] == list(action.secrets)
        return self._lease("egress", self)

    async def fetch(self, action: Action, secrets: Sequence[SecretUse]) -> Page:
        self._step("fetch")
        return Page(
            url="https://a.example/",
            status=200,
            content_type="text/plain",
            text="page",
            body=b"page",
        )

    def take_sent_bytes(self) -> int:
        return 3

    def take_findings(self) -> tuple[Finding, ...]:
        return (NETWORK_FINDING,)

    def allow(self, session_id: str, domains: Sequence[str]) -> None:
        self._step(f"allow {session_id[:3]} {','.join(domains)}")

    def tidy_up(self) -> None:
        self.tidied += 1

    def is_live(self, wanted: Action, _mount: object) -> bool:
        return wanted.session_id is not None

    async def run(
        self,
        action: Action,
        *,
        slot: Slot,
        workspace: object,
        sink: OutputSink | None,
        tools: object = None,
        skills: Sequence[Skill] = (),
        network: object = None,
    ) -> RunResult:
        self._step("run")
        self.ran, self.network = action, network
        self.shown = tuple(skills)
        await anyio.lowlevel.checkpoint()
        if sink is not None:
            sink("stdout", b"out")
        return self.result

    def used_bytes(self) -> int | None:
        return None

    async def settle(self) -> Sequence[Finding]:
        self._step("settle")
        return (BORDER_FINDING,)

    def clean(self, action: Action, result: RunResult) -> RunResult:
        self._step("clean")
        return result

    def redact(self, text: str) -> str:
        self._step_if_failing("redact")
        return text.replace("hunter2", "[redacted]")

    def _step_if_failing(self, name: str) -> None:
        if name in self.fails:
            raise self.fails[name]

    def tell(self, action: Action, text: str) -> str:
        return f"marked: {text}"

    def stream(self, sink: OutputSink) -> Ending:
        return Ending(sink, self.steps)

    def operate(self, action: Action) -> object:
        self._step("operate")
        return b"content"

    def load(self, names: Sequence[str]) -> tuple[Skill, ...]:
        self._step("verify skills")
        return tuple(Skill(name, {}, frozenset(), f"digest of {name}", ()) for name in names)

    def runtime(self) -> Runtime:
        bounds = ActionBounds(max_code_bytes=1000, max_stdin_bytes=1000)
        return Runtime(
            stop=StopFlag("/nowhere"), bounds=bounds, roles=Roles(), policy=self, approvals=self, guard=self, audit=self, governor=self, sandbox=self, workspaces=self, skills=self, vault=Lender(self), egress=self, installer=self, destinations=DestinationQuestions(1.0), reach=ConfiguredReach(self.domains),
        )  # type: ignore[arg-type]  # one class plays every port  # fmt: skip


@dataclass
class Lender:
    """The vault, whose leases have another form."""

    stage: Stage

    @asynccontextmanager
    async def lease(self, action: Action) -> AsyncIterator[tuple[SecretUse, ...]]:
        self.stage._step("lend")
        yield tuple(
            SecretUse(
                name=name, placeholder=f"placeholder of {name}", bindings=(), reveal=lambda: b"v"
            )
            for name in action.secrets
        )
        self.stage.steps.append("end of loan")


def action(**changes: object) -> Action:
    return replace(
        Action(principal=Principal("me", "sdk"), operation=RunCommand(("true",))), **changes
    )


def perform(stage: Stage, wanted: Action | None = None, sink: OutputSink | None = None):
    return anyio.run(partial(stage.runtime().perform, wanted or action(), sink=sink))


BEFORE = ["screen", "judge", "write intent"]
LEASED = [*BEFORE, "take slot", "take workspace"]
RELEASED = ["release workspace", "release slot"]


@pytest.mark.requirement("AUD-1")
def test_steps_come_in_their_order_and_the_intent_is_written_before_the_run() -> None:
    stage = Stage()
    outcome = perform(stage)
    assert stage.steps == [*LEASED, "run", "settle", "clean", *RELEASED, "write outcome"]
    assert stage.tidied == 1
    assert (outcome.status, outcome.stdout, outcome.audit_id) == (Status.OK, "out", "aud_1")
    assert outcome.findings == (INPUT_FINDING, BORDER_FINDING)
    assert [event.kind for event in stage.events] == [EventKind.INTENT, EventKind.OUTCOME]


@pytest.mark.requirement("OBS-3")
def test_nothing_begins_during_a_stop_and_the_refusal_is_written(tmp_path: Path) -> None:
    stage, flag = Stage(), StopFlag(str(tmp_path))
    flag.set({})
    runtime = replace(stage.runtime(), stop=flag)
    outcome = anyio.run(runtime.perform, action())
    assert stage.steps == ["write denial"]
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (Status.DENIED, "CW-STOPPED")


@pytest.mark.requirement("OBS-3")
def test_an_action_that_was_judged_before_a_stop_has_no_effect_after_it(tmp_path: Path) -> None:
    flag = StopFlag(str(tmp_path))

    class Stopped(Stage):
        def write(self, event: Event) -> str:
            flag.set({})
            return super().write(event)

    stage = Stopped()
    outcome = anyio.run(replace(stage.runtime(), stop=flag).perform, action())
    assert stage.steps == [*BEFORE, "write denial"]
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (Status.DENIED, "CW-STOPPED")


@pytest.mark.requirement("AUD-1")
def test_an_intent_that_cannot_be_written_refuses_and_nothing_runs() -> None:
    stage = Stage(fails={"write intent": AuditFailed("the disk is full")})
    outcome = perform(stage)
    assert stage.steps == BEFORE
    assert (outcome.status, outcome.error) == (
        Status.ERROR,
        ErrorInfo("CW-AUDIT-FAILED", "the disk is full"),
    )


@pytest.mark.requirement("AUD-1")
def test_an_outcome_that_cannot_be_written_is_an_error_that_shows_no_output() -> None:
    outcome = perform(Stage(fails={"write outcome": AuditFailed("the disk is full")}))
    assert (outcome.status, outcome.stdout, outcome.error) == (
        Status.ERROR, "", ErrorInfo("CW-AUDIT-FAILED", "the disk is full"),
    )  # fmt: skip


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.ASK])
def test_what_is_not_allowed_is_a_denied_value_and_nothing_runs(verdict: Verdict) -> None:
    stage = Stage(verdict=verdict)
    outcome = perform(stage)
    asked = ["ask"] if verdict is Verdict.ASK else []
    assert stage.steps == ["screen", "judge", *asked, "write denial"]
    assert (outcome.status, outcome.decision.verdict) == (Status.DENIED, Verdict.DENY)
    assert outcome.error is not None
    assert outcome.error.code == "CW-DENIED"
    assert "because" in outcome.error.message


@pytest.mark.requirement("AUD-1")
def test_a_denial_that_cannot_be_written_still_denies() -> None:
    stage = Stage(verdict=Verdict.DENY, fails={"write denial": AuditFailed("full")})
    outcome = perform(stage)
    assert (outcome.status, stage.steps) == (Status.ERROR, ["screen", "judge", "write denial"])


FAILING = ("screen", "judge", "take slot", "take workspace", "run", "settle", "clean")


@pytest.mark.requirement("ERR-2", "ERR-1")
@pytest.mark.parametrize("step", FAILING)
def test_a_failing_step_is_an_error_outcome_with_its_code_and_is_recorded(step: str) -> None:
    error = SandboxFailed("it broke", hint="fix it", code="CW-TEST", detail="for the record alone")
    stage = Stage(fails={step: error})
    outcome = perform(stage)
    assert (outcome.status, outcome.error, outcome.stdout) == (
        Status.ERROR,
        ErrorInfo("CW-TEST", "it broke", "fix it"),
        "",
    )
    assert "for the record alone" not in str(outcome.to_json())
    last = stage.events[-1]
    assert (last.kind, last.body["code"], last.body["detail"]) == (
        EventKind.OUTCOME,
        "CW-TEST",
        "for the record alone",
    )
    assert [s for s in stage.steps if s.startswith("release")] == _released_after(step)


def _released_after(step: str) -> list[str]:
    return {"screen": [], "judge": [], "take slot": [], "take workspace": ["release slot"]}.get(
        step, RELEASED
    )


@pytest.mark.requirement("FS-3", "FS-4")
@pytest.mark.parametrize("how", ["it broke", "cancelled", "a bug"])
def test_the_border_is_settled_even_when_the_run_does_not_end_well(how: str) -> None:
    # What code wrote by then lies in the user's directory, whoever interrupted it.
    errors: dict[str, BaseException] = {
        "it broke": SandboxFailed("x"),
        "a bug": ZeroDivisionError(),
    }
    stage = Stage(fails={"run": errors[how]} if how in errors else {})

    async def interrupted() -> None:
        with anyio.CancelScope() as scope:
            if how == "cancelled":
                scope.cancel()
            try:
                await stage.runtime().perform(action())
            except ZeroDivisionError:
                pass

    anyio.run(interrupted)
    assert "settle" in stage.steps
    assert stage.steps[-1] == "write outcome"


def test_a_failed_step_is_told_even_if_it_cannot_be_recorded() -> None:
    stage = Stage(fails={"run": Busy("full", code="CW-BUSY"), "write outcome": AuditFailed("full")})
    outcome = perform(stage)
    assert outcome.error == ErrorInfo("CW-BUSY", "full")


def test_cancellation_gives_every_lease_back_and_is_recorded() -> None:
    stage = Stage()

    async def cancelled() -> bool:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await stage.runtime().perform(action())
        return scope.cancelled_caught

    assert anyio.run(cancelled)
    assert [s for s in stage.steps if s.startswith("release")] == RELEASED
    assert stage.events[-1].body["status"] == "interrupted"


def test_a_bug_leaves_as_itself_with_leases_given_back_and_recorded() -> None:
    stage = Stage(fails={"run": ZeroDivisionError("bug")})
    with pytest.raises(ZeroDivisionError):
        perform(stage)
    assert [s for s in stage.steps if s.startswith("release")] == RELEASED
    assert stage.events[-1].body["status"] == "interrupted"


@pytest.mark.parametrize(
    ("result", "status", "exit_code"),
    [
        (RunResult(0), Status.OK, 0),
        (RunResult(3), Status.FAILED, 3),
        (RunResult(None, limit=LimitName.WALL), Status.LIMIT, 124),
        (RunResult(0, limit=LimitName.WALL), Status.LIMIT, 124),
        (RunResult(1, limit=LimitName.MEMORY), Status.LIMIT, 137),
        (RunResult(0, limit=LimitName.OUTPUT), Status.LIMIT, 137),
        (RunResult(5, limit=LimitName.DISK), Status.LIMIT, 5),
    ],
)
def test_a_limit_never_looks_like_a_success(
    result: RunResult, status: Status, exit_code: int
) -> None:
    outcome = perform(Stage(result=result))
    assert (outcome.status, outcome.exit_code) == (status, exit_code)


def test_a_file_operation_takes_no_slot_and_no_sandbox() -> None:
    stage = Stage()
    outcome = perform(
        stage, action(operation=FileOperation("read", "a"), session_id="sbx_" + "a" * 26)
    )
    assert stage.steps == [*BEFORE, "operate", "clean", "write outcome"]
    assert (outcome.status, outcome.payload) == (Status.OK, b"content")


@pytest.mark.requirement("GRD-5")
def test_what_is_handed_on_as_it_comes_passes_the_guard_which_learns_when_it_ends() -> None:
    stage, seen = Stage(), list[tuple[str, bytes]]()
    perform(stage, action(), sink=lambda name, chunk: seen.append((name, chunk)))
    assert seen == [("stdout", b"OUT")]
    assert stage.steps.index("settle") < stage.steps.index("end of output")
    assert stage.steps.index("end of output") < stage.steps.index("clean")


@pytest.mark.requirement("GRD-5", "ERR-1")
def test_an_error_holds_no_secret_and_is_marked_for_a_model() -> None:
    fails = {"run": SandboxFailed("hunter2 was not found")}
    outcome = perform(Stage(fails=dict(fails)))
    assert (outcome.error and outcome.error.message, outcome.shown) == (
        "[redacted] was not found",
        "",
    )
    outcome = perform(Stage(fails=dict(fails)), action(audience="model"))
    assert outcome.shown == "marked: [redacted] was not found"


def test_an_error_that_the_guard_cannot_read_is_not_told() -> None:
    stage = Stage(fails={"run": SandboxFailed("hunter2"), "redact": SandboxFailed("rules")})
    outcome = perform(stage)
    assert (outcome.status, outcome.error and outcome.error.message) == (
        Status.ERROR,
        "the action failed, and its error message could not be redacted",
    )


@pytest.mark.requirement("GRD-3")
def test_what_a_person_must_agree_to_is_not_shown_without_a_yes() -> None:
    stage = Stage(result=RunResult(0, shown="the page", withheld="it may hold an attack"))
    outcome = perform(stage, action(audience="model"))
    assert (outcome.status, outcome.shown) == (
        Status.OK,
        "[cellwall: withheld: it may hold an attack]",
    )
    assert "ask" in stage.steps


def test_nobody_unnamed_passes() -> None:
    stage = Stage()
    outcome = perform(stage, action(principal=Principal("", "sdk")))
    assert (outcome.status, outcome.error and outcome.error.code) == (Status.ERROR, "CW-BAD-INPUT")
    assert stage.steps == ["write outcome"]


@pytest.mark.requirement("AUD-1")
def test_the_intent_names_variables_but_never_tells_their_values_nor_stdin() -> None:
    stage = Stage()
    perform(
        stage, action(env={"TOKEN": "hunter2"}, stdin=b"hunter2", operation=RunCode("python", b"1"))
    )
    assert "hunter2" not in repr(stage.events)
    assert (stage.events[0].body["env_names"], stage.events[0].body["stdin_bytes"]) == (
        ["TOKEN"],
        7,
    )


def test_only_raise_for_status_raises() -> None:
    for stage in (
        Stage(verdict=Verdict.DENY),
        Stage(result=RunResult(1)),
        Stage(fails={"run": BadInput("x")}),
    ):
        with pytest.raises(CellwallError):
            perform(stage).raise_for_status()
    assert perform(Stage()).raise_for_status().status is Status.OK


@pytest.mark.requirement("SKL-1")
def test_skills_are_verified_after_the_judge_and_named_in_the_intent() -> None:
    stage = Stage()
    outcome = perform(stage, action(skills=("one", "two")))
    assert outcome.status is Status.OK
    assert stage.steps[:4] == ["screen", "judge", "verify skills", "write intent"]
    assert [skill.name for skill in stage.shown] == ["one", "two"]
    assert stage.events[0].body["skills"] == {"one": "digest of one", "two": "digest of two"}


@pytest.mark.requirement("SKL-1")
def test_a_skill_that_does_not_verify_refuses_the_action() -> None:
    stage = Stage(fails={"verify skills": SkillRefused("changed", code="CW-SKILL-CHANGED")})
    outcome = perform(stage, action(skills=("one",)))
    assert outcome.status is Status.ERROR
    assert outcome.error == ErrorInfo("CW-SKILL-CHANGED", "changed")
    assert stage.steps == ["screen", "judge", "verify skills", "write outcome"]


@pytest.mark.requirement("SKL-1")
def test_what_is_denied_has_no_skill_looked_at() -> None:
    stage = Stage(verdict=Verdict.DENY)
    perform(stage, action(skills=("one",)))
    assert stage.steps == ["screen", "judge", "write denial"]


@pytest.mark.requirement("NET-2", "SEC-5")
def test_egress_is_leased_after_the_intent_and_its_variables_hold_placeholders() -> None:
    stage = Stage()
    wanted = action(
        allow_domains=("a.example",), secrets=("TOKEN",), env={"MINE": "1", "TOKEN": "forged"}
    )
    outcome = perform(stage, wanted)
    assert outcome.status is Status.OK
    assert outcome.findings == (INPUT_FINDING, NETWORK_FINDING, BORDER_FINDING)
    assert stage.steps == [
        *LEASED,
        "lend",
        "take egress",
        "run",
        "release egress",
        "end of loan",
        "settle",
        "clean",
        *RELEASED,
        "write outcome",
    ]
    assert stage.ran is not None
    assert stage.ran.env == {
        "HTTP_PROXY": "http://inside",
        "MINE": "1",
        "TOKEN": "placeholder of TOKEN",
    }
    assert stage.network is stage
    assert stage.events[0].body["allow_domains"] == ["a.example"]
    assert stage.events[0].body["secrets"] == ["TOKEN"]


@pytest.mark.requirement("NET-1")
def test_without_domains_there_is_no_egress_and_no_vault() -> None:
    stage = Stage()
    perform(stage)
    assert stage.network is None
    assert "lend" not in stage.steps


@pytest.mark.requirement("NET-2", "RBAC-2")
def test_domains_of_the_configuration_are_for_those_who_may_use_the_network() -> None:
    stage = Stage(domains=("mirror.example",))
    perform(stage, action(allow_domains=("a.example",)))
    assert stage.ran is not None
    assert stage.ran.allow_domains == ("a.example", "mirror.example")
    bound = Stage(domains=("mirror.example",))
    perform(bound, action(principal=Principal("me", "sdk", "user")))
    assert bound.ran is not None
    assert (bound.ran.allow_domains, bound.network) == ((), None)


@pytest.mark.requirement("NET-4")
def test_a_fetch_is_judged_recorded_and_cleaned_and_needs_no_sandbox() -> None:
    stage = Stage()
    outcome = perform(stage, action(operation=FetchUrl("https://a.example/")))
    assert stage.steps == [*BEFORE, "lend", "fetch", "end of loan", "clean", "write outcome"]
    assert (outcome.text, outcome.payload.status) == ("page", 200)
    assert stage.events[0].body["url"] == "https://a.example/"
    assert stage.events[1].body["page"] == {"url": "https://a.example/", "status": 200}


@pytest.mark.requirement("NET-2")
def test_the_domains_of_a_live_sandbox_change_only_when_that_was_allowed() -> None:
    wanted = action(
        operation=SetDomains(("b.example",)),
        allow_domains=("b.example",),
        session_id="sbx_" + "0" * 26,
    )
    stage = Stage()
    assert perform(stage, wanted).status is Status.OK
    assert stage.steps == [*BEFORE, "allow sbx b.example", "write outcome"]
    denied = Stage(verdict=Verdict.DENY)
    assert perform(denied, wanted).status is Status.DENIED
    assert "allow sbx b.example" not in denied.steps
    assert perform(Stage(), replace(wanted, session_id=None)).status is Status.ERROR


def client_action(stage: Stage, **changes: object) -> Action:
    """A client outside that is held for one step."""

    async def hold(files: object, env: object) -> None:
        stage._step("hold")
        assert (files, env) == (
            Stage.files, {**Stage.env, **{name: f"placeholder of {name}" for name in made.secrets}}
        )  # fmt: skip

    operation = ServeClient("agent", b"digest", hold, address="127.0.0.1:1")
    made = action(operation=operation, **{"allow_domains": ("a.example",), **changes})
    return made


@pytest.mark.requirement("NET-8", "AUD-1", "SEC-5")
def test_a_client_outside_is_served_between_its_intent_and_its_outcome() -> None:
    stage = Stage()
    outcome = perform(stage, client_action(stage, secrets=("TOKEN",)))
    leased = [*BEFORE, "lend", "take egress"]
    released = ["release egress", "end of loan"]
    assert stage.steps == [*leased, "hold", *released, "clean", "write outcome"]
    assert (outcome.status, outcome.payload) == (Status.OK, Stage.usage)
    assert outcome.findings == (INPUT_FINDING, NETWORK_FINDING)
    intent, ended = (event.body for event in stage.events)
    assert (intent["client"], intent["address"]) == ("agent", "127.0.0.1:1")
    assert (intent["allow_domains"], intent["secrets"]) == (["a.example"], ["TOKEN"])
    assert ended["egress"] == {"connections": 2, "bytes_up": 3, "bytes_down": 4}
    assert "digest" not in repr([event.body for event in stage.events])


@pytest.mark.requirement("NET-8", "AUD-1")
@pytest.mark.parametrize(
    ("stage", "changes", "status"),
    [
        (Stage(verdict=Verdict.DENY), {}, Status.DENIED),
        (Stage(verdict=Verdict.ASK), {}, Status.DENIED),
        (Stage(fails={"write intent": AuditFailed("the disk is full")}), {}, Status.ERROR),
        (Stage(fails={"lend": BadInput("no such secret")}), {}, Status.ERROR),
        (Stage(), {"allow_domains": ()}, Status.ERROR),
        (Stage(), {"principal": Principal("me", "sdk", "guest")}, Status.DENIED),
    ],
)
def test_a_client_that_a_step_refuses_is_never_served(
    stage: Stage, changes: dict[str, object], status: Status
) -> None:
    assert perform(stage, client_action(stage, **changes)).status is status
    assert "hold" not in stage.steps


@pytest.mark.requirement("NET-8")
def test_a_client_whose_proxy_is_cancelled_gives_its_leases_back() -> None:
    stage = Stage()

    async def cancelled() -> bool:
        with anyio.CancelScope() as scope:

            async def hold(*_: object) -> None:
                scope.cancel()
                await anyio.sleep_forever()

            operation = ServeClient("agent", b"", hold)
            wanted = action(operation=operation, allow_domains=("a.example",))
            await stage.runtime().perform(wanted)
        return scope.cancelled_caught

    assert anyio.run(cancelled)
    assert stage.steps[-2:] == ["release egress", "write outcome"]
    assert stage.events[-1].body["status"] == "interrupted"


@pytest.mark.requirement("POL-8")
def test_what_cannot_be_shown_to_a_person_is_denied_and_recorded_as_a_denial() -> None:
    stage = Stage(fails={"judge": Denied("too much to show", hint="less", code="CW-ASK-TOO-MUCH")})
    outcome = perform(stage)
    assert (outcome.status, outcome.error) == (
        Status.DENIED,
        ErrorInfo("CW-ASK-TOO-MUCH", "too much to show", "less"),
    )
    assert [event.kind for event in stage.events] == [EventKind.DENIAL]
