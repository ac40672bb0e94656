"""Finds records, the newest first. Never writes; what the index says is checked by the record."""

from __future__ import annotations

import io
import mmap
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from holdfast.audit.failures import altered, failed
from holdfast.audit.index import Index, encoded_text, read_index, to_microseconds, verdict_of
from holdfast.audit.merkle import leaf_hash
from holdfast.audit.records import BadRecord, parse_record
from holdfast.audit.segments import (
    RECORDS,
    SEAL,
    BadSegment,
    Segment,
    list_segments,
    open_records,
    read_lines,
    read_seal,
)
from holdfast.core.events import EventKind
from holdfast.core.verdict import Verdict

Content = bytes | mmap.mmap
_LOOK_EVERY_S = 0.2
_UNPACKERS = 2
_NAMES = ("id", "action_id", "session_id", "principal")


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for; everything that is given must fit. `text` stands anywhere in a record."""

    id: str | None = None
    action_id: str | None = None
    session_id: str | None = None
    principal: str | None = None
    kind: EventKind | None = None
    verdict: Verdict | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None

    @property
    def needs_index(self) -> bool:
        """Else the records themselves are as quick."""
        given = {each.name for each in fields(self) if getattr(self, each.name) is not None}
        return bool(given - {"text"})

    def fits(self, record: dict[str, Any], line: bytes) -> bool:
        return (
            all(getattr(self, name) in (None, record[name]) for name in _NAMES)
            and (self.kind is None or record["kind"] == self.kind.value)
            and (self.verdict is None or verdict_of(record["body"]) == self.verdict.word)
            and (self.since is None or _time(record) >= self.since)
            and (self.until is None or _time(record) < self.until)
            and (self.text is None or encoded_text(self.text) in line)
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A record, its line as it stands in the log, and where that is."""

    record: dict[str, Any]
    line: bytes
    segment: Segment


def search(directory: str, query: Query) -> Iterator[Found]:
    """All that fit, the newest first; an altered record among them raises."""
    with _failures():
        newest = reversed(_there(directory))
        looks = (look for each in newest if (look := _Look(each, query)).is_worth)
        yield from _look_through(looks)


def _there(directory: str) -> list[Segment]:
    try:
        return [each for each in list_segments(directory) if each.has_records]
    except FileNotFoundError:
        return []


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except BadSegment as problem:
        raise altered(f"the audit log was altered: {problem}") from None
    except OSError as error:
        raise failed(error) from None


def _look_through(looks: Iterator[_Look]) -> Iterator[Found]:
    """Unpacking takes longer than looking: the next ones are unpacked meanwhile."""
    ahead: deque[tuple[_Look, Future[Content]]] = deque()
    with ThreadPoolExecutor(_UNPACKERS, thread_name_prefix="holdfast-search") as threads:
        try:
            while True:
                while len(ahead) < _UNPACKERS and (look := next(looks, None)) is not None:
                    ahead.append((look, threads.submit(look.content)))
                if not ahead:
                    return
                look, content = ahead.popleft()
                yield from look.through(content.result())
        finally:
            threads.shutdown(cancel_futures=True)


class _Look:
    """Into one segment: what the index says is worth looking at, and what it does not know."""

    def __init__(self, segment: Segment, query: Query) -> None:
        self._segment, self._query = segment, query
        self._index = read_index(segment) if query.needs_index else Index(b"")
        self._numbers = _candidates(self._index, query)
        self._start = self._index.row(len(self._index) - 1).end if len(self._index) else 0

    @property
    def is_worth(self) -> bool:
        return bool(self._numbers) or not self._is_indexed()

    def _is_indexed(self) -> bool:
        if SEAL in self._segment.parts:
            return len(self._index) == read_seal(self._segment).last - self._segment.first + 1
        try:
            status = os.stat(self._segment.path(RECORDS), follow_symlinks=False)
            return stat.S_ISREG(status.st_mode) and self._start == status.st_size
        except FileNotFoundError:  # sealed and packed a moment ago
            return False

    def content(self) -> Content:
        with open_records(self._segment) as file:
            if not isinstance(file, io.BufferedReader):
                return file.read()
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def through(self, content: Content) -> Iterator[Found]:
        text = self._query.text
        last = len(self._index) - 1
        if last >= 0 and _line_of(content, self._index, last) is None:
            yield from self._fitting(_lines(content, 0, text))  # the index is not of these records
            return
        given: set[int] = set()
        # What is not indexed yet, or has no index, is looked through.
        for found in self._fitting(_lines(content, self._start, text)):
            given.add(found.record["seq"])
            yield found
        for number in sorted(self._numbers, reverse=True):
            line = _line_of(content, self._index, number)
            if line is None:  # the index leads astray: it is of no use
                everything = self._fitting(_lines(content, 0, text))
                yield from (each for each in everything if each.record["seq"] not in given)
                return
            for found in self._fitting([line]):
                given.add(found.record["seq"])
                yield found

    def _fitting(self, lines: Iterable[bytes]) -> Iterator[Found]:
        for line in lines:
            record = _parsed(line)
            if self._query.fits(record, line):
                yield Found(record, line, self._segment)


def follow(directory: str, query: Query) -> Iterator[Found | None]:
    """What is written from now on; None, several times a second, while there is nothing new."""
    segment, following = _from_number(directory, None), 1
    at_end = segment is not None
    while True:
        if segment is None:
            yield None
            time.sleep(_LOOK_EVERY_S)
        else:
            for line in _coming(segment, at_end=at_end):
                if line is None:
                    yield None
                    continue
                record = _parsed(line)
                if query.fits(record, line):
                    yield Found(record, line, segment)
                if record["kind"] == EventKind.SEAL:
                    following = record["seq"] + 1
                    break
            at_end = False
        segment = _from_number(directory, following)


def _coming(segment: Segment, *, at_end: bool) -> Iterator[bytes | None]:
    """The lines of a segment as they come; None while there is none."""
    with open_records(segment) as file:
        if not isinstance(file, io.BufferedReader):  # sealed and packed while nobody looked
            yield from (line for line, _ in read_lines(file))
            return
        # Open all the time: a sealed one is packed, and its name then gone.
        file.seek(0, os.SEEK_END if at_end else os.SEEK_SET)
        while True:
            line = file.readline()
            if line.endswith(b"\n"):
                yield line[:-1]
                continue
            file.seek(-len(line), os.SEEK_CUR)
            yield None
            time.sleep(_LOOK_EVERY_S)


def _from_number(directory: str, first: int | None) -> Segment | None:
    """The segment that begins with this record; the growing one if no number is given."""
    there = [each for each in list_segments(directory) if first in (None, each.first)]
    return there[-1] if there and there[-1].has_records else None


def _candidates(index: Index, query: Query) -> set[int]:
    """Which records the index finds."""
    sets = [
        index.matching(name, text) for name in _NAMES if (text := getattr(query, name)) is not None
    ]
    if query.kind is not None:
        sets.append(index.of_kind(query.kind))
    if query.verdict is not None:
        sets.append(index.of_verdict(query.verdict))
    if query.since is not None or query.until is not None:
        since, until = _microseconds(query.since, 0), _microseconds(query.until, 1 << 63)
        sets.append(index.between(since, until))
    return set.intersection(*sets) if sets else set()


def _microseconds(at: datetime | None, default: int) -> int:
    return default if at is None else to_microseconds(at)


def _line_of(content: Content, index: Index, number: int) -> bytes | None:
    row, start = index.row(number), index.start(number)
    line = content[start : row.end - 1]
    return line if leaf_hash(line) == row.leaf else None


def _lines(content: Content, start: int, text: str | None) -> Iterator[bytes]:
    """The whole lines from an offset on, the last first; only those that may hold the text."""
    end = content.rfind(b"\n", start)
    while end >= start:
        if text is not None:
            hit = content.rfind(encoded_text(text), start, end)
            if hit < 0:
                return
            end = content.find(b"\n", hit)
        begin = max(content.rfind(b"\n", start, end) + 1, start)
        yield content[begin:end]
        end = begin - 1


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        return parse_record(line)
    except BadRecord as problem:
        raise altered(f"a record of the audit log was altered: {problem}") from None


def _time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["time"])
