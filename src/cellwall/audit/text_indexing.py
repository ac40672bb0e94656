"""Builds and removes chunks of the text index. One process builds at a time; readers need no lock.

A chunk holds what the log itself holds no longer once a session is erased, so it goes when the key
of a session in it is destroyed: its own key is destroyed first, then its file is removed. After a
chunk is written, its keys are looked at again: an erasure that came meanwhile has either seen the
file, or is seen here.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from cellwall.audit import files
from cellwall.audit.files import closing_fd, map_errors
from cellwall.audit.record_text import searchable
from cellwall.audit.records import SEALED_VERSION, BadRecord, parse_record
from cellwall.audit.sealed_bodies import is_locked, open_line, open_record, opened_line
from cellwall.audit.segment_content import SegmentContent, lines_from
from cellwall.audit.segments import SEAL, BadSegment, Segment, list_segments, open_plain
from cellwall.audit.text_chunk import BadChunk, ChunkHeader, LockedChunk, open_chunk, read_header
from cellwall.audit.text_draft import ChunkDraft
from cellwall.audit.text_index import chunk_name, is_of_content, list_chunks, text_folder
from cellwall.core.errors import VaultError
from cellwall.core.ports import SessionKeysPort

_LOCK = "building.lock"
_MIN_GROWTH_BYTES = 512 * 1024
"""Fewer records at the end of the log are scanned faster than a chunk is written."""
_STALE_DRAFT_S = 3600.0
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
        segments = [each for each in list_segments(directory) if each.has_records]
        for segment in reversed(segments):
            content = SegmentContent(segment)
            total += content.size_bytes
            if folder is None:
                continue
            with suppress(BadChunk, VaultError):
                is_needed = is_complete or SEAL in segment.parts
                builder = _SegmentBuilder(directory, folder, keys, segment, content, rest)
                done += builder.build(min_bytes=1 if is_needed else _MIN_GROWTH_BYTES)
    return IndexedText(done, total)


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
    """Extends the chunks of one segment to its end."""

    def __init__(
        self,
        directory: str,
        folder: int,
        keys: SessionKeysPort,
        segment: Segment,
        content: SegmentContent,
        rest: Callable[[], None],
    ) -> None:
        self._directory, self._folder, self._keys = directory, folder, keys
        self._segment, self._content, self._rest = segment, content, rest

    def build(self, *, min_bytes: int) -> int:
        """Returns how many bytes of the segment are indexed."""
        last = self._last_valid()
        start = 0 if last is None else last.end
        if self._content.size_bytes - start < min_bytes:
            return start
        draft = self._begin(last)
        for count, line in enumerate(lines_from(self._content, start)):
            if count % _REST_EVERY_RECORDS == 0:
                self._rest()
            text, key = _text_of(self._keys, line)
            draft.add(line, text, key)
            if draft.is_full:
                start = self._write(draft)
                draft = self._new_draft(draft.last + 1, draft.end)
        return self._write(draft) if draft.end > start else start

    def _last_valid(self) -> ChunkHeader | None:
        """The last chunk that belongs to these records; later ones are removed."""
        for first in reversed(list_chunks(self._directory).get(self._segment.first, [])):
            path = self._path(first)
            try:
                chunk = open_chunk(path, self._keys)
                chunk.close()
            except LockedChunk:
                raise
            except OSError:
                continue
            except BadChunk:
                pass
            else:
                if chunk.header.first == first and is_of_content(chunk.header, self._content):
                    return chunk.header
            remove_chunk(path, self._keys)
        return None

    def _begin(self, last: ChunkHeader | None) -> ChunkDraft:
        if last is None:
            return self._new_draft(self._segment.first, 0)
        draft = ChunkDraft.of(self._path(last.first), self._keys)
        return self._new_draft(last.last + 1, last.end) if draft.is_full else draft

    def _new_draft(self, first: int, start: int) -> ChunkDraft:
        return ChunkDraft(self._segment.first, first, start)

    def _write(self, draft: ChunkDraft) -> int:
        data, header = draft.encode(self._keys)
        name = chunk_name(self._segment.first, header.first)
        files.replace_file(name, data, self._folder, durable=False)
        if any(self._keys.is_destroyed(each) for each in header.opened_with):
            remove_chunk(self._path(header.first), self._keys)
            raise BadChunk("a session was erased meanwhile")
        return header.end

    def _path(self, first: int) -> str:
        return os.path.join(text_folder(self._directory), chunk_name(self._segment.first, first))


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
    """Destroy the key of a chunk and remove its file: after that, no copy of it can be read."""
    with suppress(FileNotFoundError):
        with suppress(BadChunk, BadSegment, VaultError), open_plain(path) as file:
            keys.destroy_key(read_header(file).key)
        os.unlink(path)


def remove_erased(directory: str, keys: SessionKeysPort) -> int:
    """Remove chunks of records whose keys were destroyed since, and what cannot be a chunk; returns
    how many. Needs no vault. A chunk that lost its key holds nothing."""
    removed = 0
    for segment, firsts in list_chunks(directory).items():
        for first in firsts:
            path = os.path.join(text_folder(directory), chunk_name(segment, first))
            try:
                with open_plain(path) as file:
                    header = read_header(file)
                is_stale = any(keys.is_destroyed(each) for each in header.opened_with)
                is_stale = is_stale or keys.is_destroyed(header.key)
            except (BadChunk, BadSegment):
                is_stale = True
            except OSError:
                continue
            if is_stale:
                remove_chunk(path, keys)
                removed += 1
    return removed


def remove_segment_chunks(directory: str, segment: int) -> None:
    """Remove the chunks of a segment that retention deletes. Like its records they are sealed, and
    only unlinked."""
    for first in list_chunks(directory).get(segment, []):
        with suppress(OSError):
            os.unlink(os.path.join(text_folder(directory), chunk_name(segment, first)))


def remove_stale_drafts(directory: str) -> None:
    """Remove temporary files of killed processes."""
    folder = text_folder(directory)
    with suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(".") and os.stat(path).st_mtime < time.time() - _STALE_DRAFT_S:
                os.unlink(path)
