"""Appends records to the growing segment, for all processes of one user that share the log.

For each batch, under a lock shared by these processes:

   (1) open the growing segment and check that its name still refers to the open file
   (2) find the last record; truncate bytes that a crash tore, and record the truncation
   (3) start a new segment if this one is full or old
   (4) append all records with one write; truncate again if the write fails

Then flush without the lock. The flush covers earlier records of other processes as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256

from cellwall.audit import files
from cellwall.audit.encoding import RecordDraft
from cellwall.audit.files import LogSettings, log_altered, map_errors, to_audit_failure
from cellwall.audit.growing_segment import (
    SMALL_BATCH_BYTES,
    GrowingFile,
    LogTail,
    find_end,
    find_tail,
    next_plain_segment,
    previous_leaf,
    started_s,
)
from cellwall.audit.merkle import leaf_hash
from cellwall.audit.records import GENESIS, MAX_RECORD_BYTES, encoded_line
from cellwall.audit.segments import (
    PREALLOCATION_BYTES,
    RECORDS,
    BadSegment,
    end_of_bytes,
    end_of_records,
    list_segments,
    segment_name,
)
from cellwall.audit.tree_builder import WrittenBatch
from cellwall.core.errors import AuditFailed
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json

_LOCK_NOW = fcntl.LOCK_EX | fcntl.LOCK_NB
_SEALED = EventKind.SEAL.value.encode()
_CHECK_VALID_S = 0.005
"""How long a busy writer trusts its last check of the segment's owner, mode and link count."""
_FILE_CLOCK_TICK_S = 0.02
"""The granularity of file timestamps."""


class Writer(GrowingFile):
    """Not safe for concurrent use by two threads."""

    def __init__(
        self, directory: str, settings: LogSettings, signed_size: Callable[[int], int]
    ) -> None:
        super().__init__(settings.segment_bytes)
        self._directory = directory
        self._settings = settings
        self._signed_size = signed_size
        self._folder = self._lock_file = -1
        self._first = 0
        self._name = ""
        self._identity = (0, 0, 0, 0, 0)
        """Mode, inode, device, link count and owner, as `stat` returns them."""
        self._is_old_at_s = 0.0
        self._tail: LogTail | None = None
        self._folder_ns, self._checked_s = 0, -_CHECK_VALID_S
        self._acknowledged = 0
        self._has_write_failed = False
        self._unrecorded_cut: dict[str, Json] | None = None
        """What was truncated, until a durable record describes it."""

    def open(self, introduction: Callable[[], dict[str, Json]]) -> bool:
        """Returns True if the log is new: its first record then states which log this is."""
        with map_errors():
            files.make_folder(self._directory)
            self._folder = files.open_folder(self._directory)
            self._lock_file = files.open_private("lock", os.O_RDWR | os.O_CREAT, self._folder)
            with files.locked(self._lock_file):
                if not self._find_segment():
                    self._open_segment(1, is_new=True)
                self._tail = end = self._end()
                if end.seq == 0:
                    event = Event(EventKind.BEGIN, "", "cellwall", "audit", introduction())
                    self._tail = None
                    begun = self._append(end, [RecordDraft(event)])
                    self._flush(end)
                    self._tail = begun
                return end.seq == 0

    def close(self) -> None:
        """Release the files; a later write fails."""
        self.release_preallocation()
        for name in ("_file", "_lock_file", "_folder"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)

    def reset_after_fork(self) -> None:
        """Reopen the files in a forked child: inherited descriptors share their locks with the
        parent."""
        if self._folder < 0:
            return
        for descriptor in (self._file, self._lock_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock_file = -1
        self._tail = None
        with suppress(OSError, AuditFailed):  # otherwise the log stays closed
            self._lock_file = files.open_private("lock", os.O_RDWR, self._folder)
            self._find_segment()

    def commit(self, batch: Sequence[RecordDraft]) -> WrittenBatch:
        """Write a batch; it is durable when this returns, otherwise `AuditFailed` is raised."""
        if self._has_write_failed:
            raise log_altered("the disk failed to write the audit log")
        # On the path of every action, so no context managers and few calls. The flush evicts this
        # code from the processor caches, and each extra function then costs ten times its usual
        # time.
        lock_file = self._lock_file
        try:
            if lock_file < 0 or self._file < 0:
                raise _closed_error()
            try:
                fcntl.flock(lock_file, _LOCK_NOW)
            except BlockingIOError:
                files.wait_for_lock(lock_file, fcntl.LOCK_EX)
            try:
                now_s = time.time()
                end = self._cached_end(now_s) or self._verified_end(now_s)
                if end.size_bytes >= self._settings.segment_bytes or now_s >= self._is_old_at_s:
                    end = self._start_next_segment(end)
                self._tail = None
                leaves: list[bytes] = []
                self._tail = tail = self._append(end, batch, now_s, leaves)
            finally:
                fcntl.flock(lock_file, fcntl.LOCK_UN)
            try:
                os.fdatasync(self._file)
            except OSError as error:
                if error.errno is not None:
                    self._roll_back(end)
                raise
        except (OSError, BadSegment) as error:
            if isinstance(error, OSError) and error.errno is None:
                raise  # by a handler of the caller's signals: the disk has not failed
            raise to_audit_failure(error) from None
        self._acknowledged = tail.seq
        return WrittenBatch(self._first, end.seq, end.size_bytes, tail.size_bytes, leaves)

    def seal(self) -> None:
        """End the growing segment now and start the next one."""
        with map_errors():
            if self._lock_file < 0 or self._file < 0:
                raise _closed_error()
            with files.locked(self._lock_file):
                end = self._end()
                self._tail = self._start_next_segment(end)

    def _append(
        self,
        end: LogTail,
        batch: Sequence[RecordDraft],
        now_s: float | None = None,
        leaves: list[bytes] | None = None,
    ) -> LogTail:
        """(4). Appends the leaf hashes to `leaves`, except for records that the log writes about
        itself."""
        now = _format_time(time.time() if now_s is None else now_s)
        seq, prev, lines = end.seq, end.prev, []
        for draft in batch:
            seq += 1
            line = encoded_line(draft.encoded, seq, now, prev)
            leaf = leaf_hash(line)
            prev = leaf.hex()
            lines.append(line)
            if leaves is not None:
                leaves.append(leaf)
        lines.append(b"")
        data = b"\n".join(lines)
        start, count = end.size_bytes, len(data)
        if leaves is not None and (count > SMALL_BATCH_BYTES or self._size_bytes - start <= count):
            self._update_preallocation(start, count)
        try:
            if os.pwrite(self._file, data, start) != count:
                raise OSError(errno.ENOSPC, "short write of records")
        except BaseException:
            self._truncate(start)
            raise
        self._size_bytes = max(self._size_bytes, start + count)
        return LogTail(start + count, seq, prev, batch[-1].kind.encode())

    def _roll_back(self, before: LogTail) -> None:
        """Truncate a batch whose flush failed, while it is still the end of the log."""
        # If it cannot be truncated, other processes may have appended to it already, or will. The
        # kernel reports the error to them as well; this writer stops.
        self._has_write_failed = True
        with files.locked(self._lock_file):
            tail, self._tail = self._tail, None
            if tail is not None and self._is_end(tail, os.fstat(self._file).st_size):
                self._truncate(before.size_bytes)
                self._has_write_failed = False

    def _flush(self, before: LogTail) -> None:
        """Flush a record of the log itself, under the lock: it becomes durable or is truncated."""
        try:
            os.fdatasync(self._file)
        except OSError:
            self._has_write_failed = True
            self._truncate(before.size_bytes)
            self._has_write_failed = False
            raise

    def release_preallocation(self) -> None:
        """Truncate the NUL bytes, since other tools read the segment too. The next busy writer
        preallocates again."""
        if self._tail is None or self._file < 0 or self._lock_file < 0:
            return  # closed, or changed by another process since: leave the file alone
        with suppress(OSError):
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                end = end_of_records(self._file)
                # A record torn by a kill stays for recovery.
                if end == end_of_bytes(self._file) and end < os.fstat(self._file).st_size:
                    self._drop_preallocation(end)
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    # --- segments

    def _find_segment(self) -> bool:
        """(1): open the growing segment; returns False if the log is empty."""
        segments = list_segments(self._directory)
        if not segments:
            return False
        if RECORDS not in segments[-1].parts:
            raise log_altered("the last segment of the audit log is gone")
        self._open_segment(segments[-1].first)
        return True

    def _open_segment(self, first: int, *, is_new: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if is_new else 0)
        file = files.open_private(segment_name(first, RECORDS), flags, self._folder)
        status = os.fstat(file)
        if status.st_size == 0:
            # The name must be as durable as the content; the process that created the file may have
            # been killed.
            try:
                os.fsync(self._folder)
            except OSError:
                os.close(file)
                raise
        old, self._file, self._first, self._tail = self._file, file, first, None
        self._name, self._identity = segment_name(first, RECORDS), status[:5]
        self._size_bytes = status.st_size
        began_s = started_s(file) if status.st_size else status.st_mtime
        self._is_old_at_s = began_s + self._settings.segment_age_s
        if old >= 0:
            os.close(old)

    def _cached_end(self, now_s: float) -> LogTail | None:
        """(1), (2) for a writer that appends record after record and found nothing changed;
        otherwise None.

        `stat` on the segment itself would make the kernel track its mtime, and each flush would
        then write the inode as well. The directory's ctime shows whether a name in it was added,
        removed or renamed.
        """
        tail = self._tail
        if tail is None or not 0 < tail.size_bytes < self._size_bytes:
            return None
        # ctime, not mtime: any process of the user can set mtime back.
        before_ns, self._folder_ns = self._folder_ns, os.fstat(self._folder).st_ctime_ns
        if (
            before_ns == self._folder_ns
            and self._checked_s <= now_s < self._checked_s + _CHECK_VALID_S
            and os.pread(self._file, 2, tail.size_bytes - 1) == b"\n\0"
        ):
            return tail
        return None

    def _verified_end(self, now_s: float) -> LogTail:
        """(1), (2)"""
        self._checked_s = -_CHECK_VALID_S
        if os.fstat(self._lock_file).st_nlink == 0:  # other processes would lock a different file
            raise log_altered("the lock of the audit log was removed")
        end = self._end()
        # A directory that changed within the last clock tick may change again without a new ctime.
        if now_s - self._folder_ns / 1e9 > _FILE_CLOCK_TICK_S:
            self._checked_s = now_s
        return end

    def _end(self) -> LogTail:
        """(1), (2): the end of the log, repaired if necessary."""
        while True:
            is_there = True
            try:
                status = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            except FileNotFoundError:
                # Sealed and compressed by another process; the open descriptor still has the
                # content.
                status, is_there = os.fstat(self._file), False
            else:
                files.check_private(status)
                if status[:5] != self._identity:
                    raise log_altered("the growing segment of the audit log was replaced")
            tail, self._size_bytes = self._tail, status.st_size
            if tail is None or not self._is_end(tail, status.st_size):
                tail = self._read_tail(status.st_size)
            if tail.kind != _SEALED:
                if not is_there:
                    raise log_altered("the growing segment of the audit log is gone")
                return tail
            try:
                self._open_segment(tail.seq + 1)
                self._tail = None if os.fstat(self._file).st_size else self._new_tail(tail)
            except FileNotFoundError:
                if self._skip_ahead(tail.seq + 1):
                    continue
                # A crash between the seal and the next segment.
                self._open_segment(tail.seq + 1, is_new=True)
                self._tail = self._new_tail(tail)

    def _skip_ahead(self, after_ours: int) -> bool:
        """Move to the next uncompressed segment, past segments that other processes sealed,
        compressed and perhaps deleted while this one was idle. Returns False if there is none."""
        while (first := next_plain_segment(self._directory, self._first, after_ours)) is not None:
            with suppress(FileNotFoundError):  # compressed meanwhile
                self._open_segment(first)
                return True
        return False

    def _new_tail(self, sealed: LogTail) -> LogTail:
        return LogTail.of_empty(sealed.seq + 1, sealed.prev)

    def _read_tail(self, size_bytes: int) -> LogTail:
        known, prev = self._tail, None
        end_bytes = find_end(self._file, size_bytes, known)
        if end_bytes < MAX_RECORD_BYTES:
            prev = GENESIS if self._first == 1 else previous_leaf(self._directory, self._first)
        # A known tail means that this process has written here, so the power has not failed since.
        is_prepared = known is None and size_bytes % PREALLOCATION_BYTES == 0
        preallocation_start = size_bytes - PREALLOCATION_BYTES if is_prepared else None
        tail, torn = find_tail(
            self._file, end_bytes, self._first, prev, preallocation_start=preallocation_start
        )
        # A failed batch is truncated by its writer; acknowledged or signed records never are.
        if tail.seq < self._acknowledged:
            raise log_altered("records that were on the disk are gone from the audit log")
        if (known is None or torn) and tail.seq < self._signed_size(self._first):
            raise log_altered("records that were signed are gone from the audit log")
        self._tail = None  # unknown until the end is repaired
        if torn:
            self._unrecorded_cut = {"cut_bytes": len(torn), "cut_sha256": sha256(torn).hexdigest()}
            self._drop_preallocation(tail.size_bytes)
        if self._unrecorded_cut is not None and tail.kind != _SEALED:
            draft = RecordDraft(
                Event(EventKind.RECOVERY, "", "cellwall", "audit", self._unrecorded_cut)
            )
            before, tail = tail, self._append(tail, [draft])
            self._flush(before)
            self._unrecorded_cut = None
        self._tail = tail
        return tail

    def _start_next_segment(self, end: LogTail) -> LogTail:
        """(3)"""
        if end.size_bytes == 0:
            return end
        event = Event(EventKind.SEAL, "", "cellwall", "audit", {"next": end.seq + 2})
        self._tail = None
        if self._size_bytes > end.size_bytes:
            self._drop_preallocation(end.size_bytes)  # a sealed segment has no preallocation
        sealed = self._append(end, [RecordDraft(event)])
        self._flush(end)
        self._open_segment(sealed.seq + 1, is_new=True)
        return self._new_tail(sealed)


def _closed_error() -> OSError:
    return OSError(errno.EBADF, "the log is closed")


def _format_time(time_s: float) -> str:
    seconds = int(time_s // 1)
    return f"{_format_seconds(seconds)}.{int((time_s - seconds) * 1_000_000):06d}Z"


@lru_cache(maxsize=2)
def _format_seconds(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
