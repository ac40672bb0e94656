"""The vault's directory: private files, replaced atomically, under a lock between processes.

store    the vault            seen    the generation that was last seen
lock     held exclusively to write, shared to read
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from cellwall.secrets import failures

STORE = "store"
SEEN = "seen"
_LOCK = "lock"
_LOCK_TIMEOUT_S = 10.0
_PAUSE_S = 0.002
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
_DRAFT = ".draft."

FileIdentity = tuple[int, int, int, int]
"""Identifies a file's content: every write of ours changes it."""


@dataclass(frozen=True, slots=True)
class VaultFileContent:
    """A file that was read, and its identity at that time."""

    data: bytes
    identity: FileIdentity


def identity_at(path: str) -> FileIdentity | None:
    """Cheap: called before each use of a secret."""
    try:
        return _identity(os.stat(path, follow_symlinks=False))
    except OSError:
        return None


def _identity(info: os.stat_result) -> FileIdentity:
    # ctime cannot be set by a user.
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


@contextmanager
def closing_fd(descriptor: int) -> Iterator[int]:
    """Closes the descriptor at the end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_directory(path: str) -> AbstractContextManager[int]:
    """A directory, opened for operations on its entries."""
    return closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


class VaultFolder:
    """The open directory, for one operation."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, name: str, *, max_bytes: int) -> VaultFileContent | None:
        """The whole file; None if it does not exist."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise failures.unsafe("the vault's file") from None
            raise
        with closing_fd(descriptor):
            info = os.fstat(descriptor)
            _check_private(info)
            if info.st_size > max_bytes:
                raise failures.tampered("a file is too large")
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return VaultFileContent(file.read(max_bytes + 1), _identity(info))

    def replace(self, name: str, data: bytes) -> FileIdentity:
        """Replace a file atomically, also across a power cut; durable when this returns."""
        replace_file(self._descriptor, name, data)
        return _identity(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False))

    def shred(self, name: str) -> None:
        """Overwrite a file and unlink it, durably; nothing happens if it does not exist."""
        left = _open_existing(self._descriptor, name)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)
            os.fsync(self._descriptor)
        if left is not None:
            _overwrite(left)

    def sweep(self) -> None:
        """Remove drafts of killed processes; the caller holds the lock."""
        for name in os.listdir(self._descriptor):
            if name.startswith(_DRAFT):
                sweep_draft(self._descriptor, name.removeprefix(_DRAFT))


def replace_file(folder: int, name: str, data: bytes) -> None:
    """Durable before the rename; the previous file's content is overwritten.

    The caller holds a lock: the draft has a fixed name, so that the next process finds a draft left
    by a kill.
    """
    draft = draft_of(name)
    sweep_draft(folder, name)
    try:
        _write_draft(folder, draft, data)
        before = _open_existing(folder, name)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            sweep_draft(folder, name)
        raise
    os.fsync(folder)
    if before is not None:
        _overwrite(before)


def draft_of(name: str) -> str:
    """The file's temporary name before the rename."""
    return f"{_DRAFT}{name}"


def sweep_draft(folder: int, name: str) -> None:
    """A killed writer's draft may hold a key in clear: overwrite it, then unlink."""
    left = _open_existing(folder, draft_of(name))
    with suppress(FileNotFoundError):
        os.unlink(draft_of(name), dir_fd=folder)
    if left is not None:
        _overwrite(left)


def _write_draft(folder: int, draft: str, data: bytes) -> None:
    """Unnamed (O_TMPFILE) until it is complete, where the file system supports that: a kill then
    leaves nothing, except between link and rename."""
    is_unnamed = True
    try:
        descriptor = os.open(".", _UNNAMED, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
        is_unnamed = False
        descriptor = os.open(draft, _NEW, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
        if is_unnamed:
            os.link(f"/proc/self/fd/{descriptor}", draft, dst_dir_fd=folder)


def _open_existing(folder: int, name: str) -> int | None:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError:
        return None


def _overwrite(descriptor: int) -> None:
    """Write zeros over an unlinked file: its old content is then recoverable only from the medium.

    Best effort: some file systems, and every flash drive, write elsewhere (docs/limitations.md).
    """
    try:
        info = os.fstat(descriptor)
        if info.st_nlink == 0:  # otherwise it has another hard link, such as a backup
            os.pwrite(descriptor, bytes(info.st_size), 0)
            os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(directory: str, *, alone: bool, make: bool = False) -> Iterator[VaultFolder]:
    """The directory, locked: exclusively to write, shared to read."""
    with _map_os_errors():
        if make:
            _make_folder(directory)
        with _open_private(directory) as descriptor, hold_lock(descriptor, _LOCK, alone=alone):
            yield VaultFolder(descriptor)


@contextmanager
def peek_folder(directory: str) -> Iterator[VaultFolder]:
    """The directory without its lock, to read one file: each file is replaced atomically."""
    with _map_os_errors(), _open_private(directory) as descriptor:
        yield VaultFolder(descriptor)


@contextmanager
def _map_os_errors() -> Iterator[None]:
    """Operating system errors become `VaultError`."""
    try:
        yield
    except FileNotFoundError:
        raise failures.missing() from None
    except OSError as error:
        raise failures.unusable(error) from None


def _make_folder(directory: str) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    with open_directory(os.path.dirname(directory)) as parent:
        os.fsync(parent)


@contextmanager
def _open_private(directory: str) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        opened = os.open(directory, flags)
    except NotADirectoryError:
        raise failures.unsafe("the vault's folder") from None
    with closing_fd(opened) as descriptor:
        info = os.fstat(descriptor)
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise failures.unsafe("the vault's folder")
        yield descriptor


@contextmanager
def hold_lock(folder: int, name: str, *, alone: bool) -> Iterator[None]:
    """A lock between processes, on a file of this name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing_fd(os.open(name, flags, 0o600, dir_fd=folder)) as descriptor:
        _check_private(os.fstat(descriptor))
        _wait_for_lock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield  # closing the descriptor releases the lock


def _wait_for_lock(descriptor: int, kind: int) -> None:
    """Wait a limited time: a stopped process must not block all others."""
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise failures.busy() from None
        else:
            return
        time.sleep(_PAUSE_S)


def _check_private(info: os.stat_result) -> None:
    """A file reachable by another user or through a hard link could be changed behind our back."""
    if (
        not stat.S_ISREG(info.st_mode)
        or info.st_uid != os.geteuid()
        or info.st_mode & 0o077
        or info.st_nlink != 1
    ):
        raise failures.unsafe("the vault's file")
