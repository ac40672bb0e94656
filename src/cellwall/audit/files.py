"""The folder of a log: opened once and held by descriptor, with locks that never wait for ever."""

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
    """The defaults are those of the configuration."""

    max_field_bytes: int = 4096
    segment_bytes: int = 64 * 1024 * 1024
    segment_age_s: float = 7 * 86_400.0
    checkpoint_events: int = 1000
    checkpoint_s: float = 30.0
    keep_days: int | None = None
    """None: sealed segments are never deleted."""
    signing_key: str | None = None
    """A private key from outside; None: one of our own, beside the audit folder."""
    witness_directory: str | None = None
    witness_command: tuple[str, ...] = ()


LOCK_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.000_05
_MAX_PAUSE_S = 0.000_2
_ZEROS = bytes(16 * 1024)
"""Not more at once: the kernel would keep it in pages so large that each flush must search them."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folder(path: str) -> None:
    """The folder of a new log."""
    try:
        os.makedirs(path, mode=0o700)
    except FileExistsError:
        pass
    else:
        _sync_path(os.path.dirname(path))


def open_folder(path: str) -> int:
    """The folder of a log; refused if others may write to it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "open to other users")
    return descriptor


def open_private(name: str, flags: int, folder: int) -> int:
    """A plain file in it that nobody else can reach, also not by another name."""
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
    """Through another user or another name it could be changed behind our back."""
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_uid != os.geteuid()
        or status.st_mode & 0o077
        or status.st_nlink != 1
    ):
        raise PermissionError(errno.EPERM, "not a private plain file")


def replace_file(name: str, data: bytes, folder: int, *, durable: bool = True) -> None:
    """All of it or nothing, also when the power fails."""
    draft = f".{name}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, _NEW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
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
    """With NUL bytes. Written and not only reserved: a later flush of what is written over them has
    no list of blocks to write down."""
    while start < end:
        piece = _ZEROS[start % len(_ZEROS) :][: end - start]
        if os.pwrite(descriptor, piece, start) != len(piece):
            raise OSError(errno.ENOSPC, "not all of it was filled")
        start += len(piece)


@contextmanager
def locked(descriptor: int, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Among processes; each of them must have opened the file by itself."""
    wait_for_lock(descriptor, kind)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_for_lock(descriptor: int, kind: int, *, timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """For a while at most: a stopped process must not stop all others."""
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
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def io_failure(error: OSError) -> AuditFailed:
    """What may be told of an error of the system; the path stays out (ERR-1)."""
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
    """Somebody else wrote into the log; nothing is built upon it and nothing of it is removed."""
    return AuditFailed(
        message,
        hint="Check the log with `cellwall audit verify`, keep it, and move it away to begin anew.",
        code="CW-AUDIT-ALTERED",
    )


def to_audit_failure(error: OSError | BadSegment) -> AuditFailed:
    """Either of the two, as whoever uses the log is told of it."""
    if isinstance(error, OSError):
        return io_failure(error)
    return log_altered(f"the audit log was altered: {error}")


@contextmanager
def map_errors() -> Iterator[None]:
    """No other error than our own comes out of this."""
    try:
        yield
    except (OSError, BadSegment) as error:
        raise to_audit_failure(error) from None
