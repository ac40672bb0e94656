"""Attacks on alerts by what runs inside: forging one, hiding one among many, silencing, a flood."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from pathlib import Path

import pytest

from cellwall.audit.alerts.watch_state import read_state
from cellwall.audit.alerts.watcher import AlertWatcher
from cellwall.audit.records import GENESIS, record_line
from cellwall.audit.segments import RECORDS, segment_name
from cellwall.config.alerts_section import AlertsSection
from interfaces.test_cli_process import in_process

pytestmark = [pytest.mark.slow, pytest.mark.requirement("OBS-2")]


@pytest.fixture
def received(state_home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config, file = tmp_path / "cellwall.toml", tmp_path / "alerts.jsonl"
    config.write_text(
        "[alerts.rules.egress-refusals]\nover = 3\n"
        f'[alerts.receivers.log]\nkind = "file"\nto = "{file}"\n'
    )
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    return file


def told(file: Path) -> list[str]:
    in_process("alerts", "check")
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["alert"]["rule"] for line in lines]


def test_code_that_is_named_like_an_error_forges_no_alert(received: Path):
    for text in ("CW-VAULT-ROLLED-BACK", "CW-AUDIT-ALTERED"):
        in_process("code", "-c", text)
        in_process("run", "--", text)
        in_process("code", "-c", f"raise SystemExit('{text}')")
    assert told(received) == []


def test_code_inside_reaches_neither_the_silences_nor_the_state(received: Path, state_home):
    refusals = (
        "import urllib.request\n"
        "for number in range(5):\n"
        "    try: urllib.request.urlopen(f'http://h{number}.example.org/', timeout=5)\n"
        "    except OSError: pass\n"
    )
    places = [f"{state_home}/alert-silences", f"{state_home}/alerts/state.json"]
    attack = f"import os\nfor place in {places!r}:\n    print(os.path.exists(place))\n"
    attack += "try: os.makedirs(place, exist_ok=True)\nexcept OSError: print('refused')\n"
    os.makedirs(f"{state_home}/alerts", mode=0o700, exist_ok=True)
    ran = in_process("code", "--allow-domain", "example.com", "-c", refusals + attack)
    assert b"True" not in ran.stdout, ran.stdout
    assert os.path.exists(f"{state_home}/alerts")  # the control: it is there, outside
    assert told(received) == ["egress-refusals"]
    silenced = in_process("alerts", "silence", "egress-*", "--for", "1h", "--reason", "x")
    assert silenced.returncode == 0  # the control: a person can


@pytest.mark.parametrize(
    "count", [pytest.param(3000), pytest.param(100_000, marks=pytest.mark.long)]
)
def test_a_flood_is_evaluated_in_bounded_memory_and_hides_no_leak(tmp_path: Path, count: int):
    folder = tmp_path / "audit"
    folder.mkdir(mode=0o700)
    lines, prev = [], GENESIS
    for number in range(1, count + 1):
        is_leak = number == count // 2
        words = "leak-refused" if is_leak else "refused"
        fields = {"action_id": "act_1", "id": f"evt_{number}", "interface": "sdk"}
        fields |= {"kind": "connection", "principal": f"\x1b[2J{number}", "session_id": "sbx_1"}
        at = f"2026-01-31T12:{number // 60 % 60:02d}:{number % 60:02d}.000000Z"
        body = f'{{"error_code":"CW-E-{number % 500}","status":"{words}"}}'
        lines.append(record_line(fields, body=body, seq=number, time=at, prev=prev))
        prev = hashlib.sha256(b"\x00" + lines[-1]).hexdigest()
    path = folder / segment_name(1, RECORDS)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    path.chmod(0o600)
    file = tmp_path / "received.jsonl"
    section = AlertsSection.model_validate(
        {
            "rules": {"egress-refusals": {"by": "principal", "over": 0}},
            "receivers": {"file": {"kind": "file", "to": str(file)}},
        }
    )
    watcher = AlertWatcher(
        str(folder),
        str(tmp_path / "alerts"),
        section,
        silences=tuple,
        read_secret=lambda *_: b"",
        verify=lambda: "the chain was not linked",
        clock=lambda: 1_769_860_800.0,  # noon of that day
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watcher.check(deliver_within_s=60)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    state = read_state(str(tmp_path / "alerts"))
    assert state is not None
    assert state.position.seq == count
    assert len(json.dumps(state.to_json())) < 1_000_000
    sent = [json.loads(line)["alert"] for line in file.read_text().splitlines()]
    assert "leaks" in {each["rule"] for each in sent}
    assert len(sent) <= 65  # of one severity at most 30 in an hour
    assert "\x1b" not in file.read_text()
