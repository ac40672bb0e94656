"""The kernel's notices of what happens in directories (inotify), as plain data."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

IN_MODIFY = 0x002
IN_MOVED_FROM = 0x040
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x01000000
IN_ISDIR = 0x40000000

MASK = (
    IN_MODIFY
    | IN_MOVED_FROM
    | IN_MOVED_TO
    | IN_CREATE
    | IN_DELETE
    | IN_DELETE_SELF
    | IN_MOVE_SELF
    | IN_ONLYDIR
)

_HEAD = struct.Struct("iIII")


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice: `watch` tells the directory, `cookie` joins the two halves of a move."""

    watch: int
    mask: int
    cookie: int
    name: str

    @property
    def is_dir(self) -> bool:
        return bool(self.mask & IN_ISDIR)


def notices(data: bytes) -> Iterator[Notice]:
    """What one read of the descriptor gave."""
    at = 0
    while at < len(data):
        watch, mask, cookie, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        name = data[at : at + length].rstrip(b"\0")
        at += length
        yield Notice(watch, mask, cookie, os.fsdecode(name))
