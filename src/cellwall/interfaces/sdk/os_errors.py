"""Failures of the file API as the exceptions of Python's own file functions."""

from __future__ import annotations

import errno
import os
from typing import Literal

from cellwall.core.errors import CellwallError
from cellwall.core.files import FileEntry

_OWNER_BITS = {"read": 0o400, "write": 0o200}
_NUMBERS = {
    "CW-NOT-FOUND": errno.ENOENT,
    "CW-NOT-A-FILE": errno.EISDIR,
    "CW-NOT-A-DIRECTORY": errno.ENOTDIR,
    "CW-ALREADY-EXISTS": errno.EEXIST,
    "CW-PATH-INVALID": errno.EINVAL,
}


def as_os_error(error: CellwallError, path: str) -> OSError:
    """The exception that `open` or `os.mkdir` would raise: `FileNotFoundError`,
    `IsADirectoryError`, `PermissionError` for every refusal."""
    number = _NUMBERS.get(error.code)
    if number is None:
        return PermissionError(errno.EACCES, str(error), path)
    return OSError(number, os.strerror(number), path)


def check_access(entry: FileEntry | None, path: str, wanted: Literal["read", "write"]) -> None:
    """Raises `PermissionError` where code inside could not open a file.

    The file API acts as the owner of the workspace, for whom the mode of a file does not count.
    """
    if entry is not None and entry.kind == "file" and not entry.mode & _OWNER_BITS[wanted]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
