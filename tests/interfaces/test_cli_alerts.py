"""`cellwall alerts`: from real runs to a message, silences by people, and tests of receivers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import cellwall
from conftest import audit_records
from interfaces.test_cli_process import error_code, in_process
from unit.audit.export_receivers import Collector, make_certificates

pytestmark = pytest.mark.requirement("OBS-2")


@pytest.fixture
def received(state_home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a configured receiver."""
    config, file = tmp_path / "cellwall.toml", tmp_path / "alerts.jsonl"
    config.write_text(
        "[alerts.rules.failures]\nmin_events = 2\nhold_s = 0\n"
        f'[alerts.receivers.log]\nkind = "file"\nto = "{file}"\n'
    )
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    return file


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_failing_runs_of_a_host_without_a_service_fire_and_link_to_their_records(received):
    assert in_process("run", "--", "true").returncode == 0
    quiet = in_process("alerts", "check", "--json")
    assert (quiet.returncode, json.loads(quiet.stdout)["alerts"]) == (0, [])
    for _ in range(2):
        assert in_process("run", "--", "false").returncode == 1
    found = in_process("alerts", "check", "--json")
    assert found.returncode == 1
    report = json.loads(found.stdout)
    (alert,) = report["alerts"]
    assert (alert["rule"], alert["state"]) == ("failures", "firing")
    failed = [each["id"] for each in audit_records() if each["body"].get("status") == "failed"]
    assert alert["records"] == failed
    assert (report["receivers"][0]["delivered"], report["unread"]) == (1, 0)
    (notice,) = lines(received)
    assert (notice["event"], notice["alert"]["id"]) == ("firing", alert["id"])
    assert in_process("alerts", "check").returncode == 1  # it still fires
    assert len(lines(received)) == 1  # and is not told again
    shown = in_process("alerts", "list")
    assert shown.returncode == 1
    assert "FIRING   medium: failures: many runs fail" in shown.stdout.decode()
    assert f"cellwall audit show {failed[-1]}" in shown.stdout.decode()


def test_a_silence_is_recorded_with_who_and_why_and_ends(received):
    made = in_process(
        *("alerts", "silence", "failures", "--for", "2h", "--reason", "bad build", "--json")
    )
    assert made.returncode == 0, made.stderr
    silence = json.loads(made.stdout)
    for _ in range(2):
        in_process("run", "--", "false")
    report = json.loads(in_process("alerts", "check", "--json").stdout)
    assert [each["silenced_by"] for each in report["alerts"]] == [silence["id"]]
    assert lines(received) == []
    bodies = [each["body"] for each in audit_records()]
    begun, done = [each for each in bodies if each.get("change") == "silence alerts"]
    assert (begun["change"], begun["rule"], begun["reason"]) == (
        "silence alerts",
        "failures",
        "bad build",
    )
    assert (begun["by"], done["status"]) == (silence["by"], "ok")
    assert in_process("alerts", "unsilence", silence["id"]).returncode == 0
    in_process("alerts", "check")
    assert [each["event"] for each in lines(received)] == ["firing"]
    assert error_code(in_process("alerts", "unsilence", "sil_x")) == "CW-NOT-FOUND"


@pytest.mark.parametrize(
    "words",
    [
        ("nothing-like-it", "--for", "2h", "--reason", "x"),
        ("failures", "--for", "2 hours", "--reason", "x"),
        ("failures", "--for", "31d", "--reason", "x"),
        ("failures", "--for", "1h", "--reason", " "),
        ("failures", "--for", "1h", "--reason", "x" * 2000),
        ("../x", "--for", "1h", "--reason", "x"),
        ("failures", "--for", "1h", "--reason", "x", "--group", "y" * 500),
    ],
)
def test_a_silence_out_of_bounds_is_refused_with_a_hint(received, words):
    refused = in_process("alerts", "silence", *words, "--json")
    error = json.loads(refused.stdout)["error"]
    assert refused.returncode == 125
    assert error["hint"]
    assert json.loads(in_process("alerts", "list", "--json").stdout)["silences"] == []


def test_an_agents_shell_silences_nothing(received, monkeypatch):
    words = ("alerts", "silence", "failures", "--for", "2h", "--reason", "quiet", "--json")
    monkeypatch.setenv("CLAUDECODE", "1")
    program = [sys.executable, "-m", "cellwall.interfaces.entry", *words]
    agent = subprocess.run(program, env=dict(os.environ), capture_output=True, check=False)
    assert json.loads(agent.stdout)["error"]["code"] == "CW-AGENT-SHELL"
    monkeypatch.delenv("CLAUDECODE")
    person = subprocess.run(program, env=dict(os.environ), capture_output=True, check=False)
    assert person.returncode == 0, person.stderr  # the control


def test_receivers_are_tried_and_a_failure_says_why(received, tmp_path, monkeypatch):
    config = Path(os.environ["CELLWALL_CONFIG"])
    more = '[alerts.receivers.lost]\nkind = "file"\nto = "/nonexistent/x"\n'
    more += '[alerts.receivers.hook]\nkind = "webhook"\nto = "https://h.example/"\nsecret = "KEY"\n'
    config.write_text(config.read_text() + more)
    tried = in_process("alerts", "test", "--json")
    found = json.loads(tried.stdout)
    assert tried.returncode == 1
    assert found["log"] == {"delivered": True, "problem": None, "code": None}
    assert found["lost"]["code"] == "CW-EXPORT-FILE"
    assert found["hook"]["code"].startswith("CW-VAULT")  # there is no vault
    assert [each["event"] for each in lines(received)] == ["test"]
    assert in_process("alerts", "test", "log").returncode == 0
    assert error_code(in_process("alerts", "test", "nobody")) == "CW-ALERT-RECEIVER"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_watch_evaluates_until_it_is_ended_and_nothing_is_told_twice(received, number):
    words = [sys.executable, "-m", "cellwall.interfaces.entry", "alerts", "watch"]
    watch = subprocess.Popen(words, env=dict(os.environ), stderr=subprocess.DEVNULL)
    report: dict = {}
    try:
        for _ in range(2):
            in_process("run", "--", "false")
        for _ in range(900):
            report = json.loads(in_process("alerts", "check", "--json").stdout)
            if report["is_watched"] and report["receivers"][0]["delivered"]:
                break
            threading.Event().wait(0.1)
    finally:
        watch.send_signal(number)
        watch.wait(60)
    assert [each["event"] for each in lines(received)] == ["firing"]
    after = json.loads(in_process("alerts", "check", "--json").stdout)
    assert (after["is_watched"], [each["state"] for each in after["alerts"]]) == (False, ["firing"])
    assert [each["event"] for each in lines(received)] == ["firing"]


def test_a_webhook_is_signed_with_the_secret_that_the_vault_grants_to_its_host(
    received, tmp_path: Path
):
    key = b"a-signing-key-of-the-vault"
    certificates = make_certificates(tmp_path, host="localhost")
    with Collector(context=certificates.server()).running() as hook:
        config = Path(os.environ["CELLWALL_CONFIG"])
        more = f'[alerts.receivers.hook]\nkind = "webhook"\nto = "https://localhost:{hook.port}/"\n'
        more += f'secret = "ALERT_KEY"\nca_file = "{certificates.ca_file}"\n'
        config.write_text(config.read_text() + more)
        assert in_process("vault", "init", "--key", "file").returncode == 0
        assert in_process("vault", "set", "ALERT_KEY", stdin=key).returncode == 0

        def tried() -> str | None:
            done = in_process("alerts", "test", "hook", "--json")
            return json.loads(done.stdout)["hook"]["code"]

        vault = cellwall.Vault.open()
        assert tried() == "CW-VAULT-NOT-GRANTED"
        vault.grant("ALERT_KEY", host="hooks.example.com", tools=("alerts",))
        assert tried() == "CW-VAULT-NOT-GRANTED"  # for another host
        vault.grant("ALERT_KEY", host="localhost", ports=(hook.port,), tools=("run",))
        assert tried() == "CW-VAULT-NOT-GRANTED"  # for another tool
        assert hook.requests == []
        vault.grant("ALERT_KEY", host="localhost", ports=(hook.port,), tools=("alerts",))
        assert tried() is None
    ((_, headers, body),) = hook.requests
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    leases = [each["body"] for each in audit_records() if each["body"].get("change") == "lease"]
    assert {each["tool"] for each in leases} == {"alerts"}
    assert key not in json.dumps([leases, json.loads(body)]).encode()
