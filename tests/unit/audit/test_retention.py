"""Sealed segments are packed, deleted by rule, and held when somebody says so (AUD-4)."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace

import pytest
import zstandard

from cellwall.audit import retention
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import hold, holds, maintain_segments, release
from cellwall.core.errors import AuditFailed
from unit.audit.audit_logs import (
    ANN,
    NEVER,
    aged,
    all_records,
    event,
    notes_path,
    packed_path,
    records_path,
    sign,
)

WEEK = replace(NEVER, keep_days=7)
NOW = replace(NEVER, keep_days=0)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def log(folder):
    with AuditLog.open(str(folder), settings=NEVER) as opened:
        yield opened


@pytest.fixture
def sealed(log, folder):
    """Segments 1 and 4, sealed, and a growing one."""
    for number in range(2):
        log.write(event(number))
        log.seal()
    log.write(event(2))
    return log


@pytest.mark.requirement("AUD-4")
def test_sealed_segments_are_packed_and_hold_the_same_bytes(sealed, folder):
    before = {first: records_path(folder, first).read_bytes() for first in (1, 4)}
    assert maintain_segments(str(folder), NEVER, sealed.write, sealed.notary) == []
    for first, data in before.items():
        packed = packed_path(folder, first)
        assert zstandard.ZstdDecompressor().decompressobj().decompress(packed.read_bytes()) == data
        assert not records_path(folder, first).exists()
    assert records_path(folder, 6).exists()
    assert sealed.verify().ok


def test_packing_that_went_wrong_leaves_the_original(sealed, folder, monkeypatch):
    before = records_path(folder).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(retention, "_digest", lambda file: os.urandom(32))
        with pytest.raises(OSError, match="differs from the original"):
            maintain_segments(str(folder), NEVER, sealed.write, sealed.notary)
    assert records_path(folder).read_bytes() == before
    assert not packed_path(folder).exists()
    assert not list(folder.glob(".*"))
    maintain_segments(str(folder), NEVER, sealed.write, sealed.notary)
    assert sealed.verify().ok


def test_crash_between_packing_and_deleting_the_original_is_mended(sealed, folder, monkeypatch):
    def die(name, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention.os, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            maintain_segments(str(folder), NEVER, sealed.write, sealed.notary)
    assert records_path(folder).exists()
    assert packed_path(folder).exists()
    assert sealed.verify().ok
    maintain_segments(str(folder), NEVER, sealed.write, sealed.notary)
    assert not records_path(folder).exists()
    assert sealed.verify().ok


@pytest.mark.requirement("AUD-4")
def test_nothing_is_deleted_without_a_rule(sealed, folder, monkeypatch):
    maintain_segments(str(folder), NEVER, sealed.write, sealed.notary)
    aged(monkeypatch, folder, 10_000, 1, 4)
    assert maintain_segments(str(folder), NEVER, sealed.write, sealed.notary) == []
    assert packed_path(folder).exists()


@pytest.mark.requirement("AUD-4")
def test_old_segments_are_deleted_and_the_record_says_so(sealed, folder, monkeypatch):
    maintain_segments(str(folder), WEEK, sealed.write, sealed.notary)
    aged(monkeypatch, folder, 8, 1)
    seal = json.loads((folder / "0000000000000001.seal").read_text())
    assert maintain_segments(str(folder), WEEK, sealed.write, sealed.notary) == [1]
    assert not packed_path(folder, 1).exists()
    assert not (folder / "0000000000000001.index").exists()
    assert packed_path(folder, 4).exists()
    assert notes_path(folder, 1).exists()
    body = all_records(folder)[-1]["body"]
    assert (body["first"], body["last"], body["keep_days"]) == (1, seal["last"], 7)
    sign(sealed)
    report = sealed.verify()
    assert (report.ok, report.deleted, report.signed) == (True, 3, report.records)
    assert maintain_segments(str(folder), WEEK, sealed.write, sealed.notary) == []


@pytest.mark.requirement("AUD-4")
def test_deletion_that_cannot_be_told_is_not_done(sealed, folder, monkeypatch):
    maintain_segments(str(folder), WEEK, sealed.write, sealed.notary)
    aged(monkeypatch, folder, 8, 1, 4)

    def refuse(_):
        raise AuditFailed("no")

    with pytest.raises(AuditFailed):
        maintain_segments(str(folder), WEEK, refuse, sealed.notary)
    assert packed_path(folder).exists()
    assert sealed.verify().ok


def test_younger_segment_before_an_older_one_keeps_it(sealed, folder, monkeypatch):
    """Only from the beginning: a hole would be none of the rule's."""
    maintain_segments(str(folder), WEEK, sealed.write, sealed.notary)
    aged(monkeypatch, folder, 8, 4)
    assert maintain_segments(str(folder), WEEK, sealed.write, sealed.notary) == []


def test_growing_and_unsigned_segments_are_never_deleted(log, folder):
    log.write(event(0))
    log._writer.seal()
    log.write(event(1))
    assert maintain_segments(str(folder), NOW, log.write, log.notary) == []
    assert records_path(folder).exists(), "no seal file: it is not signed"
    sign(log)
    assert maintain_segments(str(folder), NOW, log.write, log.notary) == [1]
    assert log.verify().ok


def test_what_tells_of_a_deletion_may_be_deleted_itself(log, folder):
    """For years: each deletion takes the record of the one before it along."""
    for number in range(6):
        log.write(event(number))
        log.seal()
        log.write(event(number))
        assert len(maintain_segments(str(folder), NOW, log.write, log.notary)) == 1
        sign(log)
        report = log.verify()
        assert (report.ok, report.reason) == (True, "")
        assert report.deleted == max(each["body"]["last"] for each in to_audit_failure(folder))


def to_audit_failure(folder) -> list[dict]:
    return [each for each in all_records(folder) if each["kind"] == "retention"]


def test_deletion_by_hand_is_not_told_as_one_by_rule(sealed, folder, monkeypatch):
    maintain_segments(str(folder), WEEK, sealed.write, sealed.notary)
    packed_path(folder, 4).unlink()
    aged(monkeypatch, folder, 8, 1)
    with pytest.raises(AuditFailed, match="gone"):
        maintain_segments(
            str(folder), WEEK, sealed.write, sealed.notary
        )  # after it has deleted the first
    sealed.write(event(5))
    sealed.seal()
    sealed.write(event(6))
    with pytest.raises(AuditFailed, match="gone"):
        maintain_segments(str(folder), WEEK, sealed.write, sealed.notary)
    aged(monkeypatch, folder, 8, 6)
    with pytest.raises(AuditFailed, match="gone"):
        maintain_segments(str(folder), WEEK, sealed.write, sealed.notary)
    sign(sealed)
    assert (sealed.verify().ok, sealed.verify().first_bad) == (False, 4)


def test_log_goes_on_after_everything_old_is_gone(sealed, folder):
    assert maintain_segments(str(folder), NOW, sealed.write, sealed.notary) == [1, 4]
    (folder / "tip.json").unlink()
    sealed.close()
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(9))
        log.seal()
        assert log.verify().ok
        log.write(event(10))
        assert maintain_segments(str(folder), NOW, log.write, log.notary) == [6]
        sign(log)
        assert log.verify().ok


# --- holds


@pytest.mark.requirement("AUD-4")
def test_hold_keeps_everything_until_it_is_released(sealed, folder):
    hold(str(folder), "case-7", "a court", sealed.write, ANN)
    hold(str(folder), "case-8", "another", sealed.write, ANN)
    assert holds(str(folder)) == {"case-7": "a court", "case-8": "another"}
    assert maintain_segments(str(folder), NOW, sealed.write, sealed.notary) == []
    assert release(str(folder), "case-7", sealed.write, ANN)
    assert maintain_segments(str(folder), NOW, sealed.write, sealed.notary) == []
    assert release(str(folder), "case-8", sealed.write, ANN)
    assert not release(str(folder), "case-8", sealed.write, ANN)
    told = [each["body"] for each in all_records(folder) if each["kind"] == "hold"]
    assert {each["principal"] for each in all_records(folder) if each["kind"] == "hold"} == {"ann"}
    assert [(each["what"], each["name"]) for each in told] == [
        ("hold", "case-7"),
        ("hold", "case-8"),
        ("release", "case-7"),
        ("release", "case-8"),
    ]
    assert maintain_segments(str(folder), NOW, sealed.write, sealed.notary) == [1, 4]
    assert sealed.verify().ok


def test_hold_that_cannot_be_told_is_not_made(folder, sealed):
    def refuse(_):
        raise AuditFailed("no")

    with pytest.raises(AuditFailed):
        hold(str(folder), "case", "why", refuse, ANN)
    assert holds(str(folder)) == {}


def test_one_at_a_time(sealed, folder):
    with (folder / "keeping.lock").open("w") as file:
        os.chmod(folder / "keeping.lock", 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert maintain_segments(str(folder), NOW, sealed.write, sealed.notary) == []
        assert records_path(folder).exists()
    assert maintain_segments(str(folder), NOW, sealed.write, sealed.notary) == [1, 4]


def test_nothing_stays_open(sealed, folder):
    before = len(os.listdir("/proc/self/fd"))
    hold(str(folder), "a", "b", sealed.write, ANN)
    release(str(folder), "a", sealed.write, ANN)
    release(str(folder), "a", sealed.write, ANN)
    maintain_segments(str(folder), NOW, sealed.write, sealed.notary)
    assert len(os.listdir("/proc/self/fd")) == before
