"""Searches records, newest first. Never writes; every index hit is checked against the record."""

# ruff: noqa: PLC0415  # late imports: most searches ask for no text

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cellwall.audit.files import log_altered, map_errors
from cellwall.audit.index import (
    Column,
    Index,
    kind_column,
    name_column,
    read_index,
    read_indexed_line,
    to_microseconds,
    verdict_column,
    verdict_of,
)
from cellwall.audit.records import SEALED_VERSION, BadRecord, parse_link, parse_record
from cellwall.audit.sealed_bodies import is_locked, open_line, open_record, opened_line
from cellwall.audit.searchable_text import contains, encoded_text, searchable
from cellwall.audit.segment_content import SegmentContent, lines_before
from cellwall.audit.segments import (
    RECORDS,
    SEAL,
    Segment,
    list_segments,
    read_seal,
)
from cellwall.core.errors import VaultError
from cellwall.core.outcomes import EventKind
from cellwall.core.ports import SessionKeysPort
from cellwall.core.verdict import Verdict

if TYPE_CHECKING:
    from cellwall.audit.text_index import Span, TextIndex

_UNPACKERS = 2
_NAMES = ("id", "action_id", "session_id", "principal")


@dataclass(frozen=True, slots=True)
class Query:
    """Search conditions; all that are given must match. searchable_text.py says what `text` is."""

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
        return self.text is None or contains(searchable(line), encoded_text(self.text))

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
    every record instead of relying on the indexes. A text in a sealed body is found with `keys`
    only."""
    for _, found in search_steps(directory, query, is_indexed=is_indexed, keys=keys):
        if found is not None:
            yield found


Step = tuple[int, FoundRecord | None]
"""The number of a record that was looked at, and the record if it matches."""


def search_steps(
    directory: str,
    query: Query,
    *,
    is_indexed: bool = True,
    keys: SessionKeysPort | None = None,
) -> Iterator[Step]:
    """`search`, with the records that were looked at in vain: a caller that has waited long enough
    knows where to go on."""
    with map_errors():
        newest = reversed(segments_with_records(directory))
        texts = None
        if is_indexed and query.text is not None and keys is not None:
            from cellwall.audit.text_index import TextIndex

            texts = TextIndex(directory, keys, query.text, before=query.before)
        searches = (
            _SegmentSearch(each, query, is_indexed=is_indexed, keys=keys, texts=texts)
            for each in newest
            if query.before is None or each.first < query.before
        )
        searches = (each for each in searches if each.may_match)
        yield from _search_ahead(searches)


def segments_with_records(directory: str) -> list[Segment]:
    """In record order; none if there is no log."""
    try:
        return [each for each in list_segments(directory) if each.has_records]
    except FileNotFoundError:
        return []


def _search_ahead(searches: Iterator[_SegmentSearch]) -> Iterator[Step]:
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
        self,
        segment: Segment,
        query: Query,
        *,
        is_indexed: bool,
        keys: SessionKeysPort | None,
        texts: TextIndex | None,
    ) -> None:
        self.segment, self._query, self._keys, self._texts = segment, query, keys, texts
        self._wanted = None if query.text is None else encoded_text(query.text)
        is_needed = is_indexed and query.needs_index
        self._index = read_index(segment) if is_needed else Index(b"")
        self._columns = _columns(query)
        # Of the rows that have a text, each is tested by itself; there are few.
        self._numbers = _candidates(self._index, self._columns, query) if texts is None else set()
        self._start = self._index.row(len(self._index) - 1).end if len(self._index) else 0

    @property
    def may_match(self) -> bool:
        if not self._is_indexed():
            return True
        if self._texts is not None:
            return all(map(self._index.is_in_any, self._columns))
        return bool(self._numbers)

    def _is_indexed(self) -> bool:
        if SEAL in self.segment.parts:
            return len(self._index) == read_seal(self.segment).last - self.segment.first + 1
        try:
            status = os.stat(self.segment.path(RECORDS), follow_symlinks=False)
            return stat.S_ISREG(status.st_mode) and self._start == status.st_size
        except FileNotFoundError:  # sealed and compressed meanwhile
            return False

    def run(self, content: SegmentContent) -> Iterator[Step]:
        last = len(self._index) - 1
        spans = [(0, content.size_bytes)] if self._texts is None else self._spans(content)
        if last < 0 or read_indexed_line(content, self._index, last) is None:
            # Without an index, or with one that does not belong to these records.
            for start, end in spans:
                yield from self._matching(self._lines(content, start, end))
            return
        yielded: set[int] = set()
        # Records that are not indexed yet are scanned.
        for seq, found in self._matching(self._lines(content, self._start, content.size_bytes)):
            yielded.add(seq)
            yield seq, found
        for number in self._numbers_within(spans):
            line = read_indexed_line(content, self._index, number)
            if line is None:  # the index is wrong: scan everything
                everything = self._matching(self._lines(content, 0, content.size_bytes))
                yield from (each for each in everything if each[0] not in yielded)
                return
            for seq, found in self._matching([line]):
                yielded.add(seq)
                yield seq, found

    def _spans(self, content: SegmentContent) -> Iterator[Span]:
        assert self._texts is not None  # noqa: S101  # the caller has looked
        return self._texts.spans(self.segment, content)

    def _numbers_within(self, spans: Iterable[Span]) -> Iterator[int]:
        """The rows in one of the spans that the index selects, both the newest first."""
        if self._texts is None:
            yield from sorted(self._numbers, reverse=True)
            return
        for start, end in spans:
            for number in reversed(self._index.ending_within(start, end)):
                if all(self._index.has(number, each) for each in self._columns):
                    yield number

    def _lines(self, content: SegmentContent, start: int, end: int) -> Iterator[bytes]:
        return lines_before(content, start, end, self._wanted if self._keys is None else None)

    def _matching(self, lines: Iterable[bytes]) -> Iterator[Step]:
        for line in lines:
            if self._is_later(line):
                continue
            seq = self._seq_without_text(line)
            if seq is not None:
                yield seq, None
                continue
            record = parse_or_refuse(line)
            yield record["seq"], match_line(self._query, record, line, self.segment, self._keys)

    def _is_later(self, line: bytes) -> bool:
        """Whether another page had this record."""
        if self._query.before is None:
            return False
        try:
            return parse_link(line).seq >= self._query.before
        except BadRecord:
            return False

    def _seq_without_text(self, line: bytes) -> int | None:
        """The number of a sealed record that does not have the text; None if it has, or may have.
        Most records of a scan end here, before the record is parsed."""
        if self._wanted is None or self._keys is None:
            return None
        opened = open_line(self._keys, line)
        if opened is None:
            return None
        # The text is a part of the line, which is searched faster.
        has_text = self._wanted in opened.line
        return None if has_text and contains(searchable(opened.line), self._wanted) else opened.seq


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


def _columns(query: Query) -> list[Column]:
    """What a row must have; its time is compared apart."""
    names = ((name, getattr(query, name)) for name in _NAMES)
    found = [name_column(name, text) for name, text in names if text is not None]
    if query.kind is not None:
        found.append(kind_column(query.kind))
    if query.verdict is not None:
        found.append(verdict_column(query.verdict))
    return found


def _candidates(index: Index, columns: Sequence[Column], query: Query) -> set[int]:
    """The records that the index selects."""
    sets = [index.matching(each) for each in columns]
    if query.since is not None or query.until is not None:
        since = to_microseconds(query.since) if query.since else 0
        until = to_microseconds(query.until) if query.until else 1 << 63
        sets.append(index.between(since, until))
    return set.intersection(*sets) if sets else set()


def parse_or_refuse(line: bytes) -> dict[str, Any]:
    """The record; raises `AuditFailed` if it was altered."""
    try:
        return parse_record(line)
    except BadRecord as problem:
        raise log_altered(f"a record of the audit log was altered: {problem}") from None


def _time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["time"])
