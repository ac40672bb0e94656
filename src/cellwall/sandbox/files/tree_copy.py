"""Moves what may not stay in a workspace to the quarantine, by descriptor (FS-4).

A quarantine is a folder of one run. In it lies each thing under a name of ours, and `RECORDS` tells
of each, one JSON object a line, where the thing was and why it was moved.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cellwall.core.errors import WorkspaceError
from cellwall.sandbox.files.descriptors import (
    ENTRIES_MAX,
    copy_data,
    held,
    open_regular,
    pinned,
    remove_tree,
    replacing,
    temporary_name,
    unlock,
    write_all,
)
from cellwall.sandbox.files.file_tree import Beneath, Visit
from cellwall.sandbox.files.root import lstat
from cellwall.sandbox.linux._syscalls import rename_new

RECORDS = ".records"
_PLAIN_DIR = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Origin:
    """The user's directory that things are moved out of."""

    directory: str
    identity: tuple[int, int]

    @classmethod
    def of(cls, fd: int) -> Origin:
        info = os.fstat(fd)
        return cls(os.readlink(f"/proc/self/fd/{fd}"), (info.st_dev, info.st_ino))


@contextmanager
def open_quarantine(path: str | os.PathLike[str]) -> Iterator[int]:
    """The directory, made if need be, open to its owner alone."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise WorkspaceError(
            "the quarantine directory cannot be used",
            hint="Check the state directory and its owner.",
            code="CW-QUARANTINE",
            detail=errno.errorcode.get(error.errno or 0, ""),
        ) from error
    with held(fd):
        os.fchmod(fd, 0o700)
        yield fd


def move_out(step: Visit, quarantine: int, *, origin: Origin, why: str) -> str:
    """Returns the name that it has in the quarantine."""
    short = "".join(c if c.isascii() and c.isprintable() else "_" for c in step.name)[:100]
    kept_as = f"{secrets.token_hex(6)}-{short}"
    _record(quarantine, kept_as, step.path, origin, why)  # first: a crash leaves nothing untold
    try:
        carry(step.dir_fd, step.name, quarantine, kept_as)
    except PermissionError:
        # Code can take its own directory's rights away to keep a plant in place.
        os.fchmod(step.dir_fd, stat.S_IMODE(os.fstat(step.dir_fd).st_mode) | 0o700)
        if stat.S_ISDIR(step.status.st_mode):
            unlock(step.dir_fd, step.name)
        carry(step.dir_fd, step.name, quarantine, kept_as)
    return kept_as


def _record(quarantine: int, kept_as: str, path: str, origin: Origin, why: str) -> None:
    told = {
        "kept_as": kept_as,
        "path": path,
        "directory": origin.directory,
        "identity": origin.identity,
        "reason": why,
        "moved_s": time.time(),
    }
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    # Code that has filled the disk must not keep its plant in place by that.
    with suppress(OSError), held(os.open(RECORDS, flags, 0o600, dir_fd=quarantine)) as fd:
        # A line of its own, though the one before was cut by a full disk. Surrogates are escaped.
        write_all(fd, b"\n" + json.dumps(told).encode() + b"\n")


def carry(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Give a thing another directory and a name that is free, on whatever file system that is.

    It keeps mode, times and, where root carries it, its owner: it may be the user's own.
    """
    try:
        rename_new(dir_fd, name, target_fd, target_name)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOSYS}:  # no RENAME_NOREPLACE here
            _rename_checked(dir_fd, name, target_fd, target_name)
        elif error.errno == errno.EXDEV:
            _copy_over(dir_fd, name, target_fd, target_name)
        else:
            raise


def _rename_checked(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    if lstat(target_fd, target_name) is not None:
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(name, target_name, src_dir_fd=dir_fd, dst_dir_fd=target_fd)


def _copy_over(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Copy to another file system, then remove; half a copy is never seen under the new name."""
    aside = temporary_name()
    is_dir = stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    try:
        if is_dir:
            _copy_tree(dir_fd, name, target_fd, aside)
        else:
            _copy_node(dir_fd, name, target_fd, aside)
        if lstat(target_fd, aside) is not None:  # None: it held nothing to keep
            carry(target_fd, aside, target_fd, target_name)
    except BaseException:
        with suppress(OSError):
            if is_dir:
                remove_tree(target_fd, aside)
            else:
                os.unlink(aside, dir_fd=target_fd)
        raise
    if is_dir:
        remove_tree(dir_fd, name)
    else:
        os.unlink(name, dir_fd=dir_fd)


def _copy_tree(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    os.mkdir(target_name, 0o700, dir_fd=target_fd)
    with (
        Beneath(os.open(name, _PLAIN_DIR, dir_fd=dir_fd)) as source,
        Beneath(os.open(target_name, _PLAIN_DIR, dir_fd=target_fd)) as target,
    ):
        folders = [("", os.fstat(source.fd))]
        for step in source.visit(max_entries=ENTRIES_MAX, descend=_unlocked):
            with target.parent(step.path) as (parent, last):
                if stat.S_ISDIR(step.status.st_mode):
                    os.mkdir(last, 0o700, dir_fd=parent)
                    folders.append((step.path, step.status))
                else:
                    _copy_node(step.dir_fd, step.name, parent, last)
        # Last and the deepest first: a directory without rights can be filled no more.
        for path, status in reversed(folders):
            with target.node(path) as folder:
                if os.geteuid() == 0:
                    os.chown(pinned(folder), status.st_uid, status.st_gid)
                os.chmod(pinned(folder), stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(pinned(folder), ns=(status.st_atime_ns, status.st_mtime_ns))


def _unlocked(step: Visit) -> bool:
    # Code can take the rights of a directory away to keep its plant from being copied.
    unlock(step.dir_fd, step.name)
    return True


def _open_unlocked(node: int, mode: int) -> int:
    try:
        return open_regular(node)
    except PermissionError:  # as above
        os.chmod(pinned(node), stat.S_IMODE(mode) & 0o777 | stat.S_IRUSR)
        return open_regular(node)


def _copy_node(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """A file, or a link as a link."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with held(os.open(name, flags, dir_fd=dir_fd)) as node:
        status = os.fstat(node)
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink("", dir_fd=node), target_name, dir_fd=target_fd)
            if owner is not None:
                os.chown(target_name, *owner, dir_fd=target_fd, follow_symlinks=False)
        elif stat.S_ISREG(status.st_mode):
            with (
                held(_open_unlocked(node, status.st_mode)) as data,
                replacing(target_fd, target_name, mode=status.st_mode, owner=owner) as fd,
            ):
                copy_data(data, fd)
                os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
        # A FIFO, a socket or a device holds nothing to keep.
