"""File operations by descriptor: the file that was opened is the one that is changed (FS-1).

Their errors name the path as the user typed it, a code and a hint (ERR-1).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from cellwall.core.errors import WorkspaceError

_BATCH = 4096
_READ_BYTES = 1 << 16  # malloc serves larger buffers by mmap, which is slow for small files

MAX_WALK_ENTRIES = 1_000_000
"""Default limit of a walk: a workspace with more entries was made to exhaust the host."""


OPEN_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
"""A descriptor of a name itself, not of a symlink's target; no driver or FIFO is opened."""
OPEN_DIRECTORY = OPEN_NODE | os.O_DIRECTORY
OPEN_TO_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

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


class closing_fd:  # noqa: N801  # reads as a function, as `contextlib.closing` does
    """Close a descriptor at the end of the block.

    No generator, which takes three times as long: a run closes 20 of them.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def proc_path(fd: int) -> str:
    """A path to the file of an O_PATH descriptor, independent of renames."""
    return f"/proc/self/fd/{fd}"


def identity_of(fd: int) -> tuple[int, int]:
    """Device and inode, which identify a file or directory under any name."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


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


def read_at_most(fd: int, max_bytes: int) -> bytes:
    """The next bytes, until the end of the file or `max_bytes`; the file may grow meanwhile."""
    parts: list[bytes] = []
    while max_bytes > 0 and (part := os.read(fd, min(max_bytes, _READ_BYTES))):
        parts.append(part)
        max_bytes -= len(part)
    return b"".join(parts)


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


class _Acting(threading.local):
    is_owner = False


_acting = _Acting()


@contextmanager
def acting_as_owner() -> Iterator[None]:
    """In the block this thread has the file system ids of a user of a cell: a new file is that
    user's already, and no file can be given away."""
    _acting.is_owner = True
    try:
        yield
    finally:
        _acting.is_owner = False


def new_owner(dir_fd: int) -> tuple[int, int] | None:
    """The owner for a new file: as root, the directory's owner; others cannot chown."""
    if os.geteuid() != 0 or _acting.is_owner:
        return None
    status = os.fstat(dir_fd)
    return status.st_uid, status.st_gid


KEPT_MODE = 0o1777
"""The bits that a copy keeps: no set-id bits, but the sticky bit, which forbids each user of a
directory to replace the files of the others."""


@contextmanager
def replace_atomically(
    dir_fd: int, name: str, *, mode: int, owner: tuple[int, int] | None, durable: bool = False
) -> Iterator[int]:
    """A descriptor to write to; at the end the new file replaces `name` atomically, or not at all.

    The rename replaces a symlink or a hard link and never writes through it. Set-id bits are
    dropped.
    """
    temporary = temporary_name()
    fd = os.open(temporary, OPEN_NEW, 0o600, dir_fd=dir_fd)
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


def make_one_dir(
    dir_fd: int, name: str, *, mode: int | None = None, owner: tuple[int, int] | None = None
) -> None:
    """Create one directory; without an `owner`, for the owner of its parent. Without a mode, as
    root: 0755, whatever the umask of the service. A second user of a sandbox is let in by modes
    alone."""
    os.mkdir(name, 0o755 if mode is None else mode & 0o777, dir_fd=dir_fd)
    _give_owner(dir_fd, name, owner, mode=0o755 if mode is None else None)


def make_symlink(
    target: str, dir_fd: int, name: str, *, owner: tuple[int, int] | None = None
) -> None:
    """Create a symlink; without an `owner`, for the owner of its directory."""
    os.symlink(target, name, dir_fd=dir_fd)
    _give_owner(dir_fd, name, owner)


def _give_owner(
    dir_fd: int, name: str, owner: tuple[int, int] | None, mode: int | None = None
) -> None:
    """Code can rename within its directory, and put a file of another user of the sandbox in the
    place of the new one. That file has another owner than this process."""
    owner = owner or new_owner(dir_fd)
    if owner is None:
        return
    with closing_fd(os.open(name, OPEN_NODE, dir_fd=dir_fd)) as node:
        if os.fstat(node).st_uid != os.geteuid():
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.chown(proc_path(node), *owner)
        if mode is not None:
            os.chmod(proc_path(node), mode)


def make_open_dir(path: str) -> None:
    """A directory that every user of a sandbox may enter, whatever the umask of the service."""
    os.mkdir(path, 0o755)
    os.chmod(path, 0o755)  # noqa: S103  # in a directory of this process alone


def unlock(dir_fd: int, name: str) -> bool:
    """Restore the owner's permissions on a directory; True if they were missing.

    Code can `chmod 0` a directory to hide its content from the check after the run.
    """
    with closing_fd(os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)) as node:
        mode = stat.S_IMODE(os.fstat(node).st_mode)
        if mode & 0o700 == 0o700:
            return False
        os.chmod(proc_path(node), mode | 0o700)
        return True


def is_empty_dir(dir_fd: int, name: str) -> bool:
    """Whether a name is an empty directory; a symlink to one is not."""
    try:
        with (
            closing_fd(os.open(name, OPEN_TO_LIST, dir_fd=dir_fd)) as fd,
            os.scandir(fd) as listing,
        ):
            return next(listing, None) is None
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
    with closing_fd(os.open(name, OPEN_TO_LIST, dir_fd=dir_fd)) as top:
        entries_left = max_entries
        while names := _list_batch(top):
            for child in names:
                entries_left -= 1
                if entries_left < 0:  # another process adds names as fast as they are removed
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
                if not _unlink(top, child):
                    _flatten(top, child)
    os.rmdir(name, dir_fd=dir_fd)


def _list_batch(fd: int) -> list[str]:
    with os.scandir(fd) as listing:
        return [entry.name for entry, _ in zip(listing, range(_BATCH), strict=False)]


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
    with closing_fd(os.open(name, OPEN_TO_LIST, dir_fd=top)) as fd:
        for child in _list_batch(fd):
            if not _unlink(fd, child):
                unlock(fd, child)  # moving a directory changes its `..`
                os.rename(child, f".{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=top)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:  # more than one batch: the next round removes the rest
            raise


_BY_ERRNO = {
    errno.EXDEV: ("CW-PATH-OUTSIDE", "leads out of its directory"),
    errno.ELOOP: ("CW-PATH-OUTSIDE", "goes through a link that is not followed"),
    errno.EINVAL: ("CW-PATH-INVALID", "does not end in a usable name"),
    errno.ENAMETOOLONG: ("CW-PATH-INVALID", "is too long"),
    errno.ENOENT: ("CW-NOT-FOUND", "does not exist"),
    errno.ENOTDIR: ("CW-NOT-A-DIRECTORY", "is not a directory, or a part of the path is not"),
    errno.EISDIR: ("CW-NOT-A-FILE", "is a directory"),
    errno.EEXIST: ("CW-ALREADY-EXISTS", "exists already"),
    errno.ENOTEMPTY: ("CW-NOT-EMPTY", "is a directory that is not empty"),
    errno.ENOSPC: ("CW-DISK-FULL", "does not fit: the disk is full"),
    errno.EDQUOT: ("CW-DISK-FULL", "does not fit: the quota is used up"),
    errno.EFBIG: ("CW-FILE-TOO-LARGE", "is larger than a file may be here"),
    errno.EROFS: ("CW-READ-ONLY", "lies on a read-only file system"),
    errno.EACCES: ("CW-NO-PERMISSION", "cannot be accessed by this user"),
    errno.EPERM: ("CW-NO-PERMISSION", "cannot be accessed by this user"),
    errno.EBUSY: ("CW-IN-USE", "is in use"),
    errno.EAGAIN: ("CW-IN-USE", "is moved too often to be opened"),
}


_HINTS = {
    "CW-PATH-OUTSIDE": "Use a path below /workspace or /tmp, without links that lead out.",
    "CW-PATH-INVALID": "Use a path relative to the workspace, such as src/main.py.",
    "CW-NOT-FOUND": "List its directory; a relative path is below /workspace, such as src/main.py.",
    "CW-NOT-A-FILE": "Name a regular file.",
    "CW-NOT-A-DIRECTORY": "Name a directory, or remove the file in its place.",
    "CW-ALREADY-EXISTS": "Use another name, or remove what has this name.",
    "CW-READ-ONLY": "Write to a directory that is given as :rw or :cow, or to /tmp.",
    "CW-NO-PERMISSION": "Change its mode with chmod, as the user who owns it, or use another path.",
    "CW-IN-USE": "Try again when no other program changes it.",
    "CW-CONTENT-CHANGED": "Write the file again; its source must not change meanwhile.",
    "CW-WORKSPACE": "Use another path; `cellwall doctor` checks the disk of the workspaces.",
    "CW-PATH-PROTECTED": "Leave the path out; the configuration lists the protected names.",
    "CW-NOT-EMPTY": "Remove it recursively.",
    "CW-DISK-FULL": "Remove files, or raise the disk limit.",
    "CW-FILE-TOO-LARGE": "Use a smaller file, or raise the file size limit.",
    "CW-EXTENSION-BLOCKED": "Use another name, or change the blocked extensions.",
    "CW-WORKSPACE-FULL": "Remove files, or raise the limit.",
    "CW-ARCHIVE-INVALID": "Send a tar archive, plain or gzip, as `tar -c` or `tar -cz` writes it.",
    "CW-ARCHIVE-TRUNCATED": "Send the whole archive, with the end that `tar` writes.",
    "CW-ARCHIVE-LINK": "Pack what links point to instead: `tar --dereference --hard-dereference`.",
    "CW-ARCHIVE-SPECIAL": "Pack regular files and directories only.",
    "CW-ARCHIVE-SPARSE": "Pack the file without `--sparse`.",
    "CW-ARCHIVE-CONFLICT": "Pack every name once, as a file or as a directory.",
    "CW-ARCHIVE-TOO-LARGE": "Use a smaller tree, or raise the limit.",
    "CW-LINK-IN-TREE": "Remove it, name a smaller directory, or leave such names out: skip_links.",
    "CW-WATCH-LIMIT": "Close other watches, or raise fs.inotify.max_user_instances.",
    "CW-WATCH-TOO-LARGE": "Watch a smaller directory, or only its own names: recursive=False.",
    "CW-WORKSPACE-TOO-LARGE": "Name a smaller directory, or raise the file count limit.",
}


def path_error(path: str, code: str, why: str, *, detail: str = "") -> WorkspaceError:
    """An error that names the path as the user typed it, and no other path of the host (ERR-1)."""
    shown = repr(path if len(path) <= 200 else path[:200] + "…")
    return WorkspaceError(f"{shown} {why}", hint=_HINTS[code], code=code, detail=detail)


def archive_error(code: str, why: str) -> WorkspaceError:
    """An error about an archive as a whole, not about one member."""
    return WorkspaceError(f"the archive {why}", hint=_HINTS[code], code=code)


def from_os_error(path: str, error: OSError) -> WorkspaceError:
    """The error for an OSError on `path`."""
    code, why = _BY_ERRNO.get(error.errno or 0, ("CW-WORKSPACE", "cannot be used"))
    return path_error(path, code, why, detail=errno.errorcode.get(error.errno or 0, ""))


@contextmanager
def translate_os_errors(path: str) -> Iterator[None]:
    """Turn an OSError in the block into a `WorkspaceError` about `path`."""
    try:
        yield
    except OSError as error:
        raise from_os_error(path, error) from error
