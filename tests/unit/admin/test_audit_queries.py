"""The log of this user, checked with what is known of it outside of its folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cellwall.admin import audit_queries
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.core.outcomes import Event, EventKind

NEVER = LogSettings(checkpoint_events=1_000_000, checkpoint_s=3600.0)


def written(folder: Path, count: int) -> None:
    with AuditLog.open(str(folder), settings=NEVER) as log:  # signed when it is closed
        for _ in range(count):
            log.write(Event(EventKind.SESSION, "", "ann", "sdk", {"status": "begun"}))


@pytest.fixture
def folder(state_home: str) -> Path:
    place = Path(state_home, "audit")
    written(place, 3)
    return place


def old_copy_in_place(folder: Path, aside: Path) -> None:
    shutil.copytree(folder, aside, symlinks=True)
    written(folder, 5)
    assert audit_queries.check().ok  # the control
    shutil.rmtree(folder)
    shutil.copytree(aside, folder, symlinks=True)
    os.chmod(folder, 0o700)


@pytest.mark.requirement("AUD-2")
def test_old_copy_of_the_log_in_its_place_is_told(folder: Path, tmp_path: Path) -> None:
    old_copy_in_place(folder, tmp_path / "old")
    report = audit_queries.check()
    assert (report.ok, report.records) == (False, 4)
    # Elsewhere it is what it is: a log that was whole then.
    assert audit_queries.check(directory=str(tmp_path / "old")).ok


@pytest.mark.requirement("AUD-2")
def test_old_copy_is_told_though_its_own_word_was_taken_away(folder: Path, tmp_path: Path) -> None:
    old_copy_in_place(folder, tmp_path / "old")
    (folder / "origin").unlink()
    assert not audit_queries.check().ok


@pytest.mark.requirement("AUD-2")
def test_log_that_was_begun_anew_is_another_one(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder, tmp_path / "away")
    (folder.parent / "keys" / "audit.signed").rename(tmp_path / "signed")
    written(folder, 1)
    shutil.copy(tmp_path / "signed", folder.parent / "keys" / "audit.signed")
    assert audit_queries.check().ok


@pytest.mark.parametrize("note", [b"", b"no note\n", b"\xff" * 100_000])
def test_memory_that_cannot_be_read_says_nothing(folder: Path, note: bytes) -> None:
    (folder.parent / "keys" / "audit.signed").write_bytes(note)
    assert audit_queries.check().ok
