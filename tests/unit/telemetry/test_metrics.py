"""Metrics as Prometheus reads them; their labels are ours, whatever a request says (OBS-1)."""

from __future__ import annotations

import math
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cellwall import accounts
from cellwall.core import types
from cellwall.core.errors import AuditFailed, SandboxFailed
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import Event, EventKind, Finding, RunResult
from cellwall.core.telemetry import OFF, Step
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.core.verdict import Verdict
from cellwall.guard.detect.scoring import CATEGORIES
from cellwall.telemetry import names
from cellwall.telemetry.metrics import Gauges, Metrics
from cellwall.telemetry.service import Telemetry
from unit.runtime.test_pipeline import Stage, action

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(metrics: Metrics) -> Series:
    """All time series by name and labels, read by the parser of the Prometheus client."""
    text = metrics.text().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return series(metrics).get((name, tuple(sorted(labels.items()))), 0.0)


def perform(metrics: Metrics, stage: Stage, wanted: Action | None = None) -> None:
    runtime = replace(stage.runtime(), telemetry=Telemetry(metrics))
    anyio.run(runtime.perform, wanted or action())


@pytest.mark.slow
@pytest.mark.requirement("OBS-1")
def test_an_action_is_counted_with_the_time_of_each_of_its_steps() -> None:
    metrics = Metrics("1.2.3")
    perform(metrics, Stage())
    run = {"operation": "run-command", "verdict": "allow", "status": "ok"}
    assert value(metrics, "cellwall_actions_total", **run) == 1
    assert value(metrics, "cellwall_action_seconds_count", operation="run-command") == 1
    steps = {
        step.value: value(metrics, "cellwall_step_seconds_count", step=step.value) for step in Step
    }
    assert steps == {step.value: float(step is not Step.ASK) for step in Step}
    whole = value(metrics, "cellwall_action_seconds_sum", operation="run-command")
    parts = [value(metrics, "cellwall_step_seconds_sum", step=each) for each in steps]
    assert 0 < sum(parts) <= whole
    assert value(metrics, "cellwall_build_info", version="1.2.3") == 1
    assert value(metrics, "process_open_fds") > 0


@pytest.mark.requirement("OBS-1")
def test_a_denial_a_failure_a_limit_and_an_interruption_are_told_apart() -> None:
    metrics = Metrics()
    perform(metrics, Stage(verdict=Verdict.ASK))
    perform(metrics, Stage(fails={"run": SandboxFailed("x")}))
    perform(metrics, Stage(fails={"write outcome": AuditFailed("x")}))
    perform(metrics, Stage(result=RunResult(None, limit=LimitName.MEMORY)))
    with pytest.raises(ZeroDivisionError):
        perform(metrics, Stage(fails={"clean": ZeroDivisionError()}))
    counted = {
        (dict(labels)["verdict"], dict(labels)["status"]): count
        for (name, labels), count in series(metrics).items()
        if name == "cellwall_actions_total"
    }
    assert counted == {
        ("deny", "denied"): 1,
        ("allow", "error"): 2,
        ("allow", "limit"): 1,
        ("deny", "interrupted"): 1,
    }
    assert value(metrics, "cellwall_limits_total", limit="memory") == 1
    assert value(metrics, "cellwall_step_failures_total", step="run") == 1
    assert value(metrics, "cellwall_step_failures_total", step="outcome") == 1
    assert value(metrics, "cellwall_actions_running") == 0
    network = {"category": "workspace", "severity": "medium"}
    assert value(metrics, "cellwall_findings_total", **network) == 1


CONNECTION = EventKind.CONNECTION
EVENTS = [
    (CONNECTION, {"event": "opened", "host": "a"}, "cellwall_egress_connections_total", {"result": "allowed"}, 1),
    (CONNECTION, {"event": "refused"}, "cellwall_egress_connections_total", {"result": "refused"}, 1),
    (CONNECTION, {"event": "refused-more", "count": 41}, "cellwall_egress_connections_total", {"result": "refused"}, 41),
    (CONNECTION, {"event": "leak-refused"}, "cellwall_egress_connections_total", {"result": "leak"}, 1),
    (CONNECTION, {"event": "secret-used", "secret": "x"}, "cellwall_secret_uses_total", {}, 1),
    (CONNECTION, {"event": "package-served", "ecosystem": "npm"}, "cellwall_packages_total", {"ecosystem": "npm", "result": "served"}, 1),
    (CONNECTION, {"event": "package-refused", "ecosystem": "pypi"}, "cellwall_packages_total", {"ecosystem": "pypi", "result": "refused"}, 1),
    (CONNECTION, {"event": "package-verdict", "package": "pypi:six", "verdict": "ask"}, "cellwall_packages_total", {"ecosystem": "pypi", "result": "ask"}, 1),
    (CONNECTION, {"event": "package-built", "package": "pkg:pypi/six@1"}, "cellwall_packages_total", {"ecosystem": "pypi", "result": "built"}, 1),
    (EventKind.APPROVAL, {"verdict": "allow"}, "cellwall_approvals_total", {"answer": "allow"}, 1),
    (EventKind.SIGN_IN, {"change": "password", "status": "refused"}, "cellwall_sign_ins_total", {"method": "password", "result": "refused"}, 1),
    (EventKind.SIGN_IN, {"change": "refresh", "status": "reused, so the sign-in is ended"}, "cellwall_sign_ins_total", {"method": "refresh", "result": "reused"}, 1),
    (EventKind.INTENT, {}, "cellwall_audit_write_seconds_count", {}, 1),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize(("kind", "body", "name", "labels", "count"), EVENTS)
def test_an_event_of_the_audit_log_is_counted(kind, body, name, labels, count) -> None:
    metrics = Metrics()
    Telemetry(metrics).note_event(Event(kind, "", "me", "http", body), 0.001, is_written=True)
    assert value(metrics, name, **labels) == count
    assert value(metrics, "cellwall_audit_failures_total") == 0


def test_an_event_that_was_not_written_is_a_failure() -> None:
    metrics = Metrics()
    event = Event(EventKind.INTENT, "", "me", "sdk")
    Telemetry(metrics).note_event(event, 0.5, is_written=False)
    assert value(metrics, "cellwall_audit_failures_total") == 1


def hostile() -> str:
    return f'{secrets.token_hex(8)}"\n\\{{}}'


@pytest.mark.slow
@pytest.mark.requirement("OBS-1")
def test_no_request_makes_a_new_time_series() -> None:
    metrics = Metrics()
    telemetry = Telemetry(metrics)
    findings = tuple(Finding(hostile(), hostile(), hostile()) for _ in range(8))  # type: ignore[arg-type]
    result = RunResult(1, findings=findings)
    kinds = [EventKind.CONNECTION, EventKind.APPROVAL, EventKind.SIGN_IN]
    keys = ["event", "ecosystem", "package", "verdict", "change", "status", "count"]

    def attack() -> int:
        wanted = action(
            principal=Principal(hostile(), hostile()), operation=RunCommand((hostile(),))
        )
        perform(metrics, Stage(result=result), wanted)
        for kind in kinds:
            for event in (hostile(), "package-served", "package-verdict", "refused-more"):
                body = {key: hostile() for key in keys} | {"event": event}
                telemetry.note_event(Event(kind, "", "", "", body), 0.1, is_written=True)
        telemetry.note_request(hostile(), 1.0)
        metrics.note_http(hostile(), 1000 + secrets.randbelow(10**6), 1.0)  # 1000: no status
        return len(series(metrics))

    attack()
    first = attack()
    assert [attack() for _ in range(20)][-1] == first
    text = metrics.text().decode()
    assert text.count("other") > 3  # the attacks were counted, not dropped
    bound = sum(
        math.prod(map(len, each.labels.values()))
        * (len(each.buckets) + 4 if each.kind == "histogram" else 2)
        for each in names.METRICS
        if each is not names.BUILD
    )
    assert len(series(metrics)) < bound + 20 < 3000


@pytest.mark.requirement("OBS-1")
def test_the_metrics_are_exactly_those_of_the_specification() -> None:
    metrics = Metrics("1")
    families = {
        family.name: family for family in text_string_to_metric_families(metrics.text().decode())
    }
    ours = {name for name in families if name.startswith("cellwall_")}
    # Counters are named without their suffix, `_created` has a family of its own.
    expected = {each.name.removesuffix("_total"): each for each in names.METRICS}
    assert {each for each in ours if not each.endswith("_created")} == set(expected)
    for name, metric in expected.items():
        assert (families[name].type, families[name].documentation) == (metric.kind, metric.help)


def test_what_the_program_knows_today_has_a_label_of_its_own() -> None:
    assert set(CATEGORIES) <= set(names.CATEGORIES)
    operations = get_args(get_type_hints(Action, vars(types))["operation"])
    assert set(operations) == set(names.OPERATIONS)
    source = Path(accounts.__file__).parent
    sign_ins = [
        found
        for file in source.rglob("*.py")
        for found in re.findall(r'sign_in\(\s*"([a-z-]+)"', file.read_text("utf-8"))
    ]
    assert len(sign_ins) > 5
    assert set(sign_ins) <= set(names.SIGN_INS.labels["method"])


@pytest.mark.requirement("OBS-1")
def test_gauges_are_asked_at_the_scrape_and_no_more_after_the_end() -> None:
    metrics = Metrics()
    one, two = Telemetry(metrics), Telemetry(metrics)
    one.gauge_with(lambda: Gauges(running=1, live=2, ready=3, templates=4, approvals_waiting=5))
    two.gauge_with(lambda: Gauges(live=10, actions=7))
    states = [value(metrics, "cellwall_cells", state=each) for each in ("running", "live", "ready")]
    assert states == [1, 12, 3]
    assert value(metrics, "cellwall_approvals_waiting") == 5
    assert value(metrics, "cellwall_actions_running") == 7
    two.close()
    assert value(metrics, "cellwall_cells", state="live") == 2
    broken = Telemetry(metrics)
    broken.gauge_with(lambda: Gauges(live=1 // 0))
    assert value(metrics, "cellwall_cells", state="live") == 2
    one.close()
    assert value(metrics, "cellwall_cells", state="live") == 0


@pytest.mark.requirement("OBS-1")
def test_a_runtime_that_ended_keeps_its_counts_and_loses_its_places() -> None:
    metrics = Metrics()
    one, two = Telemetry(metrics), Telemetry(metrics)
    one.gauge_with(lambda: Gauges(waiting=3, taken=60, free=4, hits=10, misses=2))
    two.gauge_with(lambda: Gauges(free=64, hits=1))
    one.close()
    found = [value(metrics, "cellwall_places", state=each) for each in ("taken", "free")]
    assert [*found, value(metrics, "cellwall_queue_waiting")] == [0, 64, 0]
    uses = [value(metrics, "cellwall_template_uses_total", result=w) for w in ("hit", "miss")]
    assert uses == [11, 2]


class Broken(Metrics):
    """Every method of it fails."""

    def __getattribute__(self, name: str) -> object:
        if name in {"end_step", "end_action", "note_event", "note_request", "fail_step"}:
            raise ZeroDivisionError
        return super().__getattribute__(name)


@pytest.mark.requirement("OBS-1")
def test_broken_telemetry_fails_no_action() -> None:
    stage, telemetry = Stage(), Telemetry(Broken())
    outcome = anyio.run(replace(stage.runtime(), telemetry=telemetry).perform, action())
    assert (outcome.status, stage.tidied) == ("ok", 1)
    telemetry.note_event(Event(EventKind.INTENT, "", "", ""), 1.0, is_written=True)
    telemetry.note_request("hook", 1.0)


def test_a_forked_child_counts_from_zero_and_needs_no_lock_of_its_parent() -> None:
    metrics = Metrics()
    metrics.note_request("hook", 1.0)
    held = metrics._request_s["hook"]._sum._lock
    with held:  # as if another thread counted at this moment
        pid = os.fork()
        if pid == 0:
            metrics.note_request("hook", 1.0)
            os._exit(int(value(metrics, "cellwall_request_seconds_count", request="hook")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert value(metrics, "cellwall_request_seconds_count", request="hook") == 1


def test_switched_off_nothing_is_kept_of_an_action() -> None:
    assert OFF.watch(action()) is OFF.watch(action())
    with OFF.request("00-x"):
        OFF.note_request("hook", 1.0)
    OFF.close()
