"""The log directory: settings, private files, locks, and the mapping of their errors."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cellwall.audit.segments import BadSegment
from cellwall.core.errors import AuditFailed


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of one log; the defaults are those of the configuration."""

    max_field_bytes: int = 4096
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_s: float = 7 * 86_400.0
    checkpoint_events: int = 1000
    checkpoint_s: float = 30.0
    keep_days: int | None = None
    """None: sealed segments are never deleted."""
    signing_key: str | None = None
    """Path of a private key supplied by the operator; None: our own key, beside the audit
    directory."""
    witness_directory: str | None = None
    witness_command: tuple[str, ...] = ()
    forward_folder: str | None = None
    """Where the bookmark of forwarding lies: records that were not forwarded are not deleted."""


DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""The flags that open a directory."""
LOCK_TIMEOUT_S = 10.0
_PRIVATE = 0o600
_FIRST_PAUSE_S = 0.000_05
_MAX_PAUSE_S = 0.000_2
_ZEROS = bytes(16 * 1024)
"""The unit of one write. With larger writes the kernel caches large folios, and each flush
searches a whole folio."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folder(path: str) -> None:
    """Create the directory of a new log."""
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        pass
    else:
        _sync_path(os.path.dirname(path))


@contextmanager
def closing_fd(descriptor: int) -> Iterator[int]:
    """Close the descriptor at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_folder(path: str) -> int:
    """Open the log directory; refused if other users have access."""
    descriptor = os.open(path, DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "open to other users")
    return descriptor


def open_private(name: str, flags: int, folder: int) -> int:
    """Open a regular file in the directory that no other user or hard link can reach."""
    descriptor = os.open(
        name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    try:
        check_private(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_private(status: os.stat_result) -> None:
    """A file reachable by another user or through a hard link could be changed behind our back."""
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_uid != os.geteuid()
        or status.st_mode & 0o077
        or status.st_nlink != 1
    ):
        raise PermissionError(errno.EPERM, "not a private plain file")


def replace_file(
    name: str, data: bytes, folder: int, *, durable: bool = True, mode: int = _PRIVATE
) -> None:
    """Replace a file atomically, also across a power cut."""
    draft = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, _NEW, _PRIVATE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if mode != _PRIVATE:  # a witness may lie on a file system without modes
                os.fchmod(descriptor, mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    if durable:
        os.fsync(folder)


def fill_with_zeros(descriptor: int, start: int, end: int) -> None:
    """Write NUL bytes. Written, not only reserved with fallocate: a later flush of overwritten
    data then needs no update of the extent list."""
    while start < end:
        piece = _ZEROS[start % len(_ZEROS) :][: end - start]
        if os.pwrite(descriptor, piece, start) != len(piece):
            raise OSError(errno.ENOSPC, "not all of it was filled")
        start += len(piece)


@contextmanager
def locked(descriptor: int, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """A lock between processes; each process must have opened the file itself."""
    wait_for_lock(descriptor, kind)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_for_lock(descriptor: int, kind: int, *, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Wait a limited time: a stopped process must not block all others."""
    deadline_s, pause_s = 0.0, _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            deadline_s = deadline_s or time.monotonic() + timeout_s
            if time.monotonic() >= deadline_s:
                raise TimeoutError(errno.ETIMEDOUT, "the log stayed locked") from None
        else:
            return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _sync_path(path: str) -> None:
    with closing_fd(os.open(path, DIRECTORY)) as descriptor:
        os.fsync(descriptor)


def io_failure(error: OSError) -> AuditFailed:
    """Map an operating system error; the path is left out (ERR-1)."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "Free some disk space or move old segments of the audit log away."
    elif error.errno == errno.ETIMEDOUT:
        hint = "Look for a stopped Cellwall process that keeps the log locked."
    else:
        hint = (
            "Check that the audit folder is yours with mode 0700, its files plain ones with mode "
            "0600, and the disk writable."
        )
    return AuditFailed(
        "the audit log cannot be used",
        hint=hint,
        detail=errno.errorcode.get(error.errno or 0, "unknown"),
    )


def log_altered(message: str) -> AuditFailed:
    """The log was changed by something else; we neither append to it nor remove anything from
    it."""
    return AuditFailed(
        message,
        hint="Check the log with `cellwall audit verify`, keep it, and move it away to begin anew.",
        code="CW-AUDIT-ALTERED",
    )


def to_audit_failure(error: OSError | BadSegment) -> AuditFailed:
    """Map either error to `AuditFailed`."""
    if isinstance(error, OSError):
        return io_failure(error)
    return log_altered(f"the audit log was altered: {error}")


@contextmanager
def map_errors() -> Iterator[None]:
    """Only `AuditFailed` leaves this block."""
    try:
        yield
    except (OSError, BadSegment) as error:
        raise to_audit_failure(error) from None
