"""Somebody who can write to the audit folder, and does not have the key (AUD-2).

Each of these once passed: the verifier said that all was well, or our own notary signed it.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace

import pytest
import zstandard

from cellwall.admin import audit_queries
from cellwall.audit import index as index_module
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import hold, holds, maintain_segments, release
from cellwall.audit.verify import verify
from cellwall.core.errors import AuditFailed
from cellwall.core.keys import make_key
from cellwall.core.notes import signed_note
from unit.audit.audit_logs import (
    ANN,
    NEVER,
    aged,
    event,
    lines_of,
    note_over,
    notes_path,
    packed_path,
    private_key,
    put_lines,
    records_path,
    relinked,
    sign,
    trusted,
)

pytestmark = pytest.mark.requirement("AUD-2")
NOW = replace(NEVER, keep_days=0)
WEEK = replace(NEVER, keep_days=7)


@pytest.fixture
def folder(tmp_path):
    with AuditLog.open(str(tmp_path / "audit"), settings=NEVER) as log:
        for number in range(5):
            log.write(event(number))
        sign(log)
        log.write(event(5))
    return tmp_path / "audit"


def reopened(folder):
    return AuditLog.open(str(folder), settings=NEVER)


def appended(folder, kind, body, first=1):
    """A record that anybody can write who knows the format."""
    lines = lines_of(folder, first)
    like = json.loads(lines[-1]) | {"kind": kind, "body": body, "id": "evt_" + "0" * 26}
    more = json.dumps(like, sort_keys=True, separators=(",", ":")).encode()
    start = json.loads(lines[0])
    put_lines(folder, relinked([*lines, more], start=start["seq"], prev=start["prev"]), first)


def refuses_to_sign(folder):
    with pytest.raises(AuditFailed) as caught, reopened(folder) as log:
        log.write(event(99))
        sign(log)
    return caught.value.code


def test_a_deletion_told_by_an_unsigned_record_is_no_rule(folder):
    with reopened(folder) as log:
        log.seal()
        log.write(event(7))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
    packed_path(folder).unlink()
    last = json.loads((folder / "0000000000000001.seal").read_text())["last"]
    growing = last + 1
    for note in ("", signed_note("x\n", make_key(str(folder.parent / "mine"), "cellwall-audit"))):
        body = {"first": 1, "last": last, "note": note if note == "" else note.decode()}
        appended(folder, "retention", body, growing)
        report = verify(str(folder), trusted(folder))
        assert not report.ok


def test_a_key_is_not_taken_over_by_a_line_below_a_checkpoint(folder):
    mine = make_key(str(folder.parent / "mine"), "cellwall-audit")
    body = {"key": str(mine.public), "reason": "rotation", "note": ""}
    appended(folder, "key", body)
    with reopened(folder) as log:
        log.write(event(8))
    note = note_over(folder, lines_of(folder), mine).decode().rpartition("\n\n")[2]
    with notes_path(folder).open("ab") as file:
        file.seek(-1, os.SEEK_END)
        file.truncate()
        file.write(note.encode() + b"\n")
    report = verify(str(folder), trusted(folder))
    assert not report.ok
    assert str(mine.public) not in report.keys


@pytest.mark.parametrize("trick", ["a note without a signature", "no note at all"])
def test_a_history_written_anew_is_not_signed(folder, trick):
    lines = lines_of(folder)
    lines[2] = lines[2].replace(b'"n":1', b'"n":7')
    put_lines(folder, relinked(lines))
    (folder / "tip.json").unlink()
    if trick == "no note at all":
        notes_path(folder).unlink()
    else:
        other = make_key(str(folder.parent / "mine"), "cellwall-audit")
        notes_path(folder).write_bytes(note_over(folder, lines_of(folder), other) + b"\n")
    assert refuses_to_sign(folder) == "CW-AUDIT-ALTERED"
    assert not verify(str(folder), trusted(folder)).ok


def test_what_is_no_record_or_does_not_follow_is_not_signed(folder):
    with records_path(folder).open("ab") as file:
        file.write(lines_of(folder)[-1] + b"\n")
    assert refuses_to_sign(folder) == "CW-AUDIT-ALTERED"


def test_a_last_record_that_nobody_could_read_is_found_before_it_is_signed(folder):
    with reopened(folder) as log:
        log.write(event(8))
        log.notary._unsigned = 0  # as if killed before it was signed
    lines = lines_of(folder)
    lines[-1] = lines[-1].replace(b'"body":{"n":8}', b'"body":{"n":"8}')
    put_lines(folder, lines)
    assert verify(str(folder), trusted(folder)).first_bad == len(lines)
    assert refuses_to_sign(folder) == "CW-AUDIT-ALTERED"


def test_a_changed_seal_is_found_and_nothing_is_deleted_by_it(folder):
    with reopened(folder) as log:
        log.seal()
        log.write(event(7))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        path = folder / "0000000000000001.seal"
        told = json.loads(path.read_text())
        path.write_text(json.dumps({**told, "subtrees": ["00" * 32] * len(told["subtrees"])}))
        assert verify(str(folder), trusted(folder)).first_bad == 1
        with pytest.raises(AuditFailed):
            maintain_segments(str(folder), NOW, log.write, log.notary)
        assert packed_path(folder).exists()


def test_the_next_record_is_linked_to_the_record_and_not_to_what_a_seal_says(folder):
    with reopened(folder) as log:
        log.seal()
        maintain_segments(str(folder), NEVER, log.write, log.notary)
    path = folder / "0000000000000001.seal"
    good = path.read_text()
    path.write_text(json.dumps({**json.loads(good), "leaf": "00" * 32}))
    with reopened(folder) as log:
        log.write(event(7))
    path.write_text(good)
    assert verify(str(folder), trusted(folder)).ok


def test_a_segment_that_is_there_twice_must_be_the_same(folder):
    with reopened(folder) as log:
        log.seal()
        log.write(event(7))
        plain = records_path(folder).read_bytes()
        maintain_segments(str(folder), NEVER, log.write, log.notary)
    records_path(folder).write_bytes(plain)
    assert verify(str(folder), trusted(folder)).ok  # the control: killed before the original went

    packed_path(folder).write_bytes(zstandard.compress(plain.replace(b'"n":1', b'"n":9')))
    assert verify(str(folder), trusted(folder)).first_bad == 1


def test_a_hold_is_not_lifted_by_removing_a_file(folder):
    with reopened(folder) as log:
        hold(str(folder), "case", "a court", log.write, ANN)
        log.seal()
        log.write(event(7))
        for path in folder.glob("hold*"):
            path.unlink()
        assert holds(str(folder)) == {"case": "a court"}
        assert maintain_segments(str(folder), NOW, log.write, log.notary) == []


@pytest.fixture
def packed(folder):
    with reopened(folder) as log:
        log.seal()
        log.write(event(7))
        maintain_segments(str(folder), WEEK, log.write, log.notary)
        assert packed_path(folder).exists()
        yield log


def test_a_file_with_an_old_date_is_not_deleted_before_its_time(packed, folder, monkeypatch):
    os.utime(packed_path(folder), (1.0, 1.0))
    assert maintain_segments(str(folder), WEEK, packed.write, packed.notary) == []
    aged(monkeypatch, folder, 8, 1)
    assert maintain_segments(str(folder), WEEK, packed.write, packed.notary) == [1]  # the control
    sign(packed)
    assert packed.verify().ok


def test_a_record_with_an_old_date_is_not_deleted_before_its_time(folder, monkeypatch):
    """The clock of the machine was wrong when it was written; or it was no clock."""
    with reopened(folder) as log:
        with monkeypatch.context() as patch:
            aged(patch, folder, -400, 1)
            log.seal()
        log.write(event(7))
        maintain_segments(str(folder), WEEK, log.write, log.notary)
        os.utime(packed_path(folder), (1.0, 1.0))
        assert maintain_segments(str(folder), WEEK, log.write, log.notary) == []
        aged(monkeypatch, folder, 8, 1)
        assert maintain_segments(str(folder), WEEK, log.write, log.notary) == [1]  # the control


def test_a_record_that_is_not_old_is_not_deleted_whatever_files_say(folder, monkeypatch):
    """The clock of the machine was wrong when it was packed."""
    with reopened(folder) as log:
        with monkeypatch.context() as patch:
            aged(patch, folder, 10, 1)
            log.write(event(6))
            log.seal()
            log.write(event(7))
        maintain_segments(str(folder), WEEK, log.write, log.notary)
        for days, gone in ((8, []), (18, [1])):
            with monkeypatch.context() as patch:
                aged(patch, folder, days, 1)
                assert maintain_segments(str(folder), WEEK, log.write, log.notary) == gone
        sign(log)
        assert log.verify().ok


def test_records_that_were_changed_are_not_deleted_by_rule(packed, folder, monkeypatch):
    """Nobody could ever see again that they had been."""

    good = packed_path(folder).read_bytes()
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(good)
    aged(monkeypatch, folder, 8, 1)
    for bad in (plain.replace(b'"n":1', b'"n":9'), plain[: plain[:-1].rfind(b"\n") + 1], b""):
        packed_path(folder).write_bytes(zstandard.compress(bad))
        with pytest.raises(AuditFailed) as caught:
            maintain_segments(str(folder), WEEK, packed.write, packed.notary)
        assert caught.value.code == "CW-AUDIT-ALTERED"
        assert packed_path(folder).exists()
    packed_path(folder).write_bytes(good)
    assert maintain_segments(str(folder), WEEK, packed.write, packed.notary) == [1]  # the control


def test_a_hold_that_the_index_hides_still_holds(packed, folder, monkeypatch):
    hold(str(folder), "case", "a court", packed.write, ANN)
    packed.seal()
    packed.write(event(8))
    assert maintain_segments(str(folder), WEEK, packed.write, packed.notary) == []
    hidden = next(path for path in folder.glob("*.index") if hide_holds(path))
    aged(monkeypatch, folder, 8, 1)
    assert holds(str(folder)) == {}, "it is hidden"
    assert maintain_segments(str(folder), WEEK, packed.write, packed.notary) == []
    assert packed_path(folder).exists()
    hidden.unlink()
    assert holds(str(folder)) == {"case": "a court"}
    assert release(str(folder), "case", packed.write, ANN)
    assert maintain_segments(str(folder), WEEK, packed.write, packed.notary)[0] == 1  # the control


def hide_holds(path) -> bool:
    """Give them another kind in the index, and the rows a checksum that fits."""
    data, head = bytearray(path.read_bytes()), index_module._HEAD
    kinds = range(head.size + index_module._KIND_AT, len(data), index_module.ROW_BYTES)
    found = [at for at in kinds if data[at] == index_module._KINDS[b"hold"]]
    for at in found:
        data[at] = index_module._KINDS[b"intent"]
    magic, count, _ = head.unpack_from(data)
    data[: head.size] = head.pack(magic, count, zlib.crc32(data[head.size :]))
    path.write_bytes(data)
    return bool(found)


def test_given_checkpoints_are_never_skipped_in_silence(folder):
    early = note_over(folder, lines_of(folder)[:2], private_key(folder))
    forged = note_over(folder, [b"x", b"y"], private_key(folder))
    with reopened(folder) as log:
        log.seal()
        log.write(event(7))
    keys = trusted(folder)
    assert verify(str(folder), keys, checkpoints=[early]).ok  # the control
    assert not verify(str(folder), keys, checkpoints=[forged]).ok
    for note in (early, forged):
        report = verify(str(folder), keys, checkpoints=[note], since=9)
        assert not report.ok
        assert "skipped" in report.reason


def test_the_witness_is_asked_about_what_was_signed_and_not_about_a_file(folder, tmp_path):
    witness = tmp_path / "witness"
    witness.mkdir()
    with pytest.raises(Exception, match="no checkpoint of this log"):
        audit_queries.check(directory=str(folder), witness=str(witness))
    (witness / "a.checkpoint").write_bytes(note_over(folder, lines_of(folder), private_key(folder)))
    assert audit_queries.check(directory=str(folder), witness=str(witness)).ok
    lines = lines_of(folder)
    put_lines(folder, lines[:6])
    notes = notes_path(folder).read_bytes().split(b"\n\n")
    notes_path(folder).write_bytes(b"\n\n".join(notes[:4]) + b"\n\n")
    (folder / "origin").write_text("cellwall/audit/another\n")
    assert not audit_queries.check(directory=str(folder), witness=str(witness)).ok


def test_an_idle_process_finds_the_segment_that_grows(folder):
    with reopened(folder) as idle, reopened(folder) as busy:
        idle.write(event(6))
        sign(idle)
        for number in range(3):
            busy.write(event(10 + number))
            busy.seal()
            maintain_segments(str(folder), NEVER, busy.write, busy.notary)
        idle.write(event(20))
        sign(idle)
        assert idle.notary.failure is None
        busy.write(event(21))
        assert busy.verify().ok


def test_a_removed_lock_stops_the_writers(folder):
    with reopened(folder) as log:
        (folder / "lock").unlink()
        with pytest.raises(AuditFailed):
            log.write(event(9))
