"""Puts records into the growing segment, for all processes of a user that share the log.

Of each batch, under a lock that all of them know:
  1. Open the growing segment and make sure that its name still leads to it.
  2. Find the last record; cut away what a crash tore and say so in a record.
  3. Begin a new segment if this one is full or old.
  4. Append all records with one write; if that fails take it back.
Then, without the lock, flush. Records of other processes that came before ours are flushed with it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from hashlib import sha256

from holdfast.audit import files
from holdfast.audit.bodies import MAX_FIELD_BYTES, cut_text, encode_body
from holdfast.audit.failures import altered, failed
from holdfast.audit.merkle import leaf_hash
from holdfast.audit.records import GENESIS, MAX_NAME_BYTES, MAX_RECORD_BYTES, link_of, record_line
from holdfast.audit.redaction import without_secrets
from holdfast.audit.segments import (
    RECORDS,
    SEAL,
    BadSegment,
    list_segments,
    open_records,
    read_lines,
    read_seal,
    segment_name,
)
from holdfast.audit.settings import LogSettings
from holdfast.audit.tail import Tail, find_tail
from holdfast.audit.walk import Stretch
from holdfast.core.errors import AuditFailed
from holdfast.core.events import Event, EventKind
from holdfast.core.types import Json, new_id

_APPEND = os.O_RDWR | os.O_APPEND
_SEALED = EventKind.SEAL.value.encode()


class Draft:
    """A record that has no place in the log yet."""

    __slots__ = ("body", "fields")

    def __init__(self, event: Event, max_field_bytes: int = MAX_FIELD_BYTES) -> None:
        self.fields = {
            "id": new_id("evt"),
            "kind": event.kind.value,
            "action_id": _short(event.action_id),
            "principal": _short(event.principal),
            "interface": _short(event.interface),
            "session_id": _short(event.session_id),
        }
        self.body = encode_body(event.body, max_field_bytes=max_field_bytes)


class Writer:
    """Not to be used by two threads at once."""

    def __init__(
        self, directory: str, settings: LogSettings, signed_size: Callable[[int], int]
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._signed_size = signed_size
        self._folder = self._lock_file = self._file = -1
        self._first = 0
        self._name, self._identity = "", (0, 0)
        self._began_s = 0.0
        self._tail: Tail | None = None
        self._acknowledged = 0
        self._is_torn_off = False

    def open(self, introduction: Callable[[], dict[str, Json]]) -> bool:
        """True if the log begins now: its first record says which log this is."""
        with _failures():
            files.make_folder(self._directory)
            self._folder = files.open_folder(self._directory)
            self._lock_file = files.open_private("lock", os.O_RDWR | os.O_CREAT, self._folder)
            with files.locked(self._lock_file):
                if not self._find_segment():
                    self._enter(1, is_new=True)
                self._tail = end = self._end()
                if end.seq == 0:
                    event = Event(EventKind.BEGIN, "", "holdfast", "audit", introduction())
                    self._tail = None
                    self._tail = self._append(end, [Draft(event)])
                    os.fdatasync(self._file)
                return end.seq == 0

    def close(self) -> None:
        """Let go; a later write fails."""
        for name in ("_file", "_lock_file", "_folder"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)

    def forget_parent(self) -> None:
        """After a fork: open files share their locks with the parent."""
        if self._folder < 0:
            return
        for descriptor in (self._file, self._lock_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock_file = -1
        self._tail = None
        with suppress(OSError, AuditFailed):  # then it stays closed, and a write is refused
            self._lock_file = files.open_private("lock", os.O_RDWR, self._folder)
            self._find_segment()

    def commit(self, batch: Sequence[Draft]) -> Stretch:
        """All of it is on the disk when this returns; or `AuditFailed` is raised."""
        if self._is_torn_off:
            raise altered("the disk has refused to keep the audit log")
        with _failures():
            self._check_open()
            files.wait_for_lock(self._lock_file, fcntl.LOCK_EX)
            try:
                if os.fstat(self._lock_file).st_nlink == 0:  # others would lock another one
                    raise altered("the lock of the audit log was removed")
                end = self._end()
                if self._is_full(end):
                    end = self._next_segment(end)
                self._tail = None  # unknown until the batch is written
                leaves: list[bytes] = []
                self._tail = tail = self._append(end, batch, leaves)
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
            self._flush(end)
        self._acknowledged = tail.seq
        return Stretch(self._first, end.seq, end.size_bytes, tail.size_bytes, leaves)

    def seal(self) -> None:
        """End the growing segment now, and begin the next one."""
        with _failures():
            self._check_open()
            with files.locked(self._lock_file):
                end = self._end()
                if end.size_bytes:
                    self._tail = self._next_segment(end)

    def _check_open(self) -> None:
        if self._lock_file < 0 or self._file < 0:
            raise OSError(errno.EBADF, "the log is closed")

    def _append(self, end: Tail, batch: Sequence[Draft], leaves: list[bytes] | None = None) -> Tail:
        """(4); their leaf hashes are added to `leaves`."""
        now = _now()
        seq, prev, lines = end.seq, end.prev, []
        for draft in batch:
            seq += 1
            line = record_line(draft.fields, body=draft.body, seq=seq, time=now, prev=prev)
            leaf = leaf_hash(line)
            prev = leaf.hex()
            lines.append(line)
            if leaves is not None:
                leaves.append(leaf)
        lines.append(b"")
        data = b"\n".join(lines)
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(errno.ENOSPC, "a part of the records was not written")
        except BaseException:
            os.ftruncate(self._file, end.size_bytes)
            raise
        kind = batch[-1].fields["kind"].encode()
        return Tail(end.size_bytes + len(data), seq, prev, kind)

    def _flush(self, before: Tail) -> None:
        """What a disk did not take is taken back while it is still the end of the log."""
        try:
            os.fdatasync(self._file)
        except OSError:
            # Unless it can be taken back, others may have built upon it, or will. The kernel tells
            # them as well; we go no further.
            self._is_torn_off = True
            with files.locked(self._lock_file):
                tail, self._tail = self._tail, None
                if tail is not None and os.fstat(self._file).st_size == tail.size_bytes:
                    os.ftruncate(self._file, before.size_bytes)
                    self._is_torn_off = False
            raise

    # --- segments

    def _find_segment(self) -> bool:
        """(1): open the one that grows; False if the log has not begun."""
        there = list_segments(self._directory)
        if not there:
            return False
        if RECORDS not in there[-1].parts:
            raise altered("the last segment of the audit log is gone")
        self._enter(there[-1].first)
        return True

    def _enter(self, first: int, *, is_new: bool = False) -> None:
        flags = _APPEND | (os.O_CREAT | os.O_EXCL if is_new else 0)
        file = files.open_private(segment_name(first, RECORDS), flags, self._folder)
        if is_new:
            os.fsync(self._folder)  # the name must be as durable as the content
        old, self._file, self._first, self._tail = self._file, file, first, None
        status = os.fstat(file)
        self._name, self._identity = segment_name(first, RECORDS), (status.st_ino, status.st_dev)
        self._began_s = status.st_mtime if is_new or status.st_size == 0 else _born(file)
        if old >= 0:
            os.close(old)

    def _end(self) -> Tail:
        """(1), (2): the end of the log, mended if need be."""
        while True:
            is_there = True
            try:
                status = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            except FileNotFoundError:
                # Packed by another process, after it was sealed; our open file tells.
                status, is_there = os.fstat(self._file), False
            else:
                files.check_private(status)
                if (status.st_ino, status.st_dev) != self._identity:
                    raise altered("the growing segment of the audit log was replaced")
            tail = self._tail
            if tail is None or status.st_size != tail.size_bytes:
                tail = self._look(status.st_size)
            if tail.kind != _SEALED:
                if not is_there:
                    raise altered("the growing segment of the audit log is gone")
                return tail
            try:
                self._enter(tail.seq + 1)
                self._tail = None if os.fstat(self._file).st_size else self._new_tail(tail)
            except FileNotFoundError:
                if self._skip_ahead(tail.seq + 1):
                    continue
                # A crash between the seal and the next segment.
                self._enter(tail.seq + 1, is_new=True)
                self._tail = self._new_tail(tail)

    def _skip_ahead(self, after_ours: int) -> bool:
        """To the next segment that is not packed, past those that others sealed, packed and perhaps
        deleted while we were idle. False if there is none after ours."""
        later = [each for each in list_segments(self._directory) if each.first > self._first]
        following = after_ours
        for segment in later:
            if segment.first != following:
                raise altered("a segment of the audit log is gone")
            if RECORDS in segment.parts:
                # Perhaps sealed already, and not by its own file yet: it is read like any other.
                with suppress(FileNotFoundError):
                    self._enter(segment.first)
                    return True
                return self._skip_ahead(after_ours)  # packed since we looked
            if SEAL not in segment.parts:
                raise altered("a segment of the audit log is gone")
            following = read_seal(segment).last + 1
        if later:
            raise altered("the last segment of the audit log is gone")
        return False

    def _new_tail(self, sealed: Tail) -> Tail:
        return Tail.of_empty(sealed.seq + 1, sealed.prev)

    def _look(self, size_bytes: int) -> Tail:
        known, prev = self._tail, None
        if size_bytes < MAX_RECORD_BYTES:
            prev = GENESIS if self._first == 1 else self._last_leaf_before()
        tail, torn = find_tail(self._file, size_bytes, self._first, prev)
        # A batch that failed is taken back by its writer; what was acknowledged or signed never is.
        if tail.seq < self._acknowledged:
            raise altered("records that were on the disk are gone from the audit log")
        if (known is None or torn) and tail.seq < self._signed_size(self._first):
            raise altered("records that were signed are gone from the audit log")
        self._tail = tail
        if not torn:
            return tail
        os.ftruncate(self._file, tail.size_bytes)
        body: dict[str, Json] = {"cut_bytes": len(torn), "cut_sha256": sha256(torn).hexdigest()}
        draft = Draft(Event(EventKind.RECOVERY, "", "holdfast", "audit", body))
        self._tail = None
        self._tail = self._append(tail, [draft])
        os.fdatasync(self._file)
        return self._tail

    def _last_leaf_before(self) -> str | None:
        """What the first record of this segment is linked to: by the record itself, if it is there.

        Also makes sure that this segment follows the one before it.
        """
        before = [each for each in list_segments(self._directory) if each.first < self._first]
        if not before:
            return None
        segment = before[-1]
        if segment.has_records:
            with open_records(segment) as file:
                last = deque((line for line, is_whole in read_lines(file) if is_whole), maxlen=1)
            if not last:
                raise altered("a segment of the audit log has lost all its records")
            seq, leaf = link_of(last[0]).seq, leaf_hash(last[0]).hex()
        else:
            seal = read_seal(segment)
            seq, leaf = seal.last, seal.leaf
        if seq + 1 != self._first:
            raise altered("a segment of the audit log is gone, or one was put there")
        return leaf

    def _is_full(self, end: Tail) -> bool:
        if end.size_bytes == 0:
            return False
        age_s = time.time() - self._began_s
        return (
            end.size_bytes >= self._settings.segment_bytes or age_s >= self._settings.segment_age_s
        )

    def _next_segment(self, end: Tail) -> Tail:
        """(3)"""
        event = Event(EventKind.SEAL, "", "holdfast", "audit", {"next": end.seq + 2})
        self._tail = None
        sealed = self._append(end, [Draft(event)])
        os.fdatasync(self._file)
        self._enter(sealed.seq + 1, is_new=True)
        return self._new_tail(sealed)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise failed(error) from None
    except BadSegment as problem:
        raise altered(f"the audit log was altered: {problem}") from None


def _born(file: int) -> float:
    """When the segment began: its first record says; a clock that was wrong harms nobody."""
    head = os.pread(file, 65_536, 0).partition(b"\n")[0]
    found = head.rpartition(b'"time":"')[2].partition(b'"')[0]
    try:
        return datetime.fromisoformat(found.decode("ascii")).timestamp()
    except ValueError:
        return os.fstat(file).st_mtime


def _short(text: str) -> str:
    return _clean(text) if len(text) <= MAX_NAME_BYTES else cut_text(text, max_bytes=MAX_NAME_BYTES)


@lru_cache(maxsize=1024)
def _clean(text: str) -> str:
    """The same few names come again and again."""
    return without_secrets(text) if text.isascii() else cut_text(text, max_bytes=MAX_NAME_BYTES)


def _now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds // 1000:06d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
