"""`cellwall incident bundle | verify`: evidence of real sandboxes with hostile files (OBS-3)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cellwall.core.outcomes import EventKind
from conftest import audit_records, new_home
from interfaces import prepared_program
from interfaces.test_cli_process import DEADLINE_S, cellwall, error_code, person

pytestmark = [pytest.mark.requirement("OBS-3"), pytest.mark.slow]
VALUE = "correct-horse-battery-staple-4711"
# Names with newlines, controls and bytes that are not UTF-8; a link to a file of the host; a file
# that never answers; one that is larger than any bundle.
HOSTILE = r"""
import os
open('a\nb\x1b[31m', 'w').write('x')
open(b'\xff\xfe', 'w').write('y')
os.symlink('/etc/shadow', 'shadow')
os.symlink('/', 'root')
os.mkfifo('pipe')
os.truncate(os.open('sparse', os.O_CREAT | os.O_WRONLY), 1 << 30)
os.makedirs('/'.join(['deep'] * 200))
"""
# The process ends in the middle of a bundle, as by the kernel or a person.
KILLED = """
import os, signal, sys
from cellwall.admin import incidents
incidents.Incidents._add_audit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from cellwall.interfaces.cli.main import main
sys.exit(main(["incident", "bundle", "-o", "killed.tar"]))
"""


def payload(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as outer:
        inner = outer.extractfile("payload.tar")
        with tarfile.open(fileobj=inner) as members:
            return {each.name: members.extractfile(each).read() for each in members}  # type: ignore[union-attr]  # regular files


def test_a_bundle_holds_the_evidence_and_no_secret(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "kept.txt").write_text("before\n")
    assert cellwall("vault", "init", "--key", "file").returncode == 0
    assert cellwall("vault", "set", "API_KEY", stdin=VALUE.encode()).returncode == 0
    assert person("vault", "grant", "API_KEY", "--host", "api.example.com").returncode == 0
    place = f"{project}:cow"
    ran = cellwall(
        "run", "--workspace", place, "--secret", "API_KEY", "--allow-domain", "api.example.com",
        "--file-size", "2g", "--", "python3", "-c", HOSTILE,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    write = f"echo {VALUE} > leaked; echo after > kept.txt"
    assert cellwall("run", "--workspace", place, "--", "sh", "-c", write).returncode == 0

    bundle = tmp_path / "case.tar"
    made = cellwall("incident", "bundle", "-o", str(bundle), "--reason", f"it is {VALUE}", "--json")
    assert made.returncode == 0, made.stderr
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert bundle.stat().st_size < 4 << 20
    found = payload(bundle)
    everything = b"".join(found.values())
    assert VALUE.encode() not in everything
    assert Path("/etc/shadow").read_bytes()[:40] not in everything if os.geteuid() == 0 else True
    report = json.loads(found["report.json"])
    sessions = [each for each in report["sessions"] if each["secrets_leased"]]
    assert [each["secrets_leased"] for each in sessions] == [["API_KEY"]]
    diffs = b"".join(data for name, data in found.items() if name.endswith(".diff"))
    assert b"-before" in diffs
    assert b"+after" in diffs
    assert rb"a\012b\033[31m" in diffs
    assert json.loads(found["host.json"])["versions"]["cellwall"]
    assert "limits" in json.loads(found["configuration.json"])["settings"]
    body = audit_records(kind=EventKind.INCIDENT)[-1]["body"]
    assert (body["status"], body["sha256"]) == ("ok", json.loads(made.stdout)["sha256"])

    # Elsewhere, with the public key alone: neither this state folder nor the vault is there.
    key = cellwall("audit", "key").stdout.decode().strip()
    other = str(new_home(tmp_path_factory))
    checked = cellwall("incident", "verify", str(bundle), "--key", key, CELLWALL_HOME=other)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert cellwall("incident", "verify", str(bundle), CELLWALL_HOME=other).returncode != 0
    # The log by the program in the bundle, without Cellwall.
    audit = tmp_path / "audit"
    audit.mkdir()
    for name, data in found.items():
        if name.startswith("audit/"):
            (tmp_path / name).write_bytes(data)
    (tmp_path / "verify.py").write_bytes(found["cellwall-verify.py"])
    words = [sys.executable, "-I", str(tmp_path / "verify.py"), str(audit), "--key", key]
    done = subprocess.run(words, capture_output=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    data = bytearray(bundle.read_bytes())
    data[2000] ^= 1
    bundle.write_bytes(data)
    refused = cellwall("incident", "verify", str(bundle), "--json")
    assert (refused.returncode, json.loads(refused.stdout)["ok"]) == (1, False)


def test_a_killed_command_leaves_no_bundle(tmp_path: Path) -> None:
    assert cellwall("run", "--", "true").returncode == 0
    with prepared_program.Popen([], code=KILLED, cwd=str(tmp_path)) as process:
        assert process.wait(DEADLINE_S) == -9
    assert os.listdir(tmp_path) == []
    done = cellwall("incident", "bundle", "-o", str(tmp_path / "killed.tar"))
    assert done.returncode == 0, done.stderr
    again = cellwall("incident", "bundle", "-o", str(tmp_path / "killed.tar"))
    assert error_code(again) == "CW-INCIDENT-FILE"


def test_records_are_readable_only_in_a_sealed_bundle(tmp_path: Path) -> None:
    assert cellwall("run", "--", "echo", "a-word-of-the-agent").returncode == 0
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("a long passphrase\n")
    for name, options in (("plain", ""), ("sealed", f"--seal-fd 3 3< {passphrase}")):
        done = run_in_shell(f"cellwall incident bundle -o {name} {options}", tmp_path)
        assert done.returncode == 0, done.stderr
    found = payload(tmp_path / "plain")
    assert "records.jsonl" not in found
    log = b"".join(data for name, data in found.items() if name.startswith("audit/"))
    assert b"a-word-of-the-agent" not in log
    assert b"a-word-of-the-agent" in found["report.txt"]
    assert b"a-word-of-the-agent" not in (tmp_path / "sealed").read_bytes()
    checked = run_in_shell(
        f"cellwall incident verify --report --seal-fd 3 {tmp_path}/sealed 3< {passphrase}", tmp_path
    )
    assert checked.returncode == 0, checked.stderr
    assert b"a-word-of-the-agent" in checked.stdout


def run_in_shell(script: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    real = f"PATH={os.path.dirname(prepared_program.PROGRAM)}:$PATH; {script}"
    return subprocess.run(
        ["sh", "-c", real], cwd=folder, capture_output=True, timeout=DEADLINE_S, check=False
    )
