"""Small lists in the state folder that people change and every action reads: private files,
replaced atomically, under a lock between processes. A broken list is an error, never an empty one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cellwall.audit.files import (
    closing_fd,
    locked,
    make_folder,
    open_folder,
    open_private,
    replace_file,
)
from cellwall.core.errors import CellwallError

_MAX_BYTES = 8 << 20
Stamp = tuple[int, int, int]
ABSENT: Stamp = (0, 0, 0)
"""The stamp of a list that does not exist."""


@dataclass(frozen=True, slots=True)
class StateList:
    """One list: `name` in a folder of the same name."""

    home: str
    name: str
    code: str
    """Of the error for a broken list."""

    @property
    def _folder(self) -> str:
        return os.path.join(self.home, self.name)

    @property
    def _file(self) -> str:
        return f"{self.name}.json"

    def stamp(self) -> Stamp:
        """A value that differs after every change."""
        try:
            found = os.stat(os.path.join(self._folder, self._file), follow_symlinks=False)
        except FileNotFoundError:
            return ABSENT
        except OSError:
            return (-1, 0, 0)  # which is read, and found broken
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def read(self) -> list[dict[str, Any]]:
        """The entries as stored."""
        try:
            return self._decode(self._read())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self.broken(str(error)) from error

    @contextmanager
    def change(self) -> Iterator[list[dict[str, Any]]]:
        """The entries, to be changed in place; stored at the end of the block."""
        try:
            make_folder(self._folder)
            with closing_fd(open_folder(self._folder)) as folder, locked(folder):
                entries = self.read()
                yield entries
                data = json.dumps({"version": 1, "entries": entries}).encode("ascii")
                if len(data) > _MAX_BYTES:
                    raise CellwallError(f"the list of {self.name} is full", code=self.code)
                replace_file(self._file, data + b"\n", folder)
        except OSError as error:
            raise self.broken(str(error)) from error

    def broken(self, detail: str = "") -> CellwallError:
        """The error for a list that cannot be used."""
        return CellwallError(
            f"the list of {self.name} is broken or open to other users",
            hint=f"Remove {self.name}/{self._file} in the state folder, then make the list anew.",
            code=self.code,
            detail=detail,
        )

    def _read(self) -> bytes:
        with (
            closing_fd(open_folder(self._folder)) as folder,
            closing_fd(open_private(self._file, os.O_RDONLY, folder)) as file,
            os.fdopen(os.dup(file), "rb") as stream,
        ):
            return stream.read(_MAX_BYTES + 1)

    def _decode(self, raw: bytes) -> list[dict[str, Any]]:
        try:
            found = json.loads(raw) if len(raw) <= _MAX_BYTES else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.keys() != {"version", "entries"}:
            raise self.broken()
        entries = found["entries"]
        if found["version"] != 1 or not isinstance(entries, list):
            raise self.broken()
        if not all(isinstance(each, dict) for each in entries):
            raise self.broken()
        return entries
