"""File operations by descriptor: the file that was opened is the one that is changed (FS-1)."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

_BATCH = 4096


MAX_WALK_ENTRIES = 1_000_000
"""Default limit of a walk: a workspace with more entries was made to exhaust the host."""


TEMPORARY_NAME = re.compile(r"\.cellwall-[0-9a-f]{16}")


def temporary_name() -> str:
    """A name for an unfinished file; unguessable, so that no other file can take it first."""
    return f".cellwall-{secrets.token_hex(8)}"


FileKind = Literal["file", "dir", "symlink", "other"]


def kind_of(mode: int) -> FileKind:
    """The file type of a mode."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def proc_path(fd: int) -> str:
    """A path to the file of an O_PATH descriptor, independent of renames."""
    return f"/proc/self/fd/{fd}"


def open_regular(node: int) -> int:
    """Reopen an O_PATH descriptor for reading; anything but a regular file is EINVAL.

    The type is known before the open, so a FIFO cannot block it and no device driver is called.
    """
    if not stat.S_ISREG(os.fstat(node).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.open(proc_path(node), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, or raise."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def copy_data(source: int, target: int) -> None:
    """Copy a file's data and keep its holes: a sparse terabyte must not fill the disk."""
    size, at = os.fstat(source).st_size, 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole remains
                break
            raise
        end = os.lseek(source, at, os.SEEK_HOLE)
        os.lseek(target, at, os.SEEK_SET)
        while at < end and (part := os.pread(source, min(1 << 20, end - at), at)):
            write_all(target, part)
            at += len(part)
        size = min(size, os.fstat(source).st_size)
    os.ftruncate(target, size)


def new_owner(dir_fd: int) -> tuple[int, int] | None:
    """The owner for a new file: as root, the directory's owner; others cannot chown."""
    if os.geteuid() != 0:
        return None
    status = os.fstat(dir_fd)
    return status.st_uid, status.st_gid


@contextmanager
def replace_atomically(
    dir_fd: int, name: str, *, mode: int, owner: tuple[int, int] | None, durable: bool = False
) -> Iterator[int]:
    """A descriptor to write to; at the end the new file replaces `name` atomically, or not at all.

    The rename replaces a symlink or a hard link and never writes through it. Set-id bits are
    dropped.
    """
    temporary = temporary_name()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=dir_fd)
    try:
        with closing_fd(fd):
            yield fd
            if owner is not None:
                os.fchown(fd, *owner)
            os.fchmod(fd, mode & 0o777)
            if durable:
                os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        try:
            os.unlink(temporary, dir_fd=dir_fd)
        except FileNotFoundError:
            pass
        raise


def make_one_dir(dir_fd: int, name: str, *, mode: int = 0o755) -> None:
    """Create one directory, owned by the owner of its parent."""
    os.mkdir(name, mode & 0o777, dir_fd=dir_fd)
    owner = new_owner(dir_fd)
    if owner is not None:
        os.chown(name, *owner, dir_fd=dir_fd, follow_symlinks=False)


def unlock(dir_fd: int, name: str) -> bool:
    """Restore the owner's permissions on a directory; True if they were missing.

    Code can `chmod 0` a directory to hide its content from the check after the run.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_fd(os.open(name, flags, dir_fd=dir_fd)) as node:
        mode = stat.S_IMODE(os.fstat(node).st_mode)
        if mode & 0o700 == 0o700:
            return False
        os.chmod(proc_path(node), mode | 0o700)
        return True


def is_empty_dir(dir_fd: int, name: str) -> bool:
    """Whether a name is an empty directory; a symlink to one is not."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(name, flags, dir_fd=dir_fd)) as fd, os.scandir(fd) as found:
            return next(found, None) is None
    except OSError:
        return False


def unlock_root(fd: int) -> None:
    """The same for an open directory: `chmod 0 .` must not prevent the check."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        os.chmod(proc_path(fd), mode | 0o700)


def remove_tree(dir_fd: int, name: str, *, max_entries: int = MAX_WALK_ENTRIES) -> None:
    """Remove a directory with its content; symlinks are removed, never followed.

    Deeper directories are first moved up into the top one, so that two descriptors suffice for
    any depth: a tree of ten thousand levels must not survive.
    """
    unlock(dir_fd, name)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_fd(os.open(name, flags, dir_fd=dir_fd)) as top:
        left = max_entries
        while names := _list_batch(top):
            for child in names:
                left -= 1
                if left < 0:  # another process adds names as fast as they are removed
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
                if not _unlink(top, child):
                    _flatten(top, child)
    os.rmdir(name, dir_fd=dir_fd)


def _list_batch(fd: int) -> list[str]:
    with os.scandir(fd) as found:
        return [entry.name for entry, _ in zip(found, range(_BATCH), strict=False)]


def _unlink(dir_fd: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        return False
    return True


def _flatten(top: int, name: str) -> None:
    unlock(top, name)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_fd(os.open(name, flags, dir_fd=top)) as fd:
        for child in _list_batch(fd):
            if not _unlink(fd, child):
                unlock(fd, child)  # moving a directory changes its `..`
                os.rename(child, f".{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=top)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # more than one batch: the next round removes the rest
            raise
