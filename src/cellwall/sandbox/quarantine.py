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
from cellwall.sandbox.beneath import Beneath, Visit
from cellwall.sandbox.descriptors import (
    ENTRIES_MAX,
    copy_data,
    held,
    open_regular,
    remove_tree,
    replacing,
    unlock,
    write_all,
)

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
            mend="Check the state directory and its owner.",
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
        write_all(fd, json.dumps(told).encode() + b"\n")  # surrogates are escaped


def carry(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Give a thing another directory and name, on whatever file system that is."""
    try:
        os.rename(name, target_name, src_dir_fd=dir_fd, dst_dir_fd=target_fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_over(dir_fd, name, target_fd, target_name)


def _copy_over(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Copy to another file system, then remove; links are copied as links."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        _copy_node(dir_fd, name, target_fd, target_name)
        os.unlink(name, dir_fd=dir_fd)
        return
    os.mkdir(target_name, 0o700, dir_fd=target_fd)
    with (
        Beneath(os.open(name, _PLAIN_DIR, dir_fd=dir_fd)) as source,
        Beneath(os.open(target_name, _PLAIN_DIR, dir_fd=target_fd)) as target,
    ):
        for step in source.visit(max_entries=ENTRIES_MAX):
            with target.parent(step.path) as (parent, last):
                if stat.S_ISDIR(step.status.st_mode):
                    os.mkdir(last, 0o700, dir_fd=parent)
                else:
                    _copy_node(step.dir_fd, step.name, parent, last)
    remove_tree(dir_fd, name)


def _copy_node(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with held(os.open(name, flags, dir_fd=dir_fd)) as node:
        mode = os.fstat(node).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink("", dir_fd=node), target_name, dir_fd=target_fd)
        elif stat.S_ISREG(mode):
            with (
                held(open_regular(node)) as data,
                replacing(target_fd, target_name, mode=0o600, owner=None) as fd,
            ):
                copy_data(data, fd)
        # A FIFO, a socket or a device holds nothing to keep.
