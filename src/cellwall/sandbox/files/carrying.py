"""Moves of trees between a workspace and the quarantine (FS-4)."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from cellwall.sandbox.files.descriptors import (
    MAX_WALK_ENTRIES,
    OPEN_NODE,
    closing_fd,
    copy_data,
    open_regular,
    proc_path,
    remove_tree,
    replace_atomically,
    temporary_name,
    unlock,
)
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.walking import WalkStep, lstat
from cellwall.sandbox.linux._syscalls import rename_new

_PLAIN_DIR = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def carry(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Move a file or a tree to a free name in another directory, on any file system.

    Mode, times and, as root, the owner are kept: the file may be the user's own.
    """
    try:
        rename_new(dir_fd, name, target_fd, target_name)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOSYS}:  # no RENAME_NOREPLACE on this file system
            if lstat(target_fd, target_name) is not None:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            os.rename(name, target_name, src_dir_fd=dir_fd, dst_dir_fd=target_fd)
        elif error.errno == errno.EXDEV:
            _copy_over(dir_fd, name, target_fd, target_name)
        else:
            raise


def _copy_over(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Copy to another file system, then remove; a partial copy never has the new name."""
    aside = temporary_name()
    is_dir = stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    try:
        if is_dir:
            _copy_tree(dir_fd, name, target_fd, aside)
        else:
            _copy_node(dir_fd, name, target_fd, aside)
        if lstat(target_fd, aside) is not None:  # None: a special file without content
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
        Root(os.open(name, _PLAIN_DIR, dir_fd=dir_fd)) as source,
        Root(os.open(target_name, _PLAIN_DIR, dir_fd=target_fd)) as target,
    ):
        folders = [("", os.fstat(source.fd))]
        for step in source.walk(max_entries=MAX_WALK_ENTRIES, descend=_unlock_step):
            with target.parent(step.path) as (parent, last):
                if stat.S_ISDIR(step.status.st_mode):
                    os.mkdir(last, 0o700, dir_fd=parent)
                    folders.append((step.path, step.status))
                else:
                    _copy_node(step.dir_fd, step.name, parent, last)
        # Last, and the deepest first: a directory without permissions cannot be filled.
        for path, status in reversed(folders):
            with target.node(path) as folder:
                if os.geteuid() == 0:
                    os.chown(proc_path(folder), status.st_uid, status.st_gid)
                os.chmod(proc_path(folder), stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(proc_path(folder), ns=(status.st_atime_ns, status.st_mtime_ns))


def _unlock_step(step: WalkStep) -> bool:
    # Code can remove the permissions of a directory to prevent the copy of a planted file.
    unlock(step.dir_fd, step.name)
    return True


def _open_unlocked(node: int, mode: int) -> int:
    try:
        return open_regular(node)
    except PermissionError:  # removed by code to prevent the copy of a planted file
        os.chmod(proc_path(node), stat.S_IMODE(mode) & 0o777 | stat.S_IRUSR)
        return open_regular(node)


def _copy_node(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Copy a regular file, or a symlink itself."""
    with closing_fd(os.open(name, OPEN_NODE, dir_fd=dir_fd)) as node:
        status = os.fstat(node)
        owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 else None
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink("", dir_fd=node), target_name, dir_fd=target_fd)
            if owner is not None:
                os.chown(target_name, *owner, dir_fd=target_fd, follow_symlinks=False)
        elif stat.S_ISREG(status.st_mode):
            with (
                closing_fd(_open_unlocked(node, status.st_mode)) as data,
                replace_atomically(target_fd, target_name, mode=status.st_mode, owner=owner) as fd,
            ):
                copy_data(data, fd)
                os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
