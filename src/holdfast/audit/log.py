"""The writer of the record: each event is on the disk before `write` returns (AUD-1, AUD-3).

One append-only file, shared by all processes and threads of a user. Under an exclusive lock:
  1. Open the log and make sure that the name still leads to what was locked.
  2. Find the last record; cut away what a crash tore and say so in a RECOVERY record.
  3. Append the new record with one write and flush it to the disk.
  4. If anything of 3 failed, take it back, so that nothing half-made stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from types import TracebackType
from typing import NamedTuple

from holdfast.audit import chain
from holdfast.audit.verify import (
    LOCK_TIMEOUT_S,
    LOG_NAME,
    VerifyReport,
    altered,
    failed,
    verify,
    wait_for_lock,
)
from holdfast.core.errors import ConfigError
from holdfast.core.events import Event, EventKind
from holdfast.core.types import Json, new_id

_LEAST_FIELD_BYTES = 64
_FIRST_LOOK_BYTES = 4096
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Tail(NamedTuple):
    """Where the open log ended when we last looked; another size makes us look again."""

    size_bytes: int
    seq: int
    prev: str


class _Draft(NamedTuple):
    """A record that has no place in the chain yet."""

    event_id: str
    fields: dict[str, str | int]
    body: str


class AuditLog:
    """Appends events to the record; keeps `AuditPort`. Safe for threads, processes and forks."""

    def __init__(self, directory: str, descriptor: int, *, max_field_bytes: int) -> None:
        self._directory = directory
        self._descriptor = descriptor
        self._max_field_bytes = max_field_bytes
        self._tail: _Tail | None = None
        self._lock = threading.Lock()
        self._file = -1
        self._identity = (0, 0)
        _LOGS.add(self)

    @classmethod
    def open(cls, directory: str, *, max_field_bytes: int = 4096) -> AuditLog:
        """Open or begin the log in a directory and mend what a crash left (AUD-3)."""
        if not _LEAST_FIELD_BYTES <= max_field_bytes <= chain.MAX_FIELD_BYTES:
            raise ConfigError(
                f"a field of the audit log is from {_LEAST_FIELD_BYTES} to "
                f"{chain.MAX_FIELD_BYTES} bytes long"
            )
        try:
            path = os.path.abspath(directory)
            log = cls(path, _open_directory(path), max_field_bytes=max_field_bytes)
        except OSError as error:
            raise failed(error) from None
        try:
            with log._turn() as (file, status):
                log._tail = log._end_of(file, status)
        except OSError as error:
            log.close()
            raise failed(error) from None
        except BaseException:
            log.close()
            raise
        return log

    def close(self) -> None:
        """Let go of the directory; a later write fails."""
        with self._lock:
            self._close_file()
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, event: Event) -> str:
        """Append an event and return its id once it is on the disk; else raise `AuditFailed`."""
        draft = self._draft(event)
        try:
            with self._turn() as (file, status):
                end = self._end_of(file, status)
                self._tail = None  # unknown until the new record is safe
                self._tail = self._append(file, end, draft)
        except OSError as error:
            raise failed(error) from None
        return draft.event_id

    def verify(self) -> VerifyReport:
        """Check the whole log; see `holdfast.audit.verify.verify`."""
        return verify(self._directory)

    def _draft(self, event: Event) -> _Draft:
        event_id = new_id("evt")
        fields: dict[str, str | int] = {
            "id": event_id,
            "kind": event.kind.value,
            "action_id": chain.cut_text(event.action_id, max_bytes=chain.MAX_NAME_BYTES),
            "principal": chain.cut_text(event.principal, max_bytes=chain.MAX_NAME_BYTES),
            "interface": chain.cut_text(event.interface, max_bytes=chain.MAX_NAME_BYTES),
        }
        body = chain.encode_body(event.body, max_field_bytes=self._max_field_bytes)
        return _Draft(event_id, fields, body)

    @contextmanager
    def _turn(self) -> Iterator[tuple[int, os.stat_result]]:
        """The log and its state, locked against every other writer."""
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise TimeoutError(errno.ETIMEDOUT, "the log stayed locked")
        try:
            while (status := self._lock_current()) is None:
                self._close_file()
            yield self._file, status
        finally:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._lock.release()

    def _lock_current(self) -> os.stat_result | None:
        """(1): the locked log's state, or None if what was locked is no longer the log.

        The file stays open between writes: opening it each time costs a third of a flush.
        """
        if self._file < 0:
            self._file = os.open(LOG_NAME, _FLAGS, 0o600, dir_fd=self._descriptor)
            status = os.fstat(self._file)
            self._identity = status.st_dev, status.st_ino
        wait_for_lock(self._file, fcntl.LOCK_EX)
        try:
            named = os.stat(LOG_NAME, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        # Through another user or another name the file could be changed behind our back.
        if (
            not stat.S_ISREG(named.st_mode)
            or named.st_uid != os.geteuid()
            or named.st_mode & 0o077
            or named.st_nlink != 1
        ):
            raise PermissionError(errno.EPERM, "not a private plain file")
        return named if (named.st_dev, named.st_ino) == self._identity else None

    def _close_file(self) -> None:
        file, self._file, self._tail = self._file, -1, None
        if file >= 0:
            os.close(file)

    def forget_parent(self) -> None:
        """After a fork: the open file shares its lock with the parent, our lock may be held."""
        self._lock = threading.Lock()
        self._close_file()

    def _end_of(self, file: int, status: os.stat_result) -> _Tail:
        """(2): the end of the log, mended if need be."""
        known = self._tail
        if known is not None:
            if status.st_size == known.size_bytes:
                return known
            if status.st_size < known.size_bytes:  # acknowledged records are never taken back
                raise altered("records that were on the disk are gone from the audit log")
        try:
            torn, end_bytes, last = _look_at_end(file, status.st_size)
        except chain.BadRecord as problem:
            raise altered(f"the last record of the audit log was altered: {problem}") from None
        tail = _Tail(end_bytes, *last)
        if not torn:
            return tail
        self._tail = None
        os.ftruncate(file, end_bytes)
        body: dict[str, Json] = {"cut_bytes": len(torn), "cut_sha256": sha256(torn).hexdigest()}
        draft = self._draft(Event(EventKind.RECOVERY, "", "holdfast", "audit", body))
        return self._append(file, tail, draft)

    def _append(self, file: int, end: _Tail, draft: _Draft) -> _Tail:
        """(3) and (4): one record after `end`, on the disk or not there at all."""
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        seq = end.seq + 1
        fields = {**draft.fields, "seq": seq, "time": now, "prev": end.prev}
        line = chain.seal(fields, body=draft.body)
        try:
            if os.write(file, line + b"\n") != len(line) + 1:
                raise OSError(errno.ENOSPC, "a part of the record was not written")
            os.fdatasync(file)
            if end.size_bytes == 0:  # the name of a new file must be as durable as its content
                os.fsync(self._descriptor)
        except BaseException:
            _take_back(file, end.size_bytes)
            raise
        size_bytes = end.size_bytes + len(line) + 1
        return _Tail(size_bytes, seq, chain.line_digest(line))


_LOGS: weakref.WeakSet[AuditLog] = weakref.WeakSet()


def _after_fork() -> None:
    for log in _LOGS:
        log.forget_parent()


os.register_at_fork(after_in_child=_after_fork)


def _take_back(file: int, size_bytes: int) -> None:
    try:
        os.ftruncate(file, size_bytes)
        os.fdatasync(file)
    except OSError:
        # The disk refuses this as well. A torn record is cut by the next writer; a whole one stays
        # as an intent without an effect, which is the harmless way round.
        return


def _look_at_end(file: int, size_bytes: int) -> tuple[bytes, int, tuple[int, str]]:
    """The torn bytes, where the whole records end, and number and digest of the last of them.

    Only bytes without newline or one line that is no JSON can come from a crash. A record that
    reads well but does not match its hash was altered: it is evidence and never cut.
    """
    torn, end_bytes = b"", size_bytes
    if size_bytes > 0 and os.pread(file, 1, size_bytes - 1) != b"\n":
        torn = _line_before(file, size_bytes)
        end_bytes -= len(torn)
    if end_bytes == 0:
        return torn, 0, (0, chain.GENESIS)
    line = _line_before(file, end_bytes - 1)
    try:
        return torn, end_bytes, _number_and_digest(line)
    except chain.NotJson:
        if torn:
            raise
    torn = line + b"\n"
    end_bytes -= len(torn)
    if end_bytes == 0:
        return torn, 0, (0, chain.GENESIS)
    return torn, end_bytes, _number_and_digest(_line_before(file, end_bytes - 1))


def _number_and_digest(line: bytes) -> tuple[int, str]:
    return chain.parse(line)["seq"], chain.line_digest(line)


def _line_before(file: int, end_bytes: int) -> bytes:
    """What stands between the last newline before `end_bytes` and `end_bytes`."""
    for look_bytes in (_FIRST_LOOK_BYTES, chain.MAX_RECORD_BYTES + 1):
        start_bytes = max(0, end_bytes - look_bytes)
        data = os.pread(file, end_bytes - start_bytes, start_bytes)
        found = data.rfind(b"\n")
        if found >= 0 or start_bytes == 0:
            return data[found + 1 :]
    raise chain.BadRecord("it is longer than any record")


def _open_directory(path: str) -> int:
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        pass
    else:
        _sync_directory(os.path.dirname(path))
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "open to other users")
    return descriptor


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
