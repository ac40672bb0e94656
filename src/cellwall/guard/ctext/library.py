"""The compiled library with its argument types, and its small passes: base64, characters, lines."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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


_may_be_text = function("cw_base64_may_be_text", ctypes.c_int, DATA, SIZE)


def may_be_text(run: bytes) -> bool:
    """By its first and its last letters, as they are, turned by 13, and read backwards. False is
    certain if no `=` stands in the run; true is to be looked at."""
    return bool(_may_be_text(run, len(run)))


_letters = function("cw_letters", SIZE, DATA, SIZE, SET, NUMBERS, SIZE)
_blocks = function("cw_blocks", SIZE, DATA, SIZE, SET, SIZE, OFFSETS, SIZE)
_FEW_LETTERS = 1024

Block = tuple[int, int, int, int]
"""Where it begins and ends: in characters, and in bytes."""


def letters(data: bytes, common: bytes) -> str:
    """Each character of the data once that is not in the byte set `common`, which has all that are
    printable ASCII."""
    room = _FEW_LETTERS
    while True:
        codes = (ctypes.c_uint32 * room)()
        found = _letters(data, len(data), common, codes, room)
        if found == NOWHERE:
            raise MemoryError
        if found <= room:
            return "".join(map(chr, codes[:found]))
        room = found


def blocks(data: bytes, common: bytes, size: int, most: int) -> list[Block]:
    """Blocks of so many bytes that are not all in the byte set, and of these the first `most`."""
    parts = (ctypes.c_uint64 * (4 * most))()
    found = _blocks(data, len(data), common, size, parts, most)
    told = iter(parts[: 4 * found])
    return list(zip(told, told, told, told, strict=True))


_line_heads = function(
    "cw_line_heads", SIZE, DATA, SIZE, SET, SIZE, ctypes.c_char_p, SET, OFFSETS, SIZE
)


class LineHeads(NamedTuple):
    """How lines begin that are looked for."""

    ornaments: bytes
    """A byte set: what may stand before the word."""
    max_ornaments: int
    words: Sequence[bytes]
    follow: bytes
    """A byte set: what may stand behind the word."""

    def of(self, data: bytes, most: int) -> list[int] | None:
        """Where such lines begin; None if they are more than `most`."""
        words = b"".join(word + b"\0" for word in self.words) + b"\0"
        places = (ctypes.c_uint64 * most)()
        found = _line_heads(
            data, len(data), self.ornaments, self.max_ornaments, words, self.follow, places, most
        )
        return places[:found] if found <= most else None
