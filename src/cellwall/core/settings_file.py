"""Reads a text file that configures Cellwall: opens it without blocking, checks the open file, and
reads it within bounds. The caller maps a fault to its own error."""

from __future__ import annotations

import errno
import os
import stat
from enum import Enum

from cellwall.core.limits import MIB

MAX_BYTES = MIB


class Fault(Enum):
    """Why a file is refused; people see the value after the name of the file."""

    ABSENT = "no such file"
    FORBIDDEN = "may not be read"
    LOOP = "its symbolic links form a loop"
    LONG_NAME = "the name is too long"
    UNREADABLE = "cannot be read"
    FOLDER = "is a directory"
    IRREGULAR = "is not a regular file"
    STRANGER = "belongs to another user"
    WRITABLE = "can be written by other users"
    TOO_LARGE = "is larger than 1 MiB"
    NOT_TEXT = "not UTF-8 text"


UNSAFE = frozenset((Fault.STRANGER, Fault.WRITABLE))
"""Faults by which another user could have written the content."""
_BY_NUMBER = {
    errno.ENOENT: Fault.ABSENT,
    errno.ENOTDIR: Fault.ABSENT,
    errno.EACCES: Fault.FORBIDDEN,
    errno.ELOOP: Fault.LOOP,
    errno.ENAMETOOLONG: Fault.LONG_NAME,
}


class FileRefused(Exception):
    """Never leaves the part that reads the file."""

    def __init__(self, fault: Fault, line: int = 0) -> None:
        super().__init__(fault.value)
        self.fault = fault
        self.line = line
        """The position, if the fault concerns one line."""


def read_settings(path: str, *, may_group_write: bool = False) -> str:
    """The text of the file; raises `FileRefused` for one that cannot be read or trusted."""
    try:
        # O_NONBLOCK: opening a FIFO would block until a writer comes.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise FileRefused(_fault(error)) from None
    try:
        _judge(os.fstat(opened), may_group_write=may_group_write)
        raw = _read_bounded(opened)
    except OSError as error:
        raise FileRefused(_fault(error)) from None
    finally:
        os.close(opened)
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise FileRefused(Fault.NOT_TEXT, raw.count(b"\n", 0, error.start) + 1) from None


def _fault(error: OSError | ValueError) -> Fault:
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    return _BY_NUMBER.get(number, Fault.UNREADABLE)


def _judge(found: os.stat_result, *, may_group_write: bool) -> None:
    """Check the open file, not its path, which may change in between."""
    if stat.S_ISDIR(found.st_mode):
        raise FileRefused(Fault.FOLDER)
    if not stat.S_ISREG(found.st_mode):
        raise FileRefused(Fault.IRREGULAR)
    # Attack: another user plants settings that disable isolation or allow actions. The group bits
    # also show the mask of an access control list, so a writer named there is seen as well.
    if found.st_uid not in {0, os.geteuid()}:
        raise FileRefused(Fault.STRANGER)
    writers = stat.S_IWOTH if may_group_write else stat.S_IWGRP | stat.S_IWOTH
    if found.st_mode & writers:
        raise FileRefused(Fault.WRITABLE)


def _read_bounded(opened: int) -> bytes:
    raw = bytearray()
    while block := os.read(opened, MAX_BYTES + 1 - len(raw)):
        raw += block
        if len(raw) > MAX_BYTES:
            raise FileRefused(Fault.TOO_LARGE)
    return bytes(raw)
