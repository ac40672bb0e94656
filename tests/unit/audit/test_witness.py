"""Checkpoints are handed to somebody else, who makes the loss of the whole log visible (AUD-2)."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace

import pytest

from cellwall.audit import witness as witness_module
from cellwall.audit.log import AuditLog
from cellwall.audit.segments import find_notes
from cellwall.audit.verify import verify
from conftest import need
from unit.audit.audit_logs import (
    NEVER,
    all_records,
    event,
    lines_of,
    note_over,
    notes_path,
    private_key,
    put_lines,
    sign,
    trusted,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def seen(tmp_path):
    (tmp_path / "seen").mkdir()
    return tmp_path / "seen"


def watched(seen):
    return replace(NEVER, witness_directory=str(seen))


def to_audit_failure(folder) -> list[str]:
    return [each["body"]["problem"] for each in all_records(folder) if each["kind"] == "witness"]


@pytest.mark.requirement("AUD-2")
def test_directory_gets_every_checkpoint(folder, seen):
    with AuditLog.open(str(folder), settings=watched(seen)) as log:
        for number in range(3):
            log.write(event(number))
            sign(log)
    origin = (folder / "origin").read_text().strip().rpartition("/")[2]
    notes = find_notes(notes_path(folder).read_bytes())
    assert [each.name for each in sorted(seen.iterdir())] == [
        f"{origin}-{size:016d}.checkpoint" for size in (1, 2, 3, 4)
    ]
    assert [each.read_bytes() for each in sorted(seen.iterdir())] == notes


@pytest.mark.requirement("AUD-2")
def test_log_cut_back_with_its_checkpoints_is_found_by_the_witness(folder, seen):
    with AuditLog.open(str(folder), settings=watched(seen)) as log:
        for number in range(5):
            log.write(event(number))
            sign(log)
    put_lines(folder, lines_of(folder)[:3])
    notes = find_notes(notes_path(folder).read_bytes())
    notes_path(folder).write_bytes(b"".join(note + b"\n" for note in notes[:2]))
    keys = trusted(folder)
    assert verify(str(folder), keys).ok
    kept = [each.read_bytes() for each in seen.iterdir()]
    report = verify(str(folder), keys, checkpoints=kept)
    assert (report.ok, report.first_bad) == (False, 4)
    shutil.rmtree(folder)
    assert not verify(str(folder), keys, checkpoints=kept).ok


@pytest.mark.requirement("AUD-2")
def test_checkpoint_that_a_witness_has_is_never_replaced(folder, seen):
    """A history written anew by who has the key must not wipe out what was told of the first."""
    with AuditLog.open(str(folder), settings=watched(seen)) as log:
        log.write(event(0))
        sign(log)
        kept = max(seen.iterdir())
        before = kept.read_bytes()
        forged = [lines_of(folder)[0], lines_of(folder)[1].replace(b"ann", b"bob")]
        note = note_over(folder, forged, private_key(folder))
        log.notary._witness.publish(witness_module.Checkpoint("x/" + kept.name[:32], 2, b""), note)
        assert kept.read_bytes() == before
    assert to_audit_failure(folder)[0] == "the directory has another one of this size"


def test_witness_that_is_away_is_told_of_once_and_stops_nothing(folder, seen):
    with AuditLog.open(str(folder), settings=watched(seen)) as log:
        seen.rmdir() if not list(seen.iterdir()) else shutil.rmtree(seen)
        for number in range(3):
            log.write(event(number))
            sign(log)
        assert to_audit_failure(folder) == [
            "the directory did not take it: No such file or directory"
        ]
        seen.mkdir()
        log.write(event(9))
        sign(log)
        assert to_audit_failure(folder)[1:] == ["it answers again"]
        assert log.verify().ok


def test_command_gets_the_note_and_nothing_else(folder, tmp_path):
    need(shutil.which("tee"), "tee")
    out = tmp_path / "out"
    command = ("tee", "-a", str(out))
    with AuditLog.open(str(folder), settings=replace(NEVER, witness_command=command)) as log:
        log.write(event(0))
    assert out.read_bytes() == b"".join(find_notes(notes_path(folder).read_bytes()))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("false",), "the command ended with 1"),
        (
            ("/no/such/command",),
            "the command was not started: its program is missing. Correct the path.",
        ),
    ],
)
def test_command_that_fails_is_told_of_once(folder, command, problem):
    with AuditLog.open(str(folder), settings=replace(NEVER, witness_command=command)) as log:
        log.write(event(0))
        sign(log)
        assert to_audit_failure(folder) == [problem]
        assert log.verify().ok


def test_command_that_hangs_is_given_up(folder, monkeypatch):
    monkeypatch.setattr(witness_module, "_TIMEOUT_S", 0.1)
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    with AuditLog.open(str(folder), settings=replace(NEVER, witness_command=command)):
        assert to_audit_failure(folder) == ["the command failed: TimeoutExpired"]


def test_nothing_of_the_problem_names_a_path(folder, tmp_path):
    settings = replace(NEVER, witness_directory=str(tmp_path / "secret-place"))
    with AuditLog.open(str(folder), settings=settings):
        pass
    assert "secret-place" not in str(all_records(folder))


def test_witness_leaves_nothing_open(folder, seen):
    with AuditLog.open(str(folder), settings=watched(seen)) as log:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(3):
            log.write(event(number))
            sign(log)
        assert len(os.listdir("/proc/self/fd")) == before
