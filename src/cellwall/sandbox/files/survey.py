"""What a walk leaves out and counts: one pass in C (survey.c) over each directory."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cellwall.core.errors import SandboxFailed

NEVER_NS = (1 << 63) - 1
_FIRST_ROOM_BYTES = 1 << 16
_BLOCK_BYTES = 512


class _Names(ctypes.Structure):
    _fields_ = (
        ("text", ctypes.c_void_p),
        ("room", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
    )


class _Pass(ctypes.Structure):
    """`struct survey` of survey.c."""

    _fields_ = (
        ("since_ns", ctypes.c_int64),
        ("max_names", ctypes.c_uint64),
        ("are_links_dull", ctypes.c_uint64),
        ("dull", _Names),
        ("others", _Names),
        ("name_count", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
    )


NamesToLookAt = Callable[[Sequence[bytes]], list[str]]
"""Of the names of files: those that a walk makes steps of, however dull the files are."""


class DiskUsage(NamedTuple):
    """Bytes on disk, where holes do not count, and the number of names."""

    used_bytes: int = 0
    name_count: int = 0

    def plus(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.used_bytes + other.used_bytes, self.name_count + other.name_count)


@dataclass(slots=True)
class Survey:
    """For one walk, by one thread."""

    names_to_look_at: NamesToLookAt = lambda _names: []
    since_ns: int = NEVER_NS
    """A file that was changed since is not left out, whatever its name."""
    are_links_dull: Callable[[str], bool] = lambda _directory: True
    """Whether files with several hard links are left out in the directory of that path."""
    usage: DiskUsage = DiskUsage()
    """Of everything in the directories that were entered."""
    _pass: _Pass = field(default_factory=_Pass)
    _rooms: list[ctypes.Array[ctypes.c_char]] = field(default_factory=list)

    def look(self, fd: int, path: str, *, max_names: int) -> tuple[list[str], int]:
        """The names in an open directory to make steps of, in order, and the number of all names;
        raises `OverflowError` if that is more than `max_names`."""
        run = self._pass
        run.since_ns, run.max_names = self.since_ns, max_names
        run.are_links_dull = self.are_links_dull(path)
        self._make_room(_FIRST_ROOM_BYTES)
        while (code := _survey_directory()(fd, ctypes.byref(run))) == 0:
            needed = max(run.dull.used, run.others.used)
            if needed <= run.dull.room:
                break
            self._make_room(2 * needed)
            os.lseek(fd, 0, os.SEEK_SET)
        if code:
            if code == errno.E2BIG:
                raise OverflowError
            raise OSError(code, os.strerror(code))
        self.usage = self.usage.plus(DiskUsage(run.blocks * _BLOCK_BYTES, run.name_count))
        names = [os.fsdecode(name) for name in _split(run.others)]
        names += self.names_to_look_at(_split(run.dull))
        names.sort()
        return names, run.name_count

    def _make_room(self, size: int) -> None:
        if self._rooms and size <= self._pass.dull.room:
            return
        is_first = size == _FIRST_ROOM_BYTES
        self._rooms = _first_rooms.rooms if is_first else _new_rooms(size)
        for names, room in zip((self._pass.dull, self._pass.others), self._rooms, strict=True):
            names.text, names.room = ctypes.addressof(room), size


def _new_rooms(size: int) -> list[ctypes.Array[ctypes.c_char]]:
    return [ctypes.create_string_buffer(size) for _ in range(2)]


class _FirstRooms(threading.local):
    """Of each thread: new ones are cleared, 128 KiB for each survey. A pass copies its names out
    before the thread begins another."""

    def __init__(self) -> None:
        self.rooms = _new_rooms(_FIRST_ROOM_BYTES)


_first_rooms = _FirstRooms()


def _split(names: _Names) -> list[bytes]:
    return ctypes.string_at(names.text, names.used - 1).split(b"\0") if names.used else []


@cache
def _survey_directory() -> Any:  # noqa: ANN401  # ctypes has no types for functions
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("cellwall-survey.so")))
    except OSError:
        raise SandboxFailed(
            "a compiled part of the sandbox is missing or damaged, so no directory can be checked",
            hint="Install Cellwall again: the part is built then.",
            code="CW-NO-SURVEY",
        ) from None
    call = library.cw_survey_directory
    call.restype, call.argtypes = ctypes.c_int, (ctypes.c_int, ctypes.POINTER(_Pass))
    return call
