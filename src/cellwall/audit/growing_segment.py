"""The growing segment: where its records end, what a crash left there, and its preallocation.

A process that writes small batches in a row preallocates: it fills the segment with NUL bytes up to
a multiple of `PREALLOCATION_BYTES` and writes records over them. A disk writes the blocks of a
preallocated range in any order. The writer therefore flushes everything before a range begins and
before it ends, so a power cut can leave gaps only in the last range.
"""

from __future__ import annotations

import os
from collections import deque
from datetime import datetime
from typing import NamedTuple

from cellwall.audit.files import fill_with_zeros, log_altered
from cellwall.audit.merkle import leaf_hash
from cellwall.audit.records import (
    GENESIS,
    MAX_RECORD_BYTES,
    BadRecord,
    RecordLink,
    parse_link,
    parse_record,
)
from cellwall.audit.segments import (
    PREALLOCATION_BYTES,
    RECORDS,
    SEAL,
    end_of_bytes,
    list_segments,
    open_records,
    read_lines,
    read_seal,
)

SMALL_BATCH_BYTES = 16 * 1024
_SMALL_BATCHES_BEFORE_PREALLOCATION = 32
"""Small batches in a row before the writer preallocates. A process that writes a few records and
exits does not benefit from it."""
_PREALLOCATION_RETRY_BATCHES = 1000
_FIRST_READ_BYTES = 4096
_MAX_TORN_BYTES = 16 * 1024 * 1024
"""A batch is smaller; more than this was not torn by a crash of ours."""
_MAX_TORN_LINES = 64 * 1024
"""More lines than several batches have. Checking many more would keep the log locked for
minutes."""
_RECENT_BYTES = 16 * 1024

_MAX_READ_BYTES = _MAX_TORN_BYTES + MAX_RECORD_BYTES + 2
_SECTOR_BYTES = 512


class LogTail(NamedTuple):
    """The end of the growing segment at the last look; a different file size triggers another
    look."""

    size_bytes: int
    seq: int
    prev: str
    kind: bytes

    @classmethod
    def of_empty(cls, first: int, prev: str = GENESIS) -> LogTail:
        return cls(0, first - 1, prev, b"")


class GrowingFile:
    """The open file of the growing segment, and its preallocated range."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file = -1
        self._size_bytes = 0
        """File size including the preallocated range, as of the last time the lock was taken."""
        self._small_batches = 0

    def _is_end(self, tail: LogTail, size_bytes: int) -> bool:
        """True if only preallocated NUL bytes follow this tail."""
        end = tail.size_bytes
        left = size_bytes - end
        # No record precedes the preallocation of a new segment.
        around = b"\n\0" if end else b"\0\0"
        return left == 0 or (
            0 < left <= PREALLOCATION_BYTES
            and size_bytes % PREALLOCATION_BYTES == 0
            and os.pread(self._file, 2, max(0, end - 1)) == around
        )

    def _update_preallocation(self, start: int, count: int) -> None:
        """Called when no range is preallocated, the rest of it is too small, or the batch is too
        large."""
        is_small = count <= SMALL_BATCH_BYTES
        if self._size_bytes > start:
            self._drop_preallocation(start)
        elif is_small:
            self._small_batches += 1
            if self._small_batches > _SMALL_BATCHES_BEFORE_PREALLOCATION:
                self._preallocate(start, count)
        if not is_small:
            self._small_batches = 0

    def _preallocate(self, start: int, count: int) -> None:
        """Fill the segment with NUL bytes. If the disk has no space for that, it may still take
        records."""
        size_bytes = (start // PREALLOCATION_BYTES + 1) * PREALLOCATION_BYTES
        if size_bytes - start <= count or size_bytes > self._max_bytes:
            return
        os.fdatasync(self._file)
        try:
            os.ftruncate(self._file, size_bytes)
            fill_with_zeros(self._file, start, size_bytes)
        except OSError:
            self._truncate(start)
            self._small_batches = -_PREALLOCATION_RETRY_BATCHES
        else:
            self._size_bytes = size_bytes

    def _drop_preallocation(self, end: int) -> None:
        """Flush before truncating: otherwise a power cut could leave the new length without all
        records and without NUL bytes that explain the gap. Flush after truncating: the next
        records reuse the range."""
        os.fdatasync(self._file)
        self._truncate(end)
        os.fdatasync(self._file)

    def _truncate(self, end: int) -> None:
        os.ftruncate(self._file, end)
        self._size_bytes = end


def find_tail(
    file: int,
    size_bytes: int,
    first: int,
    prev: str | None,
    *,
    preallocation_start: int | None = None,
) -> tuple[LogTail, bytes]:
    """The end of the complete records, and the torn bytes after it; both without the preallocation.

    A crash leaves incomplete lines after all complete records. A valid record that does not follow
    its predecessor is evidence and is never truncated; `verify` reports it. `prev` is the hash to
    which a first record would be linked; `preallocation_start` is where the last preallocated range
    begins if it may contain a hole.
    """
    look_bytes = _FIRST_READ_BYTES if preallocation_start is None else PREALLOCATION_BYTES
    while True:
        start = max(0, size_bytes - look_bytes)
        data = os.pread(file, size_bytes - start, start)
        if len(data) != size_bytes - start:
            raise log_altered("the audit log became shorter while it was read")
        hole = (
            len(data)
            if preallocation_start is None
            else _find_hole(data, start, preallocation_start)
        )
        found = _last_record(data[:hole], is_from_start=start == 0)
        if found is not None:
            line, link, end = found
            if len(data) - end > _MAX_TORN_BYTES:
                break
            try:
                parse_record(line)
            except BadRecord as problem:
                raise log_altered(
                    f"the last record of the audit log was altered: {problem}"
                ) from None
            if link.seq < first:
                raise log_altered(
                    "the last record of the audit log has a number from before its file"
                )
            tail = LogTail(start + end, link.seq, leaf_hash(line).hex(), link.kind)
            return tail, data[end:]
        if start == 0 and size_bytes <= _MAX_TORN_BYTES:
            if prev is None:
                raise log_altered("a segment of the audit log has lost all its records")
            return LogTail.of_empty(first, prev), data
        if start == 0 or look_bytes >= _MAX_READ_BYTES:
            break
        look_bytes = min(16 * look_bytes, _MAX_READ_BYTES)
    raise log_altered("the end of the audit log contains no valid record")


def _find_hole(data: bytes, start: int, preallocation_start: int) -> int:
    """Where a power cut left a gap of unwritten sectors.

    A preallocated range is not written in order, but in whole sectors, and nothing after a gap was
    acknowledged. A gap that does not end at a sector border was not left by a disk, and stays; so
    do bytes before the range, which were flushed before it began.
    """
    at = data.find(b"\0")
    if at < 0 or start + at < preallocation_start:
        return len(data)
    behind = len(data) - len(data[at:].lstrip(b"\0"))
    return at if (start + behind) % _SECTOR_BYTES == 0 else len(data)


def _last_record(data: bytes, *, is_from_start: bool) -> tuple[bytes, RecordLink, int] | None:
    """The last line that is a record, its link, and where the next line begins."""
    end = data.rfind(b"\n")
    for _ in range(_MAX_TORN_LINES):
        if end < 0:
            return None
        begin = data.rfind(b"\n", 0, end)
        if begin < 0 and not is_from_start:
            return None  # its start may lie before the buffer
        line = data[begin + 1 : end]
        try:
            return line, parse_link(line), end + 1
        except BadRecord:
            end = begin
    raise log_altered("the end of the audit log contains no valid record")


def find_end(file: int, size_bytes: int, known: LogTail | None) -> int:
    """Where the bytes end, including records of other processes: faster than reading the whole
    preallocation."""
    if known is not None and size_bytes % PREALLOCATION_BYTES == 0:
        records, nul, _ = os.pread(file, _RECENT_BYTES, known.size_bytes).partition(b"\0")
        if records.endswith(b"\n") and nul:
            return known.size_bytes + len(records)
    return end_of_bytes(file)


def next_plain_segment(directory: str, ours: int, following: int) -> int | None:
    """The first record of the next uncompressed segment after ours; None if ours is the last.
    `following` is the number of the record after our segment."""
    later = [each for each in list_segments(directory) if each.first > ours]
    for segment in later:
        if segment.first != following:
            raise log_altered("a segment of the audit log is gone")
        if RECORDS in segment.parts:
            # It may be sealed without its seal file yet: it is read like any other.
            return segment.first
        if SEAL not in segment.parts:
            raise log_altered("a segment of the audit log is gone")
        following = read_seal(segment).last + 1
    if later:
        raise log_altered("the last segment of the audit log is gone")
    return None


def previous_leaf(directory: str, first: int) -> str | None:
    """The hash to which the first record of a segment is linked, from the record itself if it
    exists.

    Also checks that this segment follows the one before it.
    """
    before = [each for each in list_segments(directory) if each.first < first]
    if not before:
        return None
    segment = before[-1]
    if segment.has_records:
        with open_records(segment) as file:
            last = deque((line for line, is_whole in read_lines(file) if is_whole), maxlen=1)
        if not last:
            raise log_altered("a segment of the audit log has lost all its records")
        seq, leaf = parse_link(last[0]).seq, leaf_hash(last[0]).hex()
    else:
        seal = read_seal(segment)
        seq, leaf = seal.last, seal.leaf
    if seq + 1 != first:
        raise log_altered("a segment of the audit log is missing or was inserted")
    return leaf


def started_s(file: int) -> float:
    """When a segment began, from its first record; a wrong clock does no harm here."""
    head = os.pread(file, 65_536, 0).partition(b"\n")[0]
    found = head.rpartition(b'"time":"')[2].partition(b'"')[0]
    try:
        return datetime.fromisoformat(found.decode("ascii")).timestamp()
    except ValueError:
        return os.fstat(file).st_mtime
