"""The vault's folder: private files, replaced whole or not at all, under a lock among processes.

store    the vault            seen    the generation that was last seen
lock     held by whoever writes (alone) or reads (together)
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
"""Of a file's content: nothing of ours changes a file without changing this."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file that was read, and how to tell whether it is another one by now."""

    data: bytes
    identity: FileIdentity


def identity_at(path: str) -> FileIdentity | None:
    """As cheap as can be: it is asked before each use of a secret."""
    try:
        return _identity(os.stat(path, follow_symlinks=False))
    except OSError:
        return None


def _identity(info: os.stat_result) -> FileIdentity:
    # The change time is the kernel's own: nobody can set it.
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


class VaultFolder:
    """Opened, for one step of work on it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, name: str, *, max_bytes: int) -> FileContent | None:
        """All of a file; None if it is not there."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise failures.unsafe("the vault's file") from None
            raise
        try:
            info = os.fstat(descriptor)
            _check_private(info)
            if info.st_size > max_bytes:
                raise failures.tampered("a file is too large")
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return FileContent(file.read(max_bytes + 1), _identity(info))
        finally:
            os.close(descriptor)

    def replace(self, name: str, data: bytes) -> FileIdentity:
        """All of it or nothing, also when the power fails; durable when this returns."""
        replace_file(self._descriptor, name, data)
        return _identity(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False))

    def sweep(self) -> None:
        """Drafts of whoever was killed; only for a holder of the lock."""
        for name in os.listdir(self._descriptor):
            if name.startswith(_DRAFT):
                sweep_draft(self._descriptor, name.removeprefix(_DRAFT))


def replace_file(folder: int, name: str, data: bytes) -> None:
    """Durable before it has its name; what had that name before is overwritten.

    Only for a holder of a lock: the draft has a fixed name, so that it is found by whoever comes
    after somebody who was killed.
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
    """What a file is called for the moment before it takes the place of the one before."""
    return f"{_DRAFT}{name}"


def sweep_draft(folder: int, name: str) -> None:
    """What a killed writer left may hold a key in clear: overwritten, not only unlinked."""
    left = _open_existing(folder, draft_of(name))
    with suppress(FileNotFoundError):
        os.unlink(draft_of(name), dir_fd=folder)
    if left is not None:
        _overwrite(left)


def _write_draft(folder: int, draft: str, data: bytes) -> None:
    """Without a name until it is whole, where the file system can do that: a kill leaves nothing
    then, but in the moment between the name and the rename."""
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
    """Zeros over a file that has no name any more: what it held can only be had from the medium.

    Best effort: some file systems, and every flash drive, write elsewhere (docs/limitations.md).
    """
    try:
        info = os.fstat(descriptor)
        if info.st_nlink == 0:  # else it is somebody's backup
            os.pwrite(descriptor, bytes(info.st_size), 0)
            os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)


@contextmanager
def open_folder(directory: str, *, alone: bool, make: bool = False) -> Iterator[VaultFolder]:
    """The folder, locked: alone to write, together with others to read."""
    with _map_os_errors():
        if make:
            _make_folder(directory)
        with _open_private(directory) as descriptor, hold_lock(descriptor, _LOCK, alone=alone):
            yield VaultFolder(descriptor)


@contextmanager
def peek_folder(directory: str) -> Iterator[VaultFolder]:
    """The folder without its lock, for one file of it: each is replaced whole."""
    with _map_os_errors(), _open_private(directory) as descriptor:
        yield VaultFolder(descriptor)


@contextmanager
def _map_os_errors() -> Iterator[None]:
    """What the system refuses comes out as a `VaultError`, so third-party names never do."""
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
    parent = os.open(os.path.dirname(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


@contextmanager
def _open_private(directory: str) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(directory, flags)
    except NotADirectoryError:
        raise failures.unsafe("the vault's folder") from None
    try:
        info = os.fstat(descriptor)
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            raise failures.unsafe("the vault's folder")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def hold_lock(folder: int, name: str, *, alone: bool) -> Iterator[None]:
    """A lock among processes, by a file of this name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        _check_private(os.fstat(descriptor))
        _wait_for_lock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)  # which lets go of it


def _wait_for_lock(descriptor: int, kind: int) -> None:
    """For a while at most: a stopped process must not stop all others."""
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
    """Through another user or another name it could be changed behind our back."""
    if (
        not stat.S_ISREG(info.st_mode)
        or info.st_uid != os.geteuid()
        or info.st_mode & 0o077
        or info.st_nlink != 1
    ):
        raise failures.unsafe("the vault's file")
