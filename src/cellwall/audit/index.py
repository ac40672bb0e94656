"""A fixed-size row per record, so that searches need not read records that do not match.

The index is an aid, not evidence: it is rebuilt from the records when it is lost or damaged, and
every hit is checked against the record.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

from cellwall.audit import files
from cellwall.audit.files import closing_fd
from cellwall.audit.merkle import leaf_hash
from cellwall.audit.records import BadRecord, parse_record, tail_fields
from cellwall.audit.searchable_text import encoded_text
from cellwall.audit.segment_content import SegmentContent
from cellwall.audit.segments import (
    INDEX,
    MAX_SEGMENT_BYTES,
    SEAL,
    BadSegment,
    Segment,
    open_plain,
    open_records,
    read_lines,
    read_seal,
    segment_name,
    skip,
)
from cellwall.core.outcomes import EventKind
from cellwall.core.verdict import Verdict

_HEAD = struct.Struct("<8sQI12x")
_MAGIC = b"HFIDX\x00\x02\n"
_ROW = struct.Struct("<QQ32s8s8s8s8sBB6x")
ROW_BYTES = _ROW.size
_KINDS = {kind.value.encode(): number for number, kind in enumerate(EventKind, start=1)}
_VERDICTS = {verdict.name.lower().encode(): verdict.value + 1 for verdict in Verdict}
_ACTION = re.compile(rb'\{"action_id":"((?:[^"\\]|\\.)*+)"')
_VERDICT_MARK = b'"verdict":"'
_COLUMNS = {"id": 48, "action_id": 56, "session_id": 64, "principal": 72}
_KIND_AT, _VERDICT_AT = 80, 81
_MAX_ROWS = MAX_SEGMENT_BYTES // 200  # no record is shorter


class IndexRow(NamedTuple):
    """Where a record ends in its segment, when it was written, and its leaf hash."""

    end: int
    time_us: int
    leaf: bytes


def encode_row(line: bytes, end: int, leaf: bytes) -> bytes:
    """The row of a record that ends, including its newline, at this offset."""
    try:
        fields = tail_fields(line)
    except BadRecord:
        return _ROW.pack(end, 0, leaf, b"", b"", b"", b"", 0, 0)
    action = _ACTION.match(line)
    return _ROW.pack(
        end,
        parse_microseconds(fields.time),
        leaf,
        blake2b(fields.id, digest_size=8).digest(),
        _short_digest(action[1] if action else b""),
        _short_digest(fields.session_id),
        _short_digest(fields.principal),
        _KINDS.get(fields.kind, 0),
        _find_verdict(line),
    )


def _find_verdict(line: bytes) -> int:
    at = line.find(_VERDICT_MARK)
    if at < 0:
        return 0
    begin = at + len(_VERDICT_MARK)
    if line.find(_VERDICT_MARK, begin) < 0:
        return _VERDICTS.get(line[begin : line.find(b'"', begin)], 0)
    try:  # more than one: only the parsed record shows which one counts
        return _VERDICTS.get(str(verdict_of(parse_record(line)["body"])).encode(), 0)
    except BadRecord:
        return 0


def verdict_of(body: dict[str, Any]) -> object:
    """The verdict of the decision that a record describes, as a word."""
    decision = body.get("decision")
    return decision.get("verdict") if isinstance(decision, dict) else body.get("verdict")


@lru_cache(maxsize=4096)
def _short_digest(text: bytes) -> bytes:
    """Eight bytes that stand for a name; collisions are resolved by reading the record."""
    return blake2b(text, digest_size=8).digest()


@lru_cache(maxsize=64)
def parse_microseconds(time: bytes) -> int:
    """The time field of a record, in microseconds; 0 if it is malformed."""
    try:
        return max(0, to_microseconds(datetime.fromisoformat(time.decode("ascii"))))
    except (ValueError, OverflowError):
        return 0


def to_microseconds(time: datetime) -> int:
    """Microseconds since 1970. Rounded: float seconds are sometimes slightly too small."""
    return round(time.timestamp() * 1_000_000)


Column = tuple[int, bytes]
"""An offset in a row, and the bytes that are wanted there."""


def name_column(field: str, text: str) -> Column:
    """Of an id or a principal. Other names may have the same digest."""
    return _COLUMNS[field], _short_digest(encoded_text(text))


def kind_column(kind: EventKind) -> Column:
    """Of the kind of an event."""
    return _KIND_AT, bytes([_KINDS[kind.value.encode()]])


def verdict_column(verdict: Verdict) -> Column:
    """Of the verdict of a decision."""
    return _VERDICT_AT, bytes([verdict.value + 1])


class Index:
    """The rows of one segment."""

    def __init__(self, rows: bytes) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows) // ROW_BYTES

    def row(self, number: int) -> IndexRow:
        end, time_us, leaf, *_ = _ROW.unpack_from(self._rows, number * ROW_BYTES)
        return IndexRow(end, time_us, leaf)

    def start(self, number: int) -> int:
        return 0 if number == 0 else self.row(number - 1).end

    def leaves(self) -> Iterator[bytes]:
        rows = self._rows
        for at in range(16, len(rows), ROW_BYTES):
            yield rows[at : at + 32]

    def matching(self, column: Column) -> set[int]:
        """The rows that have these bytes; for a name, rows that may have it."""
        at, value = column
        if len(value) == 1:  # many rows have it
            return set(_places(self._rows[at::ROW_BYTES], value))
        hits = (divmod(place, ROW_BYTES) for place in _places(self._rows, value))
        return {number for number, offset in hits if offset == at}

    def is_in_any(self, column: Column) -> bool:
        """False if no row has these bytes."""
        at, value = column
        return value in (self._rows[at::ROW_BYTES] if len(value) == 1 else self._rows)

    def has(self, number: int, column: Column) -> bool:
        """Whether one row has these bytes."""
        at, value = column
        return self._rows.startswith(value, number * ROW_BYTES + at)

    def ending_within(self, start: int, end: int) -> range:
        """The rows of records that end after `start`, and at `end` at the latest."""
        numbers = range(len(self))
        first = bisect_right(numbers, start, key=lambda number: self.row(number).end)
        return range(first, bisect_right(numbers, end, key=lambda number: self.row(number).end))

    def between(self, since_us: int, until_us: int) -> set[int]:
        """Clocks can go backwards, so every row is checked."""
        times = struct.iter_unpack("<8xQ72x", self._rows)
        return {number for number, (at,) in enumerate(times) if since_us <= at < until_us}


def _places(rows: bytes, value: bytes) -> Iterator[int]:
    at = rows.find(value)
    while at >= 0:
        yield at
        at = rows.find(value, at + 1)


def read_indexed_line(content: SegmentContent, index: Index, number: int) -> bytes | None:
    """The line a row points to; None if its hash is not the one in the row."""
    row = index.row(number)
    line = content.read(index.start(number), row.end - 1)
    return line if line and leaf_hash(line) == row.leaf else None


def read_index(segment: Segment) -> Index:
    """The valid rows; an empty index if it is damaged."""
    with suppress(OSError, BadSegment), open_plain(segment.path(INDEX)) as file:
        return _read_valid_rows(file.fileno())[0]
    return Index(b"")


def is_incomplete(segment: Segment) -> bool:
    """True if the index of a sealed segment is lost or too short."""
    if SEAL not in segment.parts:
        return False
    expected = read_seal(segment).last - segment.first + 1
    try:
        with open_plain(segment.path(INDEX)) as file:
            magic, count, _ = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size))
            size_bytes = os.fstat(file.fileno()).st_size
    except (OSError, BadSegment):
        return True
    is_whole = size_bytes == _HEAD.size + expected * ROW_BYTES
    return not (magic == _MAGIC and count == expected and is_whole)


def update_index(segment: Segment, folder: int, *, most: int | None = None) -> None:
    """Add rows for records that are not indexed yet, at most `most`. One process at a time.

    Rows are written before the header that counts them: a crash leaves a valid, shorter index.
    """
    name = segment_name(segment.first, INDEX)
    with closing_fd(files.open_private(name, os.O_RDWR | os.O_CREAT, folder)) as file:
        known, checksum = _read_valid_rows(file)
        # A record may have been rolled back after it was indexed, and replaced by another.
        if len(known) and read_indexed_line(SegmentContent(segment), known, len(known) - 1) is None:
            known, checksum = Index(b""), 0
        count = len(known)
        rows = b"".join(_encode_rows(segment, known.row(count - 1).end if count else 0, most))
        os.ftruncate(file, _HEAD.size + count * ROW_BYTES)
        view = memoryview(rows)
        while view:
            view = view[os.pwrite(file, view, os.fstat(file).st_size) :]
        count += len(rows) // ROW_BYTES
        os.pwrite(file, _HEAD.pack(_MAGIC, count, zlib.crc32(rows, checksum)), 0)


def _read_valid_rows(file: int) -> tuple[Index, int]:
    """The rows and their checksum. Damaged rows are discarded: appending to them would keep the
    damage."""
    head = os.pread(file, _HEAD.size, 0)
    if len(head) == _HEAD.size:
        magic, count, checksum = _HEAD.unpack(head)
        most = min(os.fstat(file).st_size // ROW_BYTES, _MAX_ROWS)
        if magic == _MAGIC and 0 < count <= most:
            rows = os.pread(file, count * ROW_BYTES, _HEAD.size)
            if len(rows) == count * ROW_BYTES and zlib.crc32(rows) == checksum:
                return Index(rows), checksum
    return Index(b""), 0


def _encode_rows(segment: Segment, end: int, most: int | None) -> Iterator[bytes]:
    with open_records(segment) as file:
        skip(file, end)
        for line, is_whole in islice(read_lines(file), most):
            if is_whole:
                end += len(line) + 1
                yield encode_row(line, end, leaf_hash(line))
