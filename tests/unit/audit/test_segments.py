"""Files of the log are read as what they are, or refused."""

from __future__ import annotations

import io
import json
import os
import time
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from cellwall.audit import segment_content, segments
from cellwall.audit.merkle import Frontier, leaf_hash
from cellwall.audit.records import MAX_RECORD_BYTES
from cellwall.audit.segment_content import SegmentContent
from cellwall.audit.segments import (
    BLOCK_BYTES,
    CHECKPOINTS,
    PACKED,
    RECORDS,
    SEAL,
    BadSegment,
    Seal,
    Segment,
    find_notes,
    list_segments,
    open_records,
    parts_agree,
    read_lines,
    read_notes,
    read_seal,
    segment_name,
)

NOTE = b"origin\n3\n" + b"A" * 43 + b"=\n\n" + "\u2014 cellwall-audit AAAA\n".encode()


def segment(folder, *parts: str, first: int = 1) -> Segment:
    return Segment(str(folder), first, frozenset(parts))


def seal_of(size: int) -> Seal:
    frontier = Frontier()
    for number in range(size):
        frontier.push(leaf_hash(bytes([number])))
    return Seal(1, size, "ab" * 32, frontier)


def test_only_names_of_the_log_are_segments(tmp_path):
    for name in (
        "0000000000000001.jsonl",
        "0000000000000001.seal",
        "0000000000000009.jsonl.zst",
        "0000000000000010.checkpoints",
        ".0000000000000009.jsonl.zst",
        "0000000000000001.jsonl.bak",
        "1.jsonl",
        "x0000000000000001.jsonl",
        "lock",
    ):
        (tmp_path / name).touch()
    assert list_segments(str(tmp_path)) == [
        segment(tmp_path, RECORDS, SEAL),
        segment(tmp_path, PACKED, first=9),
        segment(tmp_path, CHECKPOINTS, first=10),
    ]
    assert [each.has_records for each in list_segments(str(tmp_path))] == [True, True, False]


def test_names_sort_as_numbers_do():
    assert sorted(segment_name(n, RECORDS) for n in (9, 10, 1)) == [
        segment_name(n, RECORDS) for n in (1, 9, 10)
    ]


@given(st.lists(st.binary(max_size=50).filter(lambda line: b"\n" not in line), max_size=20))
def test_lines_come_back_whole(lines):
    data = b"".join(line + b"\n" for line in lines)
    assert list(read_lines(io.BytesIO(data))) == [(line, True) for line in lines]
    assert list(read_lines(io.BytesIO(data + b"torn"))) == [
        *((line, True) for line in lines),
        (b"torn", False),
    ]


def test_endless_line_is_not_read_to_its_end():
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size=-1):
            self.given += size
            return b"x" * size

    file = Endless()
    ((line, is_whole),) = read_lines(file)
    assert (is_whole, len(line) <= MAX_RECORD_BYTES + 2**20, file.given <= 2**21) == (
        False,
        True,
        True,
    )


def test_lines_longer_than_a_block_are_put_together():
    long = b"x" * (2**20 - 10)
    data = long + b"\n" + b"y" * 50 + b"\n"
    assert list(read_lines(io.BytesIO(data))) == [(long, True), (b"y" * 50, True)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_seal_reads_back(tmp_path, size):
    seal = seal_of(size)
    (tmp_path / segment_name(1, SEAL)).write_text(json.dumps(seal.to_json()))
    found = read_seal(segment(tmp_path, SEAL))
    assert (found.first, found.last, found.leaf) == (1, size, "ab" * 32)
    assert found.frontier.root() == seal.frontier.root()


@pytest.mark.parametrize(
    "changes",
    [
        {"first": 2},
        {"last": 0},
        {"last": 4},
        {"last": "3"},
        {"last": 3.0},
        {"last": True},
        {"leaf": "ab"},
        {"leaf": None},
        {"leaf": "zz" * 32},
        {"subtrees": []},
        {"subtrees": ["00"] * 2},
        {"subtrees": 7},
        {"subtrees": None},
    ],
)
def test_seal_that_contradicts_itself_is_refused(tmp_path, changes):
    (tmp_path / segment_name(1, SEAL)).write_text(json.dumps(seal_of(3).to_json() | changes))
    with pytest.raises(BadSegment):
        read_seal(segment(tmp_path, SEAL))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\0", "[" * 60_000, "x" * 100_000])
def test_seal_that_is_none_is_refused(tmp_path, text):
    (tmp_path / segment_name(1, SEAL)).write_text(text)
    with pytest.raises(BadSegment):
        read_seal(segment(tmp_path, SEAL))


@pytest.mark.parametrize("plant", ["symlink", "fifo", "folder"])
@pytest.mark.parametrize("part", [RECORDS, PACKED, SEAL])
def test_file_that_is_no_plain_one_is_refused(tmp_path, plant, part):
    path = tmp_path / segment_name(1, part)
    match plant:
        case "symlink":
            (tmp_path / "real").write_bytes(b"x\n")
            path.symlink_to("real")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    with pytest.raises(BadSegment, match="not a plain file"):
        if part == SEAL:
            read_seal(segment(tmp_path, part))
        else:
            with open_records(segment(tmp_path, part)) as file:
                file.read()


def test_segment_packed_since_it_was_listed_is_read_all_the_same(tmp_path):
    listed = segment(tmp_path, RECORDS)
    (tmp_path / segment_name(1, PACKED)).write_bytes(zstandard.compress(b"a\nb\n"))
    with open_records(listed) as file:
        assert list(read_lines(file)) == [(b"a", True), (b"b", True)]


def test_packed_segment_that_is_damaged_is_refused(tmp_path):
    path = tmp_path / segment_name(1, PACKED)
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(b"abc\n" * 1000)
    for bad in (
        b"x" * 100,
        packed[:10] + b"\0" + packed[11:],
        packed[:-1] + b"\0",
        packed + b"xxxx",
    ):
        path.write_bytes(bad)
        with pytest.raises(BadSegment), open_records(segment(tmp_path, PACKED)) as file:
            list(read_lines(file))


def test_torn_notes_are_left_out_and_those_after_them_are_found():
    whole = NOTE + b"\n"
    assert find_notes(whole * 3) == [NOTE] * 3
    for end in range(1, len(NOTE)):
        assert find_notes(whole + NOTE[:end] + b"\n-\n\n" + whole) == [NOTE, NOTE]
        assert find_notes(whole + NOTE[:end]) == [NOTE]


@given(st.binary(max_size=200))
def test_foreign_bytes_hold_no_notes(data):
    assert find_notes(data) == []


@pytest.mark.parametrize(
    "data",
    [b"a" * 4_000_000, b"a\n" * 1_000_000, b"a\n1\n" * 500_000, (NOTE[:-1] + b" ") * 20_000],
    ids=["line", "lines", "numbers", "unfinished"],
)
def test_file_that_holds_no_notes_is_looked_through_once(data):
    began_s = time.process_time()
    find_notes(data)
    assert time.process_time() - began_s < 4.0, "the square of these lengths would take hours"


def test_notes_in_a_pipe_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "notes")
    with pytest.raises(BadSegment):
        read_notes(str(tmp_path / "notes"))


# --- what is packed


def pack(folder, data: bytes) -> None:
    (folder / segment_name(1, PACKED)).write_bytes(zstandard.compress(data))


@pytest.mark.slow
def test_packed_segment_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "MAX_SEGMENT_BYTES", 3 * BLOCK_BYTES)
    bomb = segment(tmp_path, PACKED)
    pack(tmp_path, b"x\n" * (BLOCK_BYTES * 3 // 2))
    assert SegmentContent(bomb).size_bytes == 3 * BLOCK_BYTES
    pack(tmp_path, b"x\n" * (BLOCK_BYTES * 3 // 2) + b"x")
    with pytest.raises(BadSegment, match="larger than any"):
        SegmentContent(bomb)
    with pytest.raises(BadSegment, match="larger than any"), open_records(bomb) as file:
        list(read_lines(file))
    with pytest.raises(BadSegment, match="larger than any"), open_records(bomb) as file:
        file.read()


def test_bomb_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_content, "_MAX_HELD_BLOCKS", 4)
    pack(tmp_path, b"\0" * (64 * BLOCK_BYTES))
    tracemalloc.start()
    try:
        content = SegmentContent(segment(tmp_path, PACKED))
        assert tracemalloc.get_traced_memory()[1] < 16 * BLOCK_BYTES
    finally:
        tracemalloc.stop()
    assert content.size_bytes == 64 * BLOCK_BYTES


@pytest.mark.parametrize("part", [RECORDS, PACKED])
@pytest.mark.slow
def test_content_is_the_same_wherever_it_is_read(tmp_path, part, monkeypatch):
    monkeypatch.setattr(segment_content, "_MAX_HELD_BLOCKS", 2)
    data = b"".join(b"%d\n" % number for number in range(700_000))
    pack(tmp_path, data)
    if part == RECORDS:
        (tmp_path / segment_name(1, RECORDS)).write_bytes(data)
    content, size = SegmentContent(segment(tmp_path, part)), len(data)
    assert content.size_bytes == size > 4 * BLOCK_BYTES
    for end in (size, size - 1, size // 2, size // 3, size - 7, BLOCK_BYTES, 10, 0):
        for length in (0, 1, 1000, BLOCK_BYTES):
            start = max(0, end - length)
            assert content.read(start, end) == data[start:end]
    for start, end in ((-1, 5), (5, 4), (0, size), (0, size + 1), (1 << 63, (1 << 63) + 5)):
        assert content.read(start, end) == b"", "no such place, or too much at once"


def test_content_that_becomes_shorter_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / segment_name(1, RECORDS)
    path.write_bytes(b"x" * (3 * BLOCK_BYTES))
    content = SegmentContent(segment(tmp_path, RECORDS))
    os.truncate(path, BLOCK_BYTES + 10)
    assert content.read(BLOCK_BYTES, BLOCK_BYTES + 100) == b"x" * 10
    os.truncate(path, 0)
    assert content.read(0, 100) == b""


def test_parts_of_a_segment_are_compared(tmp_path):
    plain, both = tmp_path / segment_name(1, RECORDS), segment(tmp_path, RECORDS, PACKED)
    data = b"abc\n" * BLOCK_BYTES
    plain.write_bytes(data)
    pack(tmp_path, data)
    assert parts_agree(both)
    for other in (b"", data[:-1], data + b"x", data[:-1] + b"x", b"x" + data[1:]):
        pack(tmp_path, other)
        assert not parts_agree(both)
        assert parts_agree(segment(tmp_path, RECORDS))
    plain.unlink()
    assert parts_agree(both), "one alone has nothing to disagree with"


def test_parts_that_cannot_be_compared_are_told(tmp_path):
    plain, both = tmp_path / segment_name(1, RECORDS), segment(tmp_path, RECORDS, PACKED)
    plain.write_bytes(b"abc\n")
    (tmp_path / segment_name(1, PACKED)).write_bytes(b"nonsense")
    with pytest.raises(BadSegment, match="unpacked"):
        parts_agree(both)
    plain.unlink()
    os.mkfifo(plain)
    with pytest.raises(BadSegment, match="not a plain file"):
        parts_agree(both)
