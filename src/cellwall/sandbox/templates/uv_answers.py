"""What uv knows about the Pythons of a cell: entries of its cache, kept from one cell to the next.

$CELLWALL_HOME/programs/python-KEY.json    path below the cache of uv -> content in base64

uv starts an interpreter and compiles a program in it to learn its version and paths: 50 of 270 ms
of an installation of 20 packages. It keeps the answer in its cache, and a new cell has none.
So a cell without network and without files of anybody asks once, and later cells get the entries as
files of their own: what code does with them has no effect outside of its cell. uv itself compares
an entry with the time of the interpreter, and asks again after a change.

KEY is a hash of uv, of the Pythons and of the kernel's release, on which uv's own names depend.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress

from cellwall.core.errors import CellwallError
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.languages import python_inside, python_outside
from cellwall.sandbox.templates import uv_program

CACHE_INSIDE = ".cache/uv"
"""The cache of uv, below the home of a cell."""
_PREFIX = "python-"
_MAX_BYTES = 64 * 1024
_MAX_ENTRIES = 8
_ENTRY = re.compile(r"interpreter-v[0-9]{1,4}/[0-9a-f]{16}/[0-9a-f]{16}\.msgpack")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UvAnswers:
    """The entries of one state folder. Safe for threads and processes."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._read: Mapping[str, bytes] = {}

    @property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons to ask about: by the name that programs look for, and by their path."""
        return tuple(dict.fromkeys((python_inside(), os.path.realpath(python_inside()))))

    def entries(self) -> Mapping[str, bytes]:
        """Path below the cache -> content; empty where no cell has asked yet.

        Read once: after an update of uv or of Python meanwhile, uv does not use them.
        """
        if not self._read:
            with suppress(OSError, ValueError, CellwallError):
                path = os.path.join(self._home, "programs", self.name)
                self._read = _parse(_read_private(path))
        return self._read

    def write(self, printed: bytes) -> None:
        """Keep what the cell has printed, unless it is anything but entries."""
        folder = os.path.join(self._home, "programs")
        with suppress(OSError, ValueError, CellwallError):  # the next process asks again
            _parse(printed)
            name = self.name
            os.makedirs(folder, mode=0o700, exist_ok=True)
            for each in os.listdir(folder):  # of another version, or of a killed writer
                if each.startswith((_PREFIX, f".{_PREFIX}")):
                    os.unlink(os.path.join(folder, each))
            draft = os.path.join(folder, f".{name}-{secrets.token_hex(8)}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(draft, flags, 0o600), "wb") as file:
                file.write(printed)
            os.rename(draft, os.path.join(folder, name))

    @property
    def name(self) -> str:
        """Of the file: another one for each uv, Python and kernel."""
        outside = os.stat(python_outside())
        times = outside.st_ino, outside.st_size, outside.st_mtime_ns, outside.st_ctime_ns
        parts = uv_program.folder(self._home), self.pythons, times, os.uname()
        return f"{_PREFIX}{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}.json"


def _read_private(path: str) -> bytes:
    with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
        info = os.fstat(file)
        if info.st_uid != os.geteuid() or info.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(path)
        return os.read(file, _MAX_BYTES + 1)


def _parse(printed: bytes) -> Mapping[str, bytes]:
    """The entries; the bytes come from a cell, so nothing else may be in them."""
    if len(printed) > _MAX_BYTES:
        raise ValueError("too long")
    try:
        found = json.loads(printed)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict) or not 0 < len(found) <= _MAX_ENTRIES:
        raise ValueError("no entries")
    entries: dict[str, bytes] = {}
    for path, content in found.items():
        if _ENTRY.fullmatch(path) is None or not isinstance(content, str):
            raise ValueError("not an entry")
        try:
            entries[path] = base64.b64decode(content, validate=True)
        except binascii.Error as error:
            raise ValueError("not base64") from error
    return entries
