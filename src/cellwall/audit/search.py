"""Searches records, newest first. Never writes; every index hit is checked against the record."""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from cellwall.audit.files import log_altered, map_errors
from cellwall.audit.index import (
    Index,
    encoded_text,
    read_index,
    read_indexed_line,
    to_microseconds,
    verdict_of,
)
from cellwall.audit.records import SEALED_VERSION, BadRecord, parse_link, parse_record
from cellwall.audit.sealed_bodies import is_locked, open_record, opened_line
from cellwall.audit.segments import (
    BLOCK_BYTES,
    PACKED,
    RECORDS,
    SEAL,
    BadSegment,
    Segment,
    SegmentContent,
    end_of_records,
    list_segments,
    open_records,
    read_lines,
    read_seal,
)
from cellwall.core.errors import VaultError
from cellwall.core.outcomes import EventKind
from cellwall.core.ports import SessionKeysPort
from cellwall.core.verdict import Verdict

_POLL_INTERVAL_S = 0.2
_UNPACKERS = 2
_NAMES = ("id", "action_id", "session_id", "principal")


@dataclass(frozen=True, slots=True)
class Query:
    """Search conditions; all that are given must match. `text` may occur anywhere in a record."""

    id: str | None = None
    action_id: str | None = None
    session_id: str | None = None
    principal: str | None = None
    kind: EventKind | None = None
    verdict: Verdict | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    before: int | None = None
    """Only records with a smaller number: a page that goes on where another one ended."""

    @property
    def needs_index(self) -> bool:
        """Without indexed fields, scanning the records is as fast."""
        names = {each.name for each in fields(self) if getattr(self, each.name) is not None}
        return bool(names - {"text", "before"})

    def matches(self, record: dict[str, Any], line: bytes) -> bool:
        return self.matches_clear(record) and self.matches_text(line)

    def matches_text(self, line: bytes) -> bool:
        return self.text is None or encoded_text(self.text) in line

    def matches_clear(self, record: dict[str, Any]) -> bool:
        """All conditions but the text: they need no key of a session."""
        return (
            (self.before is None or record["seq"] < self.before)
            and all(getattr(self, name) in (None, record[name]) for name in _NAMES)
            and (self.kind is None or record["kind"] == self.kind.value)
            and (self.verdict is None or verdict_of(record["body"]) == self.verdict.word)
            and (self.since is None or _time(record) >= self.since)
            and (self.until is None or _time(record) < self.until)
        )


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, its line, and its segment. Without keys the line is the stored one; with keys a
    sealed body is decrypted, in both."""

    record: dict[str, Any]
    line: bytes
    segment: Segment


def search(
    directory: str,
    query: Query,
    *,
    is_indexed: bool = True,
    keys: SessionKeysPort | None = None,
) -> Iterator[FoundRecord]:
    """All matches, newest first; an altered record among them raises. `is_indexed=False` reads
    every record instead of relying on the index. A text in a sealed body is found with `keys`
    only."""
    with map_errors():
        newest = reversed(_segments_with_records(directory))
        searches = (
            _SegmentSearch(each, query, is_indexed=is_indexed, keys=keys)
            for each in newest
            if query.before is None or each.first < query.before
        )
        searches = (each for each in searches if each.may_match)
        yield from _search_ahead(searches)


def _segments_with_records(directory: str) -> list[Segment]:
    try:
        return [each for each in list_segments(directory) if each.has_records]
    except FileNotFoundError:
        return []


def _search_ahead(searches: Iterator[_SegmentSearch]) -> Iterator[FoundRecord]:
    """Decompression takes longer than the scan, so the next segments are decompressed meanwhile."""
    ahead: deque[tuple[_SegmentSearch, Future[SegmentContent]]] = deque()
    with ThreadPoolExecutor(_UNPACKERS, thread_name_prefix="cellwall-search") as threads:
        try:
            while True:
                while len(ahead) < _UNPACKERS and (ready := next(searches, None)) is not None:
                    ahead.append((ready, threads.submit(SegmentContent, ready.segment)))
                if not ahead:
                    return
                current, content = ahead.popleft()
                yield from current.run(content.result())
        finally:
            threads.shutdown(cancel_futures=True)


class _SegmentSearch:
    """The search in one segment: index hits, and records that are not indexed yet."""

    def __init__(
        self, segment: Segment, query: Query, *, is_indexed: bool, keys: SessionKeysPort | None
    ) -> None:
        self.segment, self._query, self._keys = segment, query, keys
        is_needed = is_indexed and query.needs_index
        self._index = read_index(segment) if is_needed else Index(b"")
        self._numbers = _candidates(self._index, query)
        self._start = self._index.row(len(self._index) - 1).end if len(self._index) else 0

    @property
    def may_match(self) -> bool:
        return bool(self._numbers) or not self._is_indexed()

    def _is_indexed(self) -> bool:
        if SEAL in self.segment.parts:
            return len(self._index) == read_seal(self.segment).last - self.segment.first + 1
        try:
            status = os.stat(self.segment.path(RECORDS), follow_symlinks=False)
            return stat.S_ISREG(status.st_mode) and self._start == status.st_size
        except FileNotFoundError:  # sealed and compressed meanwhile
            return False

    def run(self, content: SegmentContent) -> Iterator[FoundRecord]:
        text = self._query.text if self._keys is None else None
        last = len(self._index) - 1
        if last >= 0 and read_indexed_line(content, self._index, last) is None:
            yield from self._matching(
                _lines(content, 0, text)
            )  # the index does not belong to these records
            return
        yielded: set[int] = set()
        # Records that are not indexed yet are scanned.
        for found in self._matching(_lines(content, self._start, text)):
            yielded.add(found.record["seq"])
            yield found
        for number in sorted(self._numbers, reverse=True):
            line = read_indexed_line(content, self._index, number)
            if line is None:  # the index is wrong: scan everything
                everything = self._matching(_lines(content, 0, text))
                yield from (each for each in everything if each.record["seq"] not in yielded)
                return
            for found in self._matching([line]):
                yielded.add(found.record["seq"])
                yield found

    def _matching(self, lines: Iterable[bytes]) -> Iterator[FoundRecord]:
        for line in lines:
            found = match_line(self._query, _parse(line), line, self.segment, self._keys)
            if found is not None:
                yield found


def match_line(
    query: Query,
    record: dict[str, Any],
    line: bytes,
    segment: Segment,
    keys: SessionKeysPort | None,
) -> FoundRecord | None:
    """The record, opened if there are keys; None if it does not match."""
    if not query.matches_clear(record):
        return None
    if keys is not None and record["v"] == SEALED_VERSION:
        record = open_record(keys, record)
        if query.text is not None and is_locked(record):
            raise VaultError(
                "the text cannot be searched: records are encrypted, and their key is in the vault",
                hint="Open the vault: at a terminal `cellwall` asks for its passphrase.",
                code="CW-SESSION-LOCKED",
            )
        line = opened_line(record)
    return FoundRecord(record, line, segment) if query.matches_text(line) else None


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
                    record = _parse(line)
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
    segments = _segments_with_records(directory)
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
    segments = _segments_with_records(directory)
    if first is None:
        return segments[-1] if segments else None
    later = next((each for each in segments if each.first >= first), None)
    if later is None or later.first == first:
        return later
    # Deleted by now, or compressed while the directory was listed.
    unlisted = Segment(directory, first, frozenset({RECORDS, PACKED}))
    is_there = any(os.path.lexists(unlisted.path(part)) for part in unlisted.parts)
    return unlisted if is_there else later


def _candidates(index: Index, query: Query) -> set[int]:
    """The records that the index selects."""
    sets = [
        index.matching(name, text) for name in _NAMES if (text := getattr(query, name)) is not None
    ]
    if query.kind is not None:
        sets.append(index.of_kind(query.kind))
    if query.verdict is not None:
        sets.append(index.of_verdict(query.verdict))
    if query.since is not None or query.until is not None:
        since = to_microseconds(query.since) if query.since else 0
        until = to_microseconds(query.until) if query.until else 1 << 63
        sets.append(index.between(since, until))
    return set.intersection(*sets) if sets else set()


def _lines(content: SegmentContent, start: int, text: str | None) -> Iterator[bytes]:
    """The complete lines from an offset on, last first; only lines that may contain the text."""
    end = content.size_bytes
    while end > start:
        begin = max(start, end - BLOCK_BYTES)
        block = content.read(begin, end)
        # A line that starts before this block is read with the next block; an unfinished line is
        # being written.
        first = 0 if begin == start else block.find(b"\n") + 1
        last = block.rfind(b"\n") + 1
        if first < last:
            yield from _lines_in(block, first, last - 1, text)
        elif begin + first == end:
            raise BadSegment("a line is longer than any record")
        end = begin + first


def _lines_in(block: bytes, start: int, end: int, text: str | None) -> Iterator[bytes]:
    while end >= start:
        if text is not None:
            hit = block.rfind(encoded_text(text), start, end)
            if hit < 0:
                return
            end = block.find(b"\n", hit)
        begin = max(block.rfind(b"\n", start, end) + 1, start)
        yield block[begin:end]
        end = begin - 1


def _parse(line: bytes) -> dict[str, Any]:
    try:
        return parse_record(line)
    except BadRecord as problem:
        raise log_altered(f"a record of the audit log was altered: {problem}") from None


def _time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["time"])
