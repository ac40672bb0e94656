"""The index is a help and no evidence: lost, torn or damaged, it is made anew."""

from __future__ import annotations

import os
import struct
import zlib

import pytest

from cellwall.audit import files
from cellwall.audit.index import (
    ROW_BYTES,
    encode_row,
    is_incomplete,
    kind_column,
    name_column,
    read_index,
    update_index,
    verdict_column,
)
from cellwall.audit.log import AuditLog
from cellwall.audit.merkle import leaf_hash
from cellwall.audit.retention import maintain_segments
from cellwall.audit.segments import Segment, list_segments
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.verdict import Verdict
from unit.audit.audit_logs import NEVER, event, lines_of, put_lines

COUNT = 12


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "audit"
    with AuditLog.open(str(path), settings=NEVER) as log:
        for number in range(COUNT - 1):
            verdict = list(Verdict)[number % 3].word
            log.write(event(number, decision={"verdict": verdict, "rule": "x"}))
    return path


@pytest.fixture
def segment(folder) -> Segment:
    return list_segments(str(folder))[0]


@pytest.fixture
def index_path(folder):
    return folder / "0000000000000001.index"


def index(folder, segment, **more) -> None:
    descriptor = files.open_folder(str(folder))
    try:
        update_index(segment, descriptor, **more)
    finally:
        os.close(descriptor)


def test_rows_say_where_records_end_and_what_they_hash_to(folder, segment):
    index(folder, segment)
    found, end = read_index(segment), 0
    assert len(found) == COUNT
    assert list(found.leaves()) == [leaf_hash(line) for line in lines_of(folder)]
    for number, line in enumerate(lines_of(folder)):
        assert found.start(number) == end
        end += len(line) + 1
        assert found.row(number).end == end


@pytest.mark.parametrize("most", [1, 5, None])
def test_index_grows_step_by_step_to_the_same(folder, segment, index_path, most):
    index(folder, segment)
    whole = index_path.read_bytes()
    index_path.unlink()
    for _ in range(COUNT + 1):
        index(folder, segment, most=most)
    assert index_path.read_bytes() == whole


def test_index_follows_the_log(folder, segment):
    index(folder, segment)
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(99))
    index(folder, segment)
    assert list(read_index(segment).leaves()) == [leaf_hash(line) for line in lines_of(folder)]


def test_index_cut_anywhere_is_mended(folder, segment, index_path):
    index(folder, segment)
    whole = index_path.read_bytes()
    for end in [*range(40), *range(40, len(whole), 29), len(whole) - 1]:
        index_path.write_bytes(whole[:end])
        assert len(read_index(segment)) == 0
        index(folder, segment)
        assert index_path.read_bytes() == whole


def test_index_with_any_byte_changed_is_not_believed_and_made_anew(folder, segment, index_path):
    index(folder, segment)
    whole = index_path.read_bytes()
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        index_path.write_bytes(changed)
        found = read_index(segment)
        if 20 <= at < 32:  # the unused rest of the head
            assert len(found) == COUNT
            continue
        assert len(found) == 0
        index(folder, segment)
        assert index_path.read_bytes() == whole


@pytest.mark.parametrize("count", [1 << 39, (1 << 64) - 1, (1 << 63) // ROW_BYTES])
def test_index_that_promises_too_much_takes_no_memory(folder, segment, index_path, count):
    index(folder, segment)
    whole = index_path.read_bytes()
    index_path.write_bytes(whole[:8] + struct.pack("<Q", count) + whole[16:])
    assert len(read_index(segment)) == 0
    index(folder, segment)
    assert index_path.read_bytes() == whole


def test_lost_or_short_index_of_a_packed_segment_is_made_anew(folder, index_path):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.seal()
        log.write(event(0))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        whole = index_path.read_bytes()
        for spoil in (index_path.unlink, lambda: index_path.write_bytes(whole[:100])):
            spoil()
            assert is_incomplete(list_segments(str(folder))[0])
            maintain_segments(str(folder), NEVER, log.write, log.notary)
            assert index_path.read_bytes() == whole
        assert not is_incomplete(list_segments(str(folder))[0])


def test_rows_tell_kinds_verdicts_names_and_times(folder, segment):
    index(folder, segment)
    found = read_index(segment)
    rows = {
        kind_column(EventKind.BEGIN): {0},
        kind_column(EventKind.INTENT): set(range(1, COUNT)),
        verdict_column(Verdict.DENY): {3, 6, 9},
        kind_column(EventKind.APPROVAL): set(),
        name_column("action_id", "act_4"): {5},
        name_column("principal", "ann"): set(range(1, COUNT)),
    }
    for column, wanted in rows.items():
        assert found.matching(column) == wanted
        assert {number for number in range(COUNT) if found.has(number, column)} == wanted
        assert found.is_in_any(column) == bool(wanted)
    assert found.between(0, 1 << 63) == set(range(COUNT))
    assert found.between(0, 1) == set()


def test_mark_across_two_columns_is_no_match(folder, segment):
    """A search finds bytes anywhere; only those in their own column count."""
    index(folder, segment)
    found = read_index(segment)
    for column in (name_column("session_id", "ann"), name_column("id", "act_4")):
        assert found.matching(column) == set()
        assert not any(found.has(number, column) for number in range(COUNT))


def test_rows_of_a_span_end_in_it(folder, segment):
    index(folder, segment)
    found = read_index(segment)
    ends = [found.row(number).end for number in range(COUNT)]
    assert found.ending_within(0, ends[-1]) == range(COUNT)
    assert found.ending_within(ends[2], ends[5]) == range(3, 6)
    assert found.ending_within(ends[2] + 1, ends[5] - 1) == range(3, 5)
    assert not found.ending_within(ends[-1], ends[-1] + 9)


def test_line_that_is_no_record_has_an_empty_row():
    assert len(encode_row(b"nonsense", 9, b"\0" * 32)) == ROW_BYTES


def test_record_from_before_1970_has_a_row(folder):
    line = lines_of(folder)[1]
    at = line.index(b'"time":"') + 8
    old = line[:at] + b"1969-12-31T23:59:59.000000Z" + line[line.index(b'"', at) :]
    assert len(encode_row(old, 9, b"\0" * 32)) == ROW_BYTES


def test_name_with_a_quote_is_found(tmp_path):
    folder = tmp_path / "other"
    name = 'act_"quoted\\" \u00e9'
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(Event(EventKind.INTENT, name, name, "sdk", {}, session_id=name))
    segment = list_segments(str(folder))[0]
    index(folder, segment)
    found = read_index(segment)
    for field in ("action_id", "principal", "session_id"):
        assert found.matching(name_column(field, name)) == {1}


@pytest.mark.parametrize("plant", ["symlink", "fifo", "folder"])
def test_index_that_is_no_plain_file_is_none(folder, segment, index_path, plant):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.seal()
    index(folder, segment)
    match plant:
        case "symlink":
            index_path.rename(folder / "real")
            index_path.symlink_to("real")
        case "fifo":
            index_path.unlink()
            os.mkfifo(index_path)
        case "folder":
            index_path.unlink()
            index_path.mkdir()
    assert len(read_index(segment)) == 0
    assert is_incomplete(list_segments(str(folder))[0])
    with pytest.raises(OSError):  # nothing is written into it, and nobody waits
        index(folder, segment)


def test_records_taken_back_after_they_were_indexed_leave_no_rows(folder, segment, index_path):
    index(folder, segment)
    lines = lines_of(folder)
    short = [*lines[:-2], lines[-1]]  # ends, as the index has it, in the middle of nothing
    put_lines(folder, short)
    index(folder, segment)
    assert list(read_index(segment).leaves()) == [leaf_hash(line) for line in short]
    put_lines(folder, lines)
    index(folder, segment)
    assert list(read_index(segment).leaves()) == [leaf_hash(line) for line in lines]


def made_anew(whole: bytes, at: int, value: bytes) -> bytes:
    rows = bytearray(whole[32:])
    rows[at : at + len(value)] = value
    return whole[:8] + struct.pack("<QI12x", len(rows) // ROW_BYTES, zlib.crc32(rows)) + rows


@pytest.mark.parametrize("end", [0, 1 << 62, (1 << 64) - 1])
def test_index_that_ends_nowhere_is_made_anew(folder, segment, index_path, end):
    index(folder, segment)
    whole = index_path.read_bytes()
    last = (COUNT - 1) * ROW_BYTES
    index_path.write_bytes(made_anew(whole, last, struct.pack("<Q", end)))
    index(folder, segment)
    assert index_path.read_bytes() == whole
