"""Builds and removes chunks of the text index. One process builds at a time; readers need no lock.

A chunk holds what the log itself holds no longer once a session is erased, so it goes when the key
of a session in it is destroyed: its own key is destroyed first, then its file is removed. After a
chunk is written, its keys are looked at again: an erasure that came meanwhile has either seen the
file, or is seen here.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from cellwall.audit import files
from cellwall.audit.files import closing_fd, map_errors
from cellwall.audit.records import SEALED_VERSION, BadRecord, parse_record
from cellwall.audit.sealed_bodies import is_locked, open_line, open_record, opened_line
from cellwall.audit.searchable_text import searchable
from cellwall.audit.segment_content import SegmentContent, lines_from
from cellwall.audit.segments import (
    SEAL,
    BadSegment,
    Segment,
    list_segments,
    open_plain,
    read_seal,
)
from cellwall.audit.text_chunk import BadChunk, ChunkHeader, LockedChunk, open_chunk, read_header
from cellwall.audit.text_draft import ChunkDraft
from cellwall.audit.text_filter import PAGES
from cellwall.audit.text_index import chunk_name, is_of_content, list_chunks, text_folder
from cellwall.core.errors import VaultError
from cellwall.core.ports import SessionKeysPort

_LOCK = "building.lock"
_MIN_GROWTH_BYTES = 512 * 1024
"""Fewer records at the end of the log are scanned faster than a chunk is written."""
_REST_EVERY_RECORDS = 16


class IndexingStopped(Exception):
    """Raised by `rest` to end the work; a chunk that was begun is lost."""


class IndexedText(NamedTuple):
    """How far the text index reaches, in bytes of records."""

    indexed_bytes: int
    all_bytes: int


def update_text_index(
    directory: str,
    keys: SessionKeysPort,
    *,
    rest: Callable[[], None] = lambda: None,
    is_complete: bool = False,
) -> IndexedText:
    """Index records that are not indexed yet, the newest segment first. `rest` is called every few
    records, and may sleep or raise `IndexingStopped`. `is_complete` includes the last few records
    of the log. Another process that builds, or a locked vault, leaves the index as it is."""
    done = total = 0
    with map_errors(), _alone(directory) as folder:
        if folder is None:
            return IndexedText(0, 0)
        _remove_drafts(directory, keys)
        segments = [each for each in list_segments(directory) if each.has_records]
        _remove_orphans(directory, segments, keys)
        for segment in reversed(segments):
            headers = _headers(directory, segment.first, keys)
            if _is_whole(segment, headers):
                total, done = total + headers[-1].end, done + headers[-1].end
                continue
            content = SegmentContent(segment)
            total += content.size_bytes
            with suppress(BadChunk, VaultError):
                builder = _SegmentBuilder(directory, folder, keys, content, rest)
                is_needed = is_complete or SEAL in segment.parts
                min_bytes = 1 if is_needed else _MIN_GROWTH_BYTES
                done += builder.build(segment.first, headers, min_bytes=min_bytes)
    return IndexedText(done, total)


def _headers(directory: str, segment: int, keys: SessionKeysPort) -> list[ChunkHeader]:
    """The chunks of a segment, in order; those that cannot belong there are removed."""
    found: list[ChunkHeader] = []
    for first in list_chunks(directory).get(segment, []):
        path = os.path.join(text_folder(directory), chunk_name(segment, first))
        with suppress(OSError):
            try:
                with open_plain(path) as file:
                    header = read_header(file)
                is_next = not found or found[-1].end <= header.start
                if not is_next or (header.segment, header.first) != (segment, first):
                    raise BadChunk("not the chunk of its name")
            except (BadChunk, BadSegment):
                remove_chunk(path, keys)
            else:
                found.append(header)
    return found


def _is_whole(segment: Segment, headers: Sequence[ChunkHeader]) -> bool:
    """Whether chunks cover all records of a sealed segment."""
    if SEAL not in segment.parts or not headers or headers[0].start:
        return False
    has_no_gap = all(one.end == two.start for one, two in pairwise(headers))
    return has_no_gap and headers[-1].last == read_seal(segment).last


@contextmanager
def _alone(directory: str) -> Iterator[int | None]:
    """The folder of chunks, with the lock; None if another process has it, or there is no log."""
    if not os.path.isdir(directory):
        yield None
        return
    files.make_folder(text_folder(directory))
    with (
        closing_fd(files.open_folder(text_folder(directory))) as folder,
        closing_fd(files.open_private(_LOCK, os.O_RDWR | os.O_CREAT, folder)) as lock,
    ):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        try:
            yield folder
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


class _SegmentBuilder:
    """Builds the chunks that a segment lacks."""

    def __init__(
        self,
        directory: str,
        folder: int,
        keys: SessionKeysPort,
        content: SegmentContent,
        rest: Callable[[], None],
    ) -> None:
        self._directory, self._folder, self._keys = directory, folder, keys
        self._content, self._rest = content, rest

    def build(self, segment: int, headers: Sequence[ChunkHeader], *, min_bytes: int) -> int:
        """Returns how many bytes of the segment are indexed."""
        known = self._proven(headers)
        first, start, indexed = segment, 0, 0
        for header in known:
            if header.start > start:  # a chunk was removed here
                indexed += self._fill(ChunkDraft(segment, first, start), header.start)
            first, start = header.last + 1, header.end
            indexed += header.end - header.start
        if self._content.size_bytes - start < min_bytes:
            return indexed
        draft = ChunkDraft(segment, first, start)
        if known:
            growing = self._growing(segment, known[-1].first)
            draft = draft if growing.is_full else growing
        return indexed + self._fill(draft, self._content.size_bytes)

    def _growing(self, segment: int, first: int) -> ChunkDraft:
        path = self._path(segment, first)
        try:
            return ChunkDraft.of(path, self._keys)
        except LockedChunk:
            raise
        except BadChunk:  # damaged: the next update builds another
            remove_chunk(path, self._keys)
            raise

    def _proven(self, headers: Sequence[ChunkHeader]) -> Sequence[ChunkHeader]:
        """Without the last chunks that do not belong to these records; they are removed."""
        for count in range(len(headers), 0, -1):
            last = headers[count - 1]
            if is_of_content(last, self._content):
                return headers[:count]
            remove_chunk(self._path(last.segment, last.first), self._keys)
        return []

    def _fill(self, draft: ChunkDraft, end: int) -> int:
        """Add the records up to an offset; returns how many bytes were added."""
        begin = written = draft.end
        for count, line in enumerate(lines_from(self._content, begin)):
            if draft.end >= end:
                break
            if count % _REST_EVERY_RECORDS == 0:
                self._rest()
            draft.add(line, *_text_of(self._keys, line))
            if draft.is_full:
                written = self._write(draft)
                draft = ChunkDraft(draft.segment, draft.last + 1, draft.end)
        if draft.end > written:
            written = self._write(draft)
        return written - begin

    def _write(self, draft: ChunkDraft) -> int:
        data, header = draft.encode(self._keys)
        name = chunk_name(header.segment, header.first)
        try:
            files.replace_file(name, data, self._folder, durable=False)
        except FileNotFoundError:  # `remove_erased` has removed the draft
            raise BadChunk("a session was erased meanwhile") from None
        if any(self._keys.is_destroyed(each) for each in header.opened_with):
            remove_chunk(self._path(header.segment, header.first), self._keys)
            raise BadChunk("a session was erased meanwhile")
        return header.end

    def _path(self, segment: int, first: int) -> str:
        return os.path.join(text_folder(self._directory), chunk_name(segment, first))


def _text_of(keys: SessionKeysPort, line: bytes) -> tuple[bytes, str | None]:
    """The text of a record, and the key that its body was opened with."""
    opened = open_line(keys, line)
    if opened is not None:
        return searchable(opened.line), opened.key
    try:
        record = parse_record(line)
    except BadRecord as problem:
        raise BadSegment(str(problem)) from None
    if record["v"] != SEALED_VERSION:
        return searchable(line), None
    shown = open_record(keys, record)
    if is_locked(shown):
        raise LockedChunk("the vault that reads the records is locked")
    is_open = "sealed" not in shown["body"]
    return searchable(opened_line(shown)), str(record["body"]["key"]) if is_open else None


def remove_chunk(path: str, keys: SessionKeysPort) -> None:
    """Destroy the key of a chunk or draft and remove its file: after that, no copy of it can be
    read."""
    with suppress(FileNotFoundError):
        with suppress(BadChunk, BadSegment, VaultError), open_plain(path) as file:
            keys.destroy_key(read_header(file).key)
        os.unlink(path)


def remove_erased(directory: str, keys: SessionKeysPort) -> int:
    """Remove chunks of records whose keys were destroyed since, and files that are no chunks;
    returns how many. Needs no vault."""
    # A draft may belong to a running process, which would refuse its chunk for the same reason. A
    # file without a whole header is only begun.
    for path in _drafts(directory):
        with suppress(OSError, BadChunk, BadSegment):
            if _is_erased(keys, path):
                remove_chunk(path, keys)
    return _remove_where(directory, keys, partial(_is_erased, keys))


def remove_damaged(directory: str, keys: SessionKeysPort) -> int:
    """Remove chunks that cannot be read as they were written; returns how many. Without the vault
    nothing is known, and nothing is removed."""
    return _remove_where(directory, keys, partial(_is_damaged, keys))


def _is_erased(keys: SessionKeysPort, path: str) -> bool:
    with open_plain(path) as file:
        header = read_header(file)
    return any(keys.is_destroyed(each) for each in (header.key, *header.opened_with))


def _is_damaged(keys: SessionKeysPort, path: str) -> bool:
    with suppress(LockedChunk), closing(open_chunk(path, keys)) as chunk:
        for number in range(PAGES):
            chunk.page(number)
    return False


def _remove_where(directory: str, keys: SessionKeysPort, is_stale: Callable[[str], bool]) -> int:
    removed = 0
    for segment, firsts in list_chunks(directory).items():
        for first in firsts:
            path = os.path.join(text_folder(directory), chunk_name(segment, first))
            with suppress(OSError):
                try:
                    if not is_stale(path):
                        continue
                except (BadChunk, BadSegment):
                    pass
                remove_chunk(path, keys)
                removed += 1
    return removed


def remove_segment_chunks(directory: str, segment: int, keys: SessionKeysPort | None) -> None:
    """Remove the chunks of a segment that retention deletes. Their keys go as well: the key of a
    session may be destroyed later, and nothing would then name the chunks that it is in."""
    for first in list_chunks(directory).get(segment, []):
        path = os.path.join(text_folder(directory), chunk_name(segment, first))
        with suppress(OSError):
            if keys is None:  # a log without encryption has no index
                os.unlink(path)
            else:
                remove_chunk(path, keys)


def _remove_orphans(directory: str, segments: Sequence[Segment], keys: SessionKeysPort) -> None:
    """Remove chunks that were being built while retention deleted their segment. With the lock: no
    other process has made a chunk of a newer segment meanwhile."""
    known = {each.first for each in segments}
    for segment in list_chunks(directory).keys() - known:
        remove_segment_chunks(directory, segment, keys)


def _remove_drafts(directory: str, keys: SessionKeysPort) -> None:
    """Remove temporary files of killed processes. With the lock: no process writes one now."""
    for path in _drafts(directory):
        with suppress(OSError):
            remove_chunk(path, keys)


def _drafts(directory: str) -> list[str]:
    """Chunks that were not renamed yet; `files.replace_file` names them."""
    folder = text_folder(directory)
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name[0] == "."]
    except (FileNotFoundError, NotADirectoryError):
        return []
