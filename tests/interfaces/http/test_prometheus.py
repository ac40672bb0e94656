"""The files in deploy/, loaded by a real Prometheus: rules, their tests, a scrape, an alert."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from cellwall.telemetry.names import METRICS
from conftest import need
from interfaces.http.running_service import CONFIG, PASSWORD
from interfaces.served import new_place

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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return int(opened.getsockname()[1])


def test_a_real_prometheus_scrapes_a_service_and_a_stolen_token_fires(tmp_path: Path):
    need(shutil.which("prometheus"), "prometheus (Debian package prometheus)")
    with new_place(CONFIG) as place:
        place.done("user", "add", "ann", "--role", "owner")
        place.done("user", "password", "ann", stdin=PASSWORD.encode())
        words = ("token", "create", "--user", "ann", "--scope", "metrics:read")
        token = place.done(*words).decode().strip()
        with (
            place.serving() as service,
            service.client() as client,
            a_prometheus(tmp_path, url=service.url, token=token) as prometheus,
        ):
            until_firing(prometheus, set())  # the control: scraped, and nothing fires
            use_a_replaced_token(client)
            until_firing(prometheus, {"CellwallStolenToken"})


def use_a_replaced_token(client: httpx.Client) -> None:
    signed_in = client.post("/v1/auth/token", json={"name": "ann", "password": PASSWORD})
    first = signed_in.json()["refresh_token"]
    body = {"refresh_token": first}
    for _ in range(2):
        body = {"refresh_token": client.post("/v1/auth/refresh", json=body).json()["refresh_token"]}
    assert client.post("/v1/auth/refresh", json={"refresh_token": first}).status_code == 401


@contextmanager
def a_prometheus(folder: Path, *, url: str, token: str) -> Iterator[httpx.Client]:
    """A Prometheus with the files of deploy/, but this service, this token and a short interval."""
    (folder / "cellwall-token").write_text(token)
    shutil.copy(RULES, folder)
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = re.sub(r"127\.0\.0\.1:\d+", url.removeprefix("http://"), config)
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
            yield client
        finally:
            process.terminate()


def until_firing(client: httpx.Client, wanted: set[str]) -> None:
    """Wait until a scrape has succeeded, all rules were evaluated, and these alerts fire."""
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
        if is_up and states == {"ok"} and firing == wanted:
            return
        threading.Event().wait(0.1)
    raise AssertionError((data, states, firing))
