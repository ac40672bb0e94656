"""Private files that are gone at the end, also those of a process that was killed.

A draft is locked (flock(2)) for as long as its process lives, so the next one can tell a draft
under way from a leftover. It gets its name after the lock: there is no moment in which it has the
name and no lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cellwall.storage.engine import make_private_file

_DRAFT = ".cellwall-backup."
_NEW = ".cellwall-backup-new."
_SIDES = ("", "-wal", "-shm", "-journal")
"""Endings of the files that SQLite puts beside a database."""
_NAME = re.compile(r"(\.cellwall-backup(-new)?\.[0-9a-f]{16})(-wal|-shm|-journal)?")
_UNLOCKED_FOR_S = 60.0
"""A draft without its final name is locked within this time, or left over."""


@contextmanager
def private_draft(folder: str) -> Iterator[str]:
    """The path of a private file in this folder, which is removed at the end."""
    remove_leftovers(folder)
    number = secrets.token_hex(8)
    path, new = (os.path.join(folder, f"{begin}{number}") for begin in (_DRAFT, _NEW))
    make_private_file(new)
    lock = os.open(new, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(new, path)
        yield path
    finally:
        for each in (new, *(path + side for side in _SIDES)):
            with suppress(FileNotFoundError):
                os.unlink(each)
        os.close(lock)  # behind SQLite, whose locks end with any descriptor of the file


def remove_leftovers(folder: str) -> int:
    """Remove the drafts of killed processes; returns how many files."""
    count = 0
    names = [name for name in _listed(folder) if _NAME.fullmatch(name)]
    for name in names:
        found = _NAME.fullmatch(name)
        assert found is not None  # noqa: S101  # as above
        draft = os.path.join(folder, found[1])
        if _is_left_over(draft, is_new=found[2] is not None):
            for side in _SIDES:
                with suppress(OSError):
                    os.unlink(draft + side)
                    count += 1
    return count


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the backup itself says what is wrong with the folder
        return []


def _is_left_over(path: str, *, is_new: bool) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # its side files alone are left
    except OSError:
        return False
    try:
        info = os.fstat(descriptor)
        # Others can put files of this name into a folder like /tmp.
        if info.st_uid != os.geteuid() or not stat.S_ISREG(info.st_mode):
            return False
        if is_new and time.time() - info.st_mtime < _UNLOCKED_FOR_S:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked: another backup is under way
        return False
    else:
        return True
    finally:
        os.close(descriptor)
