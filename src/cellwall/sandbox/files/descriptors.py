"""Work on files by descriptor: what was opened is what is read, replaced or removed (FS-1)."""

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
"""Bound of a walk that was given none: more is a workspace made to wear us out."""


TEMPORARY_NAME = re.compile(r"\.cellwall-[0-9a-f]{16}")


def temporary_name() -> str:
    """A name for what is not in its place yet; nobody can guess it and put something there."""
    return f".cellwall-{secrets.token_hex(8)}"


FileKind = Literal["file", "dir", "symlink", "other"]


def kind_of(mode: int) -> FileKind:
    """The word for a file type."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """A descriptor that is closed at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


def proc_path(fd: int) -> str:
    """A path that means exactly what an O_PATH descriptor holds, whatever happens to its name."""
    return f"/proc/self/fd/{fd}"


def open_regular(node: int) -> int:
    """A readable descriptor of an O_PATH one; anything but a regular file is EINVAL.

    The type is known before the open, so no FIFO hangs it and no device notices it.
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
    """Copy a file's bytes and leave its holes holes: a sparse terabyte must not fill the disk."""
    size, at = os.fstat(source).st_size, 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
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
    """Root's new files belong to whom the directory belongs to; others can give nothing away."""
    if os.geteuid() != 0:
        return None
    status = os.fstat(dir_fd)
    return status.st_uid, status.st_gid


@contextmanager
def replace_atomically(
    dir_fd: int, name: str, *, mode: int, owner: tuple[int, int] | None, durable: bool = False
) -> Iterator[int]:
    """A descriptor to write to; `name` becomes that file at the end, in one step or not at all.

    The rename replaces a link or a hard link and never writes through it. Set-id bits are dropped.
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
    """One new directory that belongs to whom its parent belongs to."""
    os.mkdir(name, mode & 0o777, dir_fd=dir_fd)
    owner = new_owner(dir_fd)
    if owner is not None:
        os.chown(name, *owner, dir_fd=dir_fd, follow_symlinks=False)


def unlock(dir_fd: int, name: str) -> bool:
    """Give a directory's owner back the rights to it; True if they were missing.

    Code can `chmod 0` a directory to hide what is in it from whoever cleans up.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_fd(os.open(name, flags, dir_fd=dir_fd)) as node:
        mode = stat.S_IMODE(os.fstat(node).st_mode)
        if mode & 0o700 == 0o700:
            return False
        os.chmod(proc_path(node), mode | 0o700)
        return True


def is_empty_dir(dir_fd: int, name: str) -> bool:
    """Whether a name is a directory, not a link to one, with nothing in it."""
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(name, flags, dir_fd=dir_fd)) as fd, os.scandir(fd) as found:
            return next(found, None) is None
    except OSError:
        return False


def unlock_root(fd: int) -> None:
    """The same for the directory itself: `chmod 0 .` must not keep anybody from looking."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        os.chmod(proc_path(fd), mode | 0o700)


def remove_tree(dir_fd: int, name: str, *, max_entries: int = MAX_WALK_ENTRIES) -> None:
    """Remove a directory with all in it; links are removed, never followed.

    Deeper directories are first moved up into the one that goes, so that two descriptors are
    enough for any depth: a tree of ten thousand levels must not be a way to stay.
    """
    unlock(dir_fd, name)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing_fd(os.open(name, flags, dir_fd=dir_fd)) as top:
        left = max_entries
        while names := _list_batch(top):
            for child in names:
                left -= 1
                if left < 0:  # somebody adds as fast as we remove
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
        if error.errno != errno.ENOTEMPTY:  # more than one batch: the next round takes the rest
            raise
