"""Metrics, traces and logs of real runs: complete, and without a word of what the runs said (OBS-1)."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

import cellwall
from cellwall.config.load import load_settings
from cellwall.core.telemetry import Lifetime
from cellwall.core.types import Action, RunCode, RunCommand
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal
from cellwall.runtime.observing import describe_telemetry, metrics_text
from cellwall.runtime.wiring import close_shared, open_app
from interfaces.conftest import Supervised, start_supervisor
from interfaces.test_cli_process import cellwall as command
from interfaces.test_cli_process import error_code
from interfaces.test_hook import hook, question
from unit.telemetry.collector import Collector, attributes, collecting

SECRET = "ghp_" + "q7Zk2" * 7 + "x"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def collector(
    state_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Collector]:
    with collecting() as found:
        config = tmp_path / "cellwall.toml"
        address = found.url.removesuffix("/v1/traces")
        config.write_text(f'[observability]\notlp_endpoint = "{address}"\n')
        monkeypatch.setenv("CELLWALL_CONFIG", str(config))
        yield found


@pytest.fixture
def service(collector: Collector) -> Iterator[App]:
    app = open_app(lifetime=Lifetime.SERVICE)
    yield app
    app.close()


def values(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.requirement("OBS-1")
def test_a_run_is_counted_and_traced_and_its_secret_is_in_neither(
    collector: Collector, service: App
) -> None:
    code = f"import os\nprint(dict(os.environ), {SECRET!r})"
    before = values(metrics_text()[0].decode())
    wanted = Action(
        principal=local_principal("sdk"),
        operation=RunCode("python", code.encode()),
        env={"TOKEN": SECRET},
        allow_domains=(f"{SECRET[4:20]}.example".lower(),),
    )
    with service.telemetry.request(PARENT):
        outcome = anyio.run(service.runtime.perform, wanted)
    assert "'TOKEN'" in outcome.stdout  # the control: the code ran, with what it was given
    assert not re.search(f"traceparent|{TRACE}", outcome.stdout, re.IGNORECASE)
    text = metrics_text()[0].decode()
    service.close()
    counted = {name: count - before.get(name, 0) for name, count in values(text).items()}
    assert counted["cellwall_actions_total", "run-code", "ok", "allow"] == 1
    assert counted["cellwall_step_seconds_count", "run"] == 1
    assert counted["cellwall_audit_write_seconds_count",] >= 2
    steps = [span.name for span in collector.spans if span.name.startswith("cellwall.step.")]
    assert len(steps) == len(set(steps)) == 9
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    for told in (text.encode(), *collector.bodies):
        assert SECRET.encode() not in told
        assert SECRET[4:20].lower().encode() not in told


@pytest.mark.requirement("OBS-1")
def test_a_cancelled_run_is_interrupted_and_a_refused_connection_is_counted(
    collector: Collector, service: App
) -> None:
    before = values(metrics_text()[0].decode())

    async def both() -> None:
        reach = "curl -s --max-time 20 https://not-allowed.example/ || true"
        wanted = Action(
            principal=local_principal("sdk"),
            operation=RunCommand(("sh", "-c", reach)),
            allow_domains=("a.example",),
        )
        (await service.runtime.perform(wanted)).raise_for_status()
        with anyio.CancelScope() as scope:

            def stop(*_: object) -> None:
                scope.cancel()

            sleeper = RunCommand(("sh", "-c", "echo started; exec sleep 600"))
            await service.runtime.perform(
                Action(principal=local_principal("sdk"), operation=sleeper), sink=stop
            )

    anyio.run(both)
    after = values(metrics_text()[0].decode())
    service.close()
    counted = {name: count - before.get(name, 0) for name, count in after.items()}
    assert counted["cellwall_actions_total", "run-command", "interrupted", "deny"] == 1
    assert counted["cellwall_egress_connections_total", "refused"] >= 1
    assert after["cellwall_cells", "running"] == 0
    ended = [attributes(each).get("cellwall.status") for each in collector.named("cellwall.action")]
    assert ended == ["ok", "interrupted"]


@pytest.mark.requirement("OBS-1")
def test_a_call_of_a_host_function_is_traced_below_the_run_that_made_it(
    collector: Collector, state_home: str
) -> None:
    done = cellwall.run_code("tools.give()", tools={"give": lambda: 6})
    assert done.raise_for_status().value == 6
    close_shared(state_home)
    by_operation = {
        attributes(span)["cellwall.operation"]: span for span in collector.named("cellwall.action")
    }
    run, call = by_operation["run-code"], by_operation["call-tool"]
    assert (call.trace_id, call.parent_span_id) == (run.trace_id, run.span_id)


def test_without_the_exporter_the_configuration_is_refused(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cellwall.telemetry.traces", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(cellwall.ConfigError, match="exporter is not installed"):
        open_app(lifetime=Lifetime.SERVICE)
    open_app().close()  # one action of a short process: nothing is traced, so nothing is missing


@pytest.mark.requirement("OBS-1")
def test_the_supervisor_measures_for_its_short_clients_and_logs_lines_of_json(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, state_home: str
) -> None:
    home = tmp_path_factory.mktemp("cellwall-observed")
    home.chmod(0o700)
    found = Supervised(home, "cold", 1_900_000_000)
    assert error_code(command("supervisor", "metrics", **found.environment)) == "CW-NO-SUPERVISOR"
    (home / "cellwall.toml").write_text('[observability]\nlog_level = "info"\n')
    found.process = start_supervisor(found.environment)
    found.enter(monkeypatch)
    try:
        assert command("run", "--", "echo", SECRET).returncode == 0
        assert hook(question(f"ls {SECRET}")).returncode == 0
        text = command("supervisor", "metrics").stdout.decode()
        log = (home / "supervisor.log").read_text()
        modes = stat.S_IMODE(os.stat(home / "supervisor.log").st_mode)
    finally:
        found.end()
    counted = values(text)
    assert counted["cellwall_request_seconds_count", "hook"] == 1
    assert counted["cellwall_request_seconds_count", "run"] == 1
    assert counted["cellwall_actions_total", "run-command", "ok", "allow"] == 1
    took_s = counted["cellwall_request_seconds_sum", "run"]
    assert took_s >= counted["cellwall_action_seconds_sum", "run-command"]
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["operation"] for line in lines if line["logger"] == "cellwall.action"] == [
        "run-command", "use-tool",
    ]  # fmt: skip
    assert SECRET not in text + log
    assert modes == 0o600


def test_the_host_check_says_what_is_on_and_whether_the_collector_answers(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described() -> tuple[str, str]:
        return describe_telemetry(load_settings(environ=os.environ))[:2]

    on = "metrics on, log json from warning"
    assert described() == ("info", f"{on}, traces are sent")
    collector.close()
    assert described() == ("weak", f"{on}, the collector for traces does not answer")
    monkeypatch.delenv("CELLWALL_CONFIG")
    assert described() == ("info", f"{on}, no traces")


def test_a_refused_configuration_leaves_no_exporter_behind(
    collector: Collector, service: App
) -> None:
    assert any(each.name.startswith("OtelBatch") for each in threading.enumerate())  # the control
    service.close()
    config = Path(os.environ["CELLWALL_CONFIG"])
    config.write_text(config.read_text() + '[egress]\nallow_domains = ["*"]\n')
    with pytest.raises(cellwall.ConfigError, match="allow_domains"):
        open_app(lifetime=Lifetime.SERVICE)
    assert [each for each in threading.enumerate() if each.name.startswith("OtelBatch")] == []
