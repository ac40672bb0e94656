"""The index is a help and no evidence: lost, torn or damaged, it is made anew."""

from __future__ import annotations

import os
import struct

import pytest

from holdfast.audit import files
from holdfast.audit.index import (
    ROW_BYTES,
    catch_up,
    lacks_rows,
    read_index,
    row_of,
)
from holdfast.audit.keeping import keep
from holdfast.audit.log import AuditLog
from holdfast.audit.merkle import leaf_hash
from holdfast.audit.segments import Segment, list_segments
from holdfast.core.events import Event, EventKind
from holdfast.core.verdict import Verdict
from unit.audit.audit_logs import NEVER, event, lines_of

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
        catch_up(segment, descriptor, **more)
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
        keep(str(folder), NEVER, log.write)
        whole = index_path.read_bytes()
        for spoil in (index_path.unlink, lambda: index_path.write_bytes(whole[:100])):
            spoil()
            assert lacks_rows(list_segments(str(folder))[0])
            keep(str(folder), NEVER, log.write)
            assert index_path.read_bytes() == whole
        assert not lacks_rows(list_segments(str(folder))[0])


def test_rows_tell_kinds_verdicts_names_and_times(folder, segment):
    index(folder, segment)
    found = read_index(segment)
    assert found.of_kind(EventKind.BEGIN) == {0}
    assert found.of_kind(EventKind.INTENT) == set(range(1, COUNT))
    assert found.of_verdict(Verdict.DENY) == {3, 6, 9}
    assert found.matching("action_id", "act_4") == {5}
    assert found.matching("principal", "ann") == set(range(1, COUNT))
    assert found.between(0, 1 << 63) == set(range(COUNT))
    assert found.between(0, 1) == set()


def test_mark_across_two_columns_is_no_match(folder, segment):
    """A search finds bytes anywhere; only those in their own column count."""
    index(folder, segment)
    found = read_index(segment)
    assert found.matching("session_id", "ann") == set()
    assert found.matching("id", "act_4") == set()


def test_line_that_is_no_record_has_an_empty_row():
    assert len(row_of(b"nonsense", 9, b"\0" * 32)) == ROW_BYTES


def test_record_from_before_1970_has_a_row(folder):
    line = lines_of(folder)[1]
    at = line.index(b'"time":"') + 8
    old = line[:at] + b"1969-12-31T23:59:59.000000Z" + line[line.index(b'"', at) :]
    assert len(row_of(old, 9, b"\0" * 32)) == ROW_BYTES


def test_name_with_a_quote_is_found(tmp_path):
    folder = tmp_path / "other"
    name = 'act_"quoted\\" \u00e9'
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(Event(EventKind.INTENT, name, name, "sdk", {}, session_id=name))
    segment = list_segments(str(folder))[0]
    index(folder, segment)
    found = read_index(segment)
    for field in ("action_id", "principal", "session_id"):
        assert found.matching(field, name) == {1}
