"""Each numbered step has a span, however it ends, and no span says what the action said (OBS-1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import anyio
import pytest

from cellwall.core.errors import AuditFailed, SandboxFailed
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Outcome, RunResult
from cellwall.core.types import Action, FetchUrl, Principal, RunCommand, ToolResult
from cellwall.core.verdict import Verdict
from cellwall.telemetry import names
from cellwall.telemetry.service import Telemetry
from cellwall.telemetry.traces import Traces, otlp_processor
from unit.runtime.test_pipeline import Stage, action
from unit.telemetry.collector import Collector, attributes, collecting

SECRET = "ghp_" + "q7Zk2" * 7 + "x"
ALL = ["bound", "who", "guard-input", "judge", "intent", "lease", "run", "guard-output", "outcome"]


@contextmanager
def traced(**options: float) -> Iterator[tuple[Telemetry, Collector]]:
    with collecting() as collector:
        traces = Traces(otlp_processor(collector.url), version="1", **options)
        yield Telemetry(None, traces), collector


def perform(stage: Stage, telemetry: Telemetry, wanted: Action | None = None) -> Outcome:
    runtime = replace(stage.runtime(), telemetry=telemetry)
    return anyio.run(runtime.perform, wanted or action())


def steps_of(collector: Collector) -> list[tuple[str, str, str]]:
    """Name, error code and status of each step, in the order of their begin."""
    steps = [each for each in collector.spans if each.name != names.ACTION_SPAN]
    return [
        (
            span.name.removeprefix("cellwall.step."),
            attributes(span).get("cellwall.error_code", ""),
            attributes(span).get("cellwall.status", ""),
        )
        for span in sorted(steps, key=lambda span: span.start_time_unix_nano)
    ]


@pytest.mark.requirement("OBS-1")
def test_an_allowed_run_has_a_span_for_each_step_below_that_of_the_action() -> None:
    with traced() as (telemetry, collector):
        outcome = perform(Stage(), telemetry)
        telemetry.close()
        (whole,) = collector.named(names.ACTION_SPAN)
        assert steps_of(collector) == [(each, "", "") for each in ALL]
        assert {span.parent_span_id for span in collector.spans} == {b"", whole.span_id}
        assert {span.trace_id for span in collector.spans} == {whole.trace_id}
        assert attributes(whole) == {
            "cellwall.action_id": outcome.action_id,
            "cellwall.operation": "run-command",
            "cellwall.interface": "sdk",
            "cellwall.verdict": "allow",
            "cellwall.status": "ok",
            "cellwall.audit_id": outcome.audit_id,
        }
        assert collector.paths == ["/v1/traces"]
    ends = sorted(collector.spans, key=lambda span: span.end_time_unix_nano)
    assert ends[-1].name == names.ACTION_SPAN


FAILING = {
    "screen": "guard-input",
    "judge": "judge",
    "write intent": "intent",
    "take slot": "lease",
    "take workspace": "lease",
    "run": "run",
    "settle": "run",
    "clean": "guard-output",
}


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize("port", FAILING)
def test_a_step_that_fails_has_a_span_with_the_code_of_its_error(port: str) -> None:
    kind = AuditFailed if port.startswith("write") else SandboxFailed
    with traced() as (telemetry, collector):
        error = kind(f"it broke with {SECRET}", code="CW-TEST", detail=SECRET)
        perform(Stage(fails={port: error}), telemetry)
        telemetry.close()
        failed = FAILING[port]
        before = ALL[: ALL.index(failed)]
        expected = [(each, "", "") for each in before]
        assert steps_of(collector) == [*expected, (failed, "CW-TEST", ""), ("outcome", "", "")]
        (whole,) = collector.named(names.ACTION_SPAN)
        assert attributes(whole)["cellwall.error_code"] == "CW-TEST"
        assert all(SECRET.encode() not in body for body in collector.bodies)


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.ASK])
def test_a_denial_has_spans_up_to_its_record(verdict: Verdict) -> None:
    asked = ["ask"] if verdict is Verdict.ASK else []
    with traced() as (telemetry, collector):
        perform(Stage(verdict=verdict), telemetry)
        telemetry.close()
        shown = ["bound", "who", "guard-input", "judge", *asked, "outcome"]
        assert steps_of(collector) == [(each, "", "") for each in shown]
        (whole,) = collector.named(names.ACTION_SPAN)
        assert attributes(whole)["cellwall.status"] == "denied"
        assert attributes(whole)["cellwall.error_code"] == "CW-DENIED"


@pytest.mark.requirement("OBS-1")
def test_a_cancelled_action_ends_its_spans_as_interrupted() -> None:
    async def cancelled(telemetry: Telemetry, stage: Stage) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await replace(stage.runtime(), telemetry=telemetry).perform(action())

    with traced() as (telemetry, collector):
        anyio.run(cancelled, telemetry, Stage())
        telemetry.close()
        assert steps_of(collector)[-1] == ("run", "", "interrupted")
        (whole,) = collector.named(names.ACTION_SPAN)
        assert attributes(whole)["cellwall.status"] == "interrupted"


@pytest.mark.requirement("OBS-1")
def test_a_bug_ends_the_spans_and_its_message_is_not_sent() -> None:
    with traced() as (telemetry, collector):
        with suppress(ZeroDivisionError):
            perform(Stage(fails={"run": ZeroDivisionError(SECRET)}), telemetry)
        telemetry.close()
        assert steps_of(collector)[-1] == ("run", "", "interrupted")
        assert all(SECRET.encode() not in body for body in collector.bodies)


OPERATIONS = {
    "file": (FileOperation("read", f"/workspace/{SECRET}"), ["run", "guard-output"]),
    "fetch-url": (FetchUrl(f"https://a.example/{SECRET}"), ["lease", "run", "guard-output"]),
    "run-command": (RunCommand(("echo", SECRET)), ["lease", "run", "guard-output"]),
}


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_span_holds_the_secret_of_a_command_path_url_variable_or_result(name: str) -> None:
    operation, steps = OPERATIONS[name]
    wanted = action(
        operation=operation,
        env={"TOKEN": SECRET},
        stdin=SECRET.encode() if name == "run-command" else None,
        principal=Principal(SECRET, SECRET),
    )
    assert SECRET in repr(wanted)  # the control
    with traced() as (telemetry, collector):
        stage = Stage(result=RunResult(0, stdout=SECRET.encode()))
        outcome = perform(stage, telemetry, wanted)
        telemetry.close()
        assert name != "run-command" or outcome.stdout == SECRET
        assert [each for each, _, _ in steps_of(collector)] == [
            *ALL[:5], *steps, "outcome",
        ]  # fmt: skip
        (whole,) = collector.named(names.ACTION_SPAN)
        assert attributes(whole)["cellwall.operation"] == name
        assert attributes(whole)["cellwall.interface"] == "other"
        assert all(SECRET.encode() not in body for body in collector.bodies)
        known = set(names.ATTRIBUTES)
        assert {key for span in collector.spans for key in attributes(span)} <= known
        assert {span.name for span in collector.spans} <= set(names.SPANS)


@pytest.mark.requirement("OBS-1")
def test_the_result_of_a_tool_has_the_spans_of_its_steps() -> None:
    with traced() as (telemetry, collector):
        perform(Stage(), telemetry, action(operation=ToolResult("Bash", {"stdout": SECRET})))
        telemetry.close()
        shown = ["bound", "who", "guard-output", "outcome"]
        assert [each for each, _, _ in steps_of(collector)] == shown
        assert all(SECRET.encode() not in body for body in collector.bodies)


TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize("flags", ["00", "01"])
def test_a_request_with_a_traceparent_continues_that_trace_whatever_its_flag(flags: str) -> None:
    with traced() as (telemetry, collector):
        with telemetry.request(f"00-{TRACE}-{PARENT}-{flags}"):
            perform(Stage(), telemetry)
        perform(Stage(), telemetry)
        telemetry.close()
        first, second = collector.named(names.ACTION_SPAN)
        assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
        assert (second.trace_id.hex() == TRACE, second.parent_span_id) == (False, b"")


BAD = [
    "",
    "garbage",
    f"00-{TRACE}-{PARENT}",
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{TRACE.upper()}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-01-{SECRET}",
    f"00-{TRACE}-{PARENT}-01\n",
    "0" * 1_000_000,
    "00-\N{FULLWIDTH DIGIT ONE}" + TRACE[1:] + f"-{PARENT}-01",
]


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize("header", BAD, ids=range(len(BAD)))
def test_a_malformed_traceparent_begins_a_trace_of_its_own(header: str) -> None:
    with traced() as (telemetry, collector):
        with telemetry.request(header):
            perform(Stage(), telemetry)
        telemetry.close()
        (whole,) = collector.named(names.ACTION_SPAN)
        assert (whole.trace_id.hex() == TRACE, whole.parent_span_id) == (False, b"")


@pytest.mark.requirement("OBS-1")
def test_a_collector_that_refuses_or_is_gone_fails_no_action(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with traced() as (telemetry, collector):
        collector.status = 400
        assert perform(Stage(), telemetry).status == "ok"
        telemetry.close()
        assert len(collector.bodies) == 1
        address = collector.url
    telemetry = Telemetry(None, Traces(otlp_processor(address), version="1"))
    assert perform(Stage(), telemetry).status == "ok"
    telemetry.close()


@pytest.mark.requirement("OBS-1")
def test_a_ratio_of_zero_sends_nothing() -> None:
    with traced(ratio=0.0) as (telemetry, collector):
        perform(Stage(), telemetry)
        telemetry.close()
        assert collector.bodies == []
