"""The records behind a number, oldest first, one at a time: what an export from cron reads.

Whole segments before the number are not opened, and never more than a block is held in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from cellwall.audit.failures import altered, failed
from cellwall.audit.records import MAX_RECORD_BYTES, BadRecord, link_of, parse_record
from cellwall.audit.search import Found, Query
from cellwall.audit.segments import BadSegment, Segment, list_segments, open_records, read_lines
from cellwall.core.errors import BadInput


def records_after(
    directory: str, query: Query | None = None, *, after_seq: int = 0
) -> Iterator[Found]:
    """All that fit and have a number above `after_seq`; an altered record raises."""
    query = query or Query()
    last = 0
    try:
        segments = [each for each in list_segments(directory) if each.has_records]
        for place, segment in enumerate(segments):
            following = segments[place + 1].first if place + 1 < len(segments) else None
            if following is not None and following <= after_seq + 1:
                continue
            last = max(last, segment.first - 1)
            for line in _lines(segment, is_last=following is None):
                last = link_of(line).seq
                if last > after_seq and query.fits(record := parse_record(line), line):
                    yield Found(record, line, segment)
    except FileNotFoundError:
        if os.path.isdir(directory):
            raise altered("the audit log was altered: a segment is gone") from None
    except (BadRecord, BadSegment) as problem:
        raise altered(f"the audit log was altered: {problem}") from None
    except OSError as error:
        raise failed(error) from None
    if last < after_seq:
        # The log was begun anew, or the number is another log's. To go on quietly would mean that
        # nothing is exported until the new log has grown past the old number.
        raise BadInput(
            f"the audit log ends at record {last}, before record {after_seq}",
            hint="Check that it is the same log; to export all of it, start after 0.",
            code="CW-EXPORT-AHEAD",
        )


def _lines(segment: Segment, *, is_last: bool) -> Iterator[bytes]:
    """Its whole lines. At the very end there may be one that is being written just now."""
    for line, is_whole in _read(segment):
        if is_whole:
            yield line
        elif not is_last or len(line) > MAX_RECORD_BYTES:
            raise BadSegment("a segment ends in the middle of a record")


def _read(segment: Segment) -> Iterator[tuple[bytes, bool]]:
    # What was sealed since we looked may be packed by now, under another name.
    with suppress(FileNotFoundError):
        with open_records(segment) as file:
            yield from read_lines(file)
        return
    now = [each for each in list_segments(segment.directory) if each.first == segment.first]
    if not now or not now[0].has_records:
        raise BadSegment("a segment is gone")
    with open_records(now[0]) as file:
        yield from read_lines(file)


def mapped(found: Iterator[Found]) -> Iterator[Found]:
    """The same records; what goes wrong on the reader's side becomes an error of the log."""
    try:
        yield from found
    except BadSegment as problem:
        raise altered(f"the audit log was altered: {problem}") from None
    except OSError as error:
        raise failed(error) from None
