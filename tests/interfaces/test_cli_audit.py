"""`cellwall audit`: read, followed, searched, proved, sealed, kept, and checked by a stranger."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellwall import Sandbox
from cellwall.core.outcomes import EventKind
from cellwall.interfaces.cli import audit
from conftest import audit_records, growing_segment
from interfaces import prepared_program
from interfaces.test_cli_process import cellwall, error_code, in_process

DAY_S = 86_400


@pytest.fixture
def runs() -> list[dict]:
    words = (
        ["run", "--json", "--", "echo", "first"],
        ["run", "--json", "--", "echo", 'needle "in" häy'],
        ["code", "--json", "-c", "1 / 0"],
    )
    return [json.loads(cellwall(*each).stdout) for each in words]


@pytest.fixture
def folder(state_home: str) -> Path:
    return Path(state_home, "audit")


def told(*words: str) -> dict:
    done = cellwall("audit", *words, "--json")
    return json.loads(done.stdout)


def found(*words: str) -> list[str]:
    return [entry["kind"] for entry in told("search", *words)["records"]]


# Reading


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            {"event": "closed", "host": "a.example", "port": 443, "address": "192.0.2.7"},
            "closed a.example:443 (192.0.2.7)",
        ),
        (
            {
                "event": "opened",
                "host": "a.example",
                "port": 443,
                "addresses": ["192.0.2.7", "::1"],
            },
            "opened a.example:443 (192.0.2.7, ::1)",
        ),
        (
            {"event": "refused", "host": "b\x1b.example", "port": 80, "code": "CW-DOMAIN"},
            "refused b^[.example:80 CW-DOMAIN",
        ),
        ({"command": ["ls", "-la"]}, "ls -la"),
    ],
)
def test_a_line_says_where_a_connection_went(body, line):
    entry = {"action_id": "act_1", "session_id": "", "kind": "connection", "principal": "p"}
    assert audit._line({**entry, "time": "t", "body": body}) == f"t connection act_1 p {line}\n"


def test_search_finds_by_each_thing_and_by_all_together(runs):
    own = audit_records(kind=EventKind.INTENT)[1]
    user = own["principal"]
    assert found("--text", 'needle "in" häy') == ["intent"]
    assert found("--action", own["action_id"]) == ["intent", "outcome"]
    assert found("--kind", "intent", "--user", user) == ["intent"] * 3
    assert found("--verdict", "allow") == ["intent"] * 3
    assert found("--verdict", "deny") == []
    assert found("--since", "1h", "--kind", "config") == ["config"]
    assert found("--until", "1h") == []
    assert found("--since", "2020-01-01", "--until", "2020-01-02T00:00:00Z") == []
    assert found("--kind", "intent", "--text", "first", "--user", user, "--since", "1h") == [
        "intent"
    ]
    assert cellwall("audit", "search", "--text", "nowhere").returncode == 1
    bad = cellwall("audit", "search", "--since", "yesterdayish")
    assert bad.returncode == 125
    assert b"90m for 90 minutes ago" in bad.stderr


def test_a_session_is_shown_from_its_begin_to_its_end(state_home):
    with Sandbox.create() as sandbox:
        sandbox.commands.run("true")
    kinds = [entry["kind"] for entry in told("show", sandbox.id)["records"]]
    assert kinds == ["session", "intent", "outcome", "session"]


def test_followed_records_come_as_they_are_written(runs):
    words = ["audit", "tail", "-n", "1", "-f", "--kind", "intent", "--json"]
    with prepared_program.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body"]["code"] == "1 / 0"
        cellwall("run", "--", "echo", "later")
        assert json.loads(process.stdout.readline())["body"]["command"] == ["echo", "later"]
        cellwall("audit", "seal")
        cellwall("run", "--", "echo", "in the next file")
        assert json.loads(process.stdout.readline())["body"]["command"][1] == "in the next file"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


# Checking


@pytest.mark.requirement("AUD-2")
def test_a_stranger_checks_with_one_file_and_the_public_key(runs, folder, tmp_path):
    program = tmp_path / "verify.py"
    program.write_bytes(cellwall("audit", "verifier").stdout)
    key = cellwall("audit", "key").stdout.decode().strip()
    cellwall("audit", "seal")
    copy = shutil.copytree(folder, tmp_path / "copy")

    def check(*words: str) -> tuple[int, str]:
        # As where there is no Cellwall: its name cannot be imported.
        lines = f"import sys, runpy; sys.modules['cellwall'] = None; sys.argv = {[str(program), *words]!r}; runpy.run_path({str(program)!r}, run_name='__main__')"
        command = [sys.executable, "-I", "-c", lines]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    good = check(str(copy), "--key", key)
    assert good[0] == 0, good
    assert good[1].startswith("ok: ")
    log = max(copy.glob("*.checkpoints"))
    log.write_bytes(log.read_bytes().replace(b"cellwall/audit/", b"cellwall/other/"))
    assert check(str(copy), "--key", key)[0] == 1


@pytest.mark.requirement("AUD-2")
def test_a_witness_finds_what_was_cut_off_with_its_signatures(folder, tmp_path, monkeypatch):
    witness = tmp_path / "witness"
    witness.mkdir()
    config = tmp_path / "cellwall.toml"
    config.write_text(f'[audit]\nwitness_directory = "{witness}"\n')
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    cellwall("run", "--", "echo", "one")
    before = shutil.copytree(folder, tmp_path / "before")
    cellwall("run", "--", "echo", "two")
    assert told("verify", "--witness", str(witness))["ok"]
    shutil.rmtree(folder)
    shutil.copytree(before, folder)
    assert not told("verify")["ok"]  # what is remembered beside the key tells
    (folder.parent / "keys" / "audit.signed").unlink()
    assert told("verify")["ok"]  # the control: the shorter log is sound in itself
    cut = told("verify", "--witness", str(witness))
    assert not cut["ok"]
    assert cut["first_bad"] == len(audit_records()) + 1
    last = max(witness.iterdir())
    assert cellwall("audit", "verify", "--checkpoint", str(last)).returncode == 1


@pytest.mark.requirement("AUD-2")
def test_a_witness_command_gets_each_signature_and_its_silence_is_recorded(tmp_path, monkeypatch):
    config, notes = tmp_path / "cellwall.toml", tmp_path / "notes"
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    config.write_text(f'[audit]\nwitness_command = ["/bin/sh", "-c", "cat >> {notes}"]\n')
    cellwall("run", "--", "true")
    assert notes.read_text().startswith("cellwall/audit/")
    config.write_text('[audit]\nwitness_command = ["/bin/false"]\n')
    assert cellwall("run", "--", "true").returncode == 0
    problems = [entry["body"]["problem"] for entry in audit_records(kind=EventKind.WITNESS)]
    assert problems == ["the command ended with 1"]


@pytest.mark.requirement("AUD-2")
def test_a_key_is_rotated_and_a_lost_one_is_visible(runs, state_home):
    first = cellwall("audit", "key").stdout
    assert cellwall("audit", "key", "--rotate").stdout != first
    cellwall("run", "--", "true")
    rotated = told("verify")
    assert (rotated["ok"], len(rotated["keys"])) == (True, 2)
    Path(state_home, "keys", "audit.pem").unlink()
    cellwall("run", "--", "true")
    lost = told("verify")
    announced = audit_records(kind=EventKind.KEY)[-1]
    assert (lost["ok"], lost["first_bad"]) == (False, announced["seq"])
    assert "no earlier key confirms" in lost["reason"]
    assert cellwall("audit", "key", "--trust", announced["body"]["key"]).returncode == 0
    assert told("verify")["ok"]


def test_a_key_from_outside_signs_and_is_not_made_up(tmp_path, monkeypatch, state_home):
    key, config = tmp_path / "key.pem", tmp_path / "cellwall.toml"
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    config.write_text(f'[audit]\nsigning_key = "{key}"\n')
    missing = cellwall("run", "--", "true")
    assert (missing.returncode, error_code(missing)) == (125, "CW-KEY")
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)
    key.chmod(0o644)
    assert error_code(cellwall("run", "--", "true")) == "CW-KEY-UNSAFE"
    key.chmod(0o600)
    assert cellwall("run", "--", "true").returncode == 0
    assert told("verify")["ok"]
    assert not Path(state_home, "keys", "audit.pem").exists()


def test_a_proof_is_checked_with_nothing_but_itself_and_the_key(runs, tmp_path):
    event, key = runs[1]["audit_id"], cellwall("audit", "key").stdout.decode().strip()
    proof = tmp_path / "proof"
    proof.write_bytes(cellwall("audit", "prove", event).stdout)
    held = told("check-proof", str(proof), "--key", key)
    assert (held["ok"], held["record"]["id"], held["signed_by"]) == (True, event, [key])
    for line in range(1, 6):
        lines = proof.read_text().split("\n")
        lines[line] = lines[line][:-3] + ("AAA" if not lines[line].endswith("AAA") else "BBB")
        (tmp_path / "forged").write_text("\n".join(lines))
        assert cellwall("audit", "check-proof", str(tmp_path / "forged")).returncode == 1
    nothing = cellwall("audit", "prove", "evt_" + "0" * 26)
    assert error_code(nothing) == "CW-NO-RECORD"


# Keeping


def deleted_a_month_later(monkeypatch) -> int:
    """Of `seal`. A file cannot be made old: the kernel says when it was changed."""
    real = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + 31 * DAY_S)
        done = in_process("audit", "seal", "--json")
    return json.loads(done.stdout)["deleted"]


@pytest.mark.requirement("AUD-4")
def test_old_files_are_deleted_by_rule_unless_a_hold_keeps_them(
    runs, folder, tmp_path, monkeypatch
):
    config = tmp_path / "cellwall.toml"
    config.write_text("[audit]\nkeep_days = 30\n")
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    assert told("seal")["deleted"] == 0
    packed = min(folder.glob("*.zst"))
    assert told("hold", "case-1", "--reason", "a court")["holds"] == {"case-1": "a court"}
    assert deleted_a_month_later(monkeypatch) == 0
    assert told("hold", "case-1", "--release")["holds"] == {}
    assert error_code(cellwall("audit", "hold", "case-1", "--release")) == "CW-NO-HOLD"
    assert deleted_a_month_later(monkeypatch) == 1
    assert not packed.exists()
    report = told("verify")
    assert (report["ok"], report["deleted"] > 0) == (True, True)
    assert found("--kind", "hold") == ["hold", "hold"]
    min(folder.glob("*.zst")).unlink()  # by hand: no record tells of it
    by_hand = told("verify")
    assert (by_hand["ok"], by_hand["first_bad"]) == (False, report["deleted"] + 1)


@pytest.mark.requirement("AUD-1")
def test_another_configuration_is_an_event(tmp_path, monkeypatch):
    cellwall("run", "--", "true")
    cellwall("run", "--", "true")
    config = tmp_path / "cellwall.toml"
    config.write_text("[limits]\nwall_s = 7.0\n")
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    cellwall("run", "--", "true")
    assert len(audit_records(kind=EventKind.CONFIG)) == 2


@pytest.mark.requirement("AUD-1", "AUD-3")
def test_what_a_crash_tore_is_cut_and_told(runs, state_home):
    log = growing_segment(state_home)
    with log.open("ab") as file:
        file.write(b'{"action_id":"act_half')
    cellwall("run", "--", "true")
    (cut,) = audit_records(kind=EventKind.RECOVERY)
    assert cut["body"]["cut_bytes"] == 22
    assert told("verify")["ok"]


@pytest.mark.requirement("AUD-4")
def test_what_looks_like_a_credential_is_not_in_the_record(state_home):
    secret = "ghp_" + "a1B2" * 9
    cellwall("run", "--", "echo", secret)
    cellwall("code", "-c", f"token = '{secret}'")
    text = json.dumps(audit_records())
    assert secret not in text
    assert text.count("[redacted: 40 characters]") == 2


@pytest.mark.requirement("AUD-4")
def test_an_export_goes_on_where_the_last_one_ended(runs, tmp_path, folder):
    mark, copy = str(tmp_path / "mark"), tmp_path / "copy.jsonl"
    words = ("export", "--form", "jsonl", "--to", str(copy), "--bookmark", mark, "--sealed")
    assert told(*words)["last_seq"] == len(audit_records())
    cellwall("run", "--", "true")
    assert told(*words, "--append")["sent"] == 2
    assert copy.read_bytes() == growing_segment(folder.parent).read_bytes()  # byte for byte
    table = cellwall("audit", "export", "--form", "csv", "--to", "-", "--kind", "intent").stdout
    assert len(table.decode().strip().split("\r\n")) == 1 + 4
    away = cellwall("audit", "export", "--form", "syslog", "--to", "tcp://127.0.0.1:9")
    assert (away.returncode, error_code(away)) == (125, "CW-EXPORT-AWAY")
    assert cellwall("audit", "export", "--form", "csv", "--to", str(copy)).returncode == 125
