"""The files in deploy/, loaded by a real Prometheus: rules, their tests, a scrape, an alert."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from cellwall.core.outcomes import Event, EventKind
from cellwall.telemetry.names import METRICS
from conftest import need
from interfaces.http.running_service import ROOT, RunningService, running_service

pytestmark = [pytest.mark.slow, pytest.mark.requirement("OBS-2")]
DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "cellwall-rules.yml"
_SERIES = re.compile(r"\b(cellwall_[a-z_]+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
_OF_PROMETHEUS = {"instance", "job", "le"}


def promtool(*words: str) -> None:
    need(shutil.which("promtool"), "promtool (Debian package prometheus)")
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "cellwall.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(found) > 15
    return [*found, re.sub(r"#[^\n]*|annotations:[\s\S]*?(?=- alert|\Z)", "", RULES.read_text())]


def test_every_metric_and_label_value_of_the_files_is_exported():
    known = {each.name: each for each in METRICS}
    seen = set()
    for text in expressions():
        for name, labels in _SERIES.findall(text):
            metric = known[re.sub("_bucket$", "", name)]
            assert name.endswith("_bucket") == (metric.kind == "histogram"), name
            seen.add(metric.name)
            for label, _, values in _LABEL.findall(labels):
                if label not in _OF_PROMETHEUS:
                    assert set(values.split("|")) <= set(metric.labels[label]), (name, label)
    assert len(seen) >= 15


def test_the_rules_hold_their_own_tests():
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(DEPLOY / "prometheus" / "cellwall-rules-test.yml"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    (tmp_path / "home").mkdir()
    with running_service(tmp_path / "home") as found:
        yield found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return int(opened.getsockname()[1])


def test_a_real_prometheus_scrapes_a_service_and_a_leak_fires(service, tmp_path: Path):
    need(shutil.which("prometheus"), "prometheus (Debian package prometheus)")
    create = service.accounts.directory.create_token
    owner = service.ids["owner"]
    token, _ = service.call(
        create(owner, name="scraper", scopes=("metrics:read",), lives_s=600, by=ROOT)
    )
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (folder / "cellwall-token").write_text(token)
    shutil.copy(RULES, folder)
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{service.port}", config)
    (folder / "prometheus.yml").write_text(config.replace("interval: 15s", "interval: 200ms"))
    promtool("check", "config", str(folder / "prometheus.yml"))
    port = free_port()
    words = ["prometheus", f"--config.file={folder}/prometheus.yml"]
    words += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(words, stdout=log, stderr=log, cwd=folder) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False) as client,
    ):
        try:
            until_alert(client, "CellwallLeak", fires=False)  # the control: scraped
            leak = {"event": "leak-refused", "status": "leak-refused"}
            service.app.audit.write(Event(EventKind.CONNECTION, "a", "ann", "http", dict(leak)))
            until_alert(client, "CellwallLeak", fires=True)
        finally:
            process.terminate()


def until_alert(client: httpx.Client, wanted: str, *, fires: bool) -> None:
    """Wait until a scrape has succeeded, all rules were evaluated, and this alert fires or not.

    Other alerts may fire: earlier tests of this process count in the same metrics."""
    for _ in range(900):
        try:
            data = client.get("/query", params={"query": 'up{job="cellwall"}'}).json()["data"]
            groups = client.get("/rules").json()["data"]["groups"]
            alerts = client.get("/alerts").json()["data"]["alerts"]
        except (httpx.HTTPError, ValueError, KeyError):
            data, groups, alerts = {"result": []}, [], []
        is_up = [each["value"][1] for each in data["result"]] == ["1"]
        states = {each["health"] for group in groups for each in group["rules"]}
        firing = {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}
        if is_up and states == {"ok"} and (wanted in firing) == fires:
            return
        threading.Event().wait(0.1)
    raise AssertionError((data, states, firing))
