"""Follows the log: records as they are written."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator

from cellwall.audit.files import log_altered, map_errors
from cellwall.audit.records import BadRecord, parse_link
from cellwall.audit.search import (
    FoundRecord,
    Query,
    match_line,
    parse_or_refuse,
    segments_with_records,
)
from cellwall.audit.segments import (
    BLOCK_BYTES,
    PACKED,
    RECORDS,
    SEAL,
    BadSegment,
    Segment,
    end_of_records,
    open_records,
    read_lines,
    read_seal,
)
from cellwall.core.outcomes import EventKind
from cellwall.core.ports import SessionKeysPort

_POLL_INTERVAL_S = 0.2


def follow(
    directory: str,
    query: Query,
    *,
    after_seq: int | None = None,
    keys: SessionKeysPort | None = None,
) -> Generator[FoundRecord | None, None, None]:
    """Records written from now on, or all after a number; yields None several times a second while
    there is nothing new."""
    with map_errors():
        if after_seq is None:
            segment, following = _segment_from(directory, None), 1
            at_end = segment is not None
        else:
            segment, following = _segment_with(directory, after_seq + 1), after_seq + 1
            at_end = False
        while True:
            if segment is None:
                yield None
                time.sleep(_POLL_INTERVAL_S)
            else:
                for line in _follow_lines(segment, at_end=at_end):
                    if line is None:
                        yield None
                        continue
                    if _is_before(line, after_seq):  # a restart reads past what is known quickly
                        continue
                    record = parse_or_refuse(line)
                    if record["seq"] > (after_seq or 0):
                        found = match_line(query, record, line, segment, keys)
                        if found is not None:
                            yield found
                    if record["kind"] == EventKind.SEAL:
                        following = record["seq"] + 1
                        break
                else:  # starting over would loop forever
                    raise BadSegment("a packed segment does not end with its seal")
                at_end = False
            segment = _segment_from(directory, following)


def _is_before(line: bytes, after_seq: int | None) -> bool:
    if after_seq is None:
        return False
    try:
        link = parse_link(line)
    except BadRecord as problem:
        raise log_altered(f"a record of the audit log was altered: {problem}") from None
    return link.seq <= after_seq and link.kind != EventKind.SEAL.value.encode()


def _segment_with(directory: str, seq: int) -> Segment | None:
    """The segment that has this record, or will have it; the next one if it was deleted."""
    segments = segments_with_records(directory)
    before = [each for each in segments if each.first <= seq]
    if before and SEAL in before[-1].parts and read_seal(before[-1]).last < seq:
        before = []
    later = next((each for each in segments if each.first > seq), None)
    return before[-1] if before else later


def _follow_lines(segment: Segment, *, at_end: bool) -> Iterator[bytes | None]:
    """The lines of a segment as they are written; None while there is no new line."""
    with open_records(segment) as file:
        if not file.seekable():  # sealed and compressed meanwhile
            lines = (line for line, _ in read_lines(file))
            yield from deque(lines, maxlen=1) if at_end else lines
            return
        # Keep the file open: compression removes its name.
        number, place = file.fileno(), end_of_records(file.fileno()) if at_end else 0
        place, before = _line_start_before(number, place), b""
        while True:
            block = os.pread(number, BLOCK_BYTES, place)
            # A record written over the preallocation may show its end before its beginning.
            written = block.partition(b"\0")[0]
            whole = written[: written.rfind(b"\n") + 1]
            yield from whole.split(b"\n")[:-1]
            place += len(whole)
            if not whole:
                if len(block) == BLOCK_BYTES:
                    raise BadSegment("a line is longer than any record")
                if block == before and block.rstrip(b"\0") != written:
                    raise BadSegment("there is something that is no record")
                before = block
                place = min(place, os.fstat(number).st_size)  # rolled back
                yield None
                time.sleep(_POLL_INTERVAL_S)


def _line_start_before(file: int, end: int) -> int:
    """Where the next record begins, or the one being written now."""
    start = max(0, end - BLOCK_BYTES)
    return start + os.pread(file, end - start, start).rfind(b"\n") + 1


def _segment_from(directory: str, first: int | None) -> Segment | None:
    """The segment that begins with this record; the growing one if no number is given."""
    segments = segments_with_records(directory)
    if first is None:
        return segments[-1] if segments else None
    later = next((each for each in segments if each.first >= first), None)
    if later is None or later.first == first:
        return later
    # Deleted by now, or compressed while the directory was listed.
    unlisted = Segment(directory, first, frozenset({RECORDS, PACKED}))
    is_there = any(os.path.lexists(unlisted.path(part)) for part in unlisted.parts)
    return unlisted if is_there else later
