"""The compiled library, and the types that its functions take."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cellwall.core.errors import CellwallError

SIZE = ctypes.c_size_t
DATA = ctypes.c_char_p
"""Bytes and their length beside them: NULs among them are bytes like others."""
OFFSETS = ctypes.POINTER(ctypes.c_uint64)
NUMBERS = ctypes.POINTER(ctypes.c_uint32)
SET = ctypes.c_char_p
"""256 bytes: one for each byte there is, not 0 if it belongs to the set."""
NOWHERE = ctypes.c_size_t(-1).value


def function(name: str, returns: Any, *takes: Any) -> Callable[..., Any]:  # noqa: ANN401  # ctypes has no types for types
    """One of the library's, with the types that it returns and takes."""
    found: Callable[..., Any] = getattr(_library(), name)
    found.restype, found.argtypes = returns, takes  # type: ignore[attr-defined]  # of ctypes' own
    return found


def byte_set(members: bytes) -> bytes:
    """As the functions take it."""
    table = bytearray(256)
    for member in members:
        table[member] = 1
    return bytes(table)


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(Path(__file__).with_name("cellwall-passes.so")))
    except OSError:
        raise CellwallError(
            "a part of the guard is missing or damaged, so no text can be looked at",
            hint="Install Cellwall anew: it is built then.",
            code="CW-NO-PASSES",
        ) from None
