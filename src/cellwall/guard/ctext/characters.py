"""Which letters beyond ASCII a text in UTF-8 has, and where."""

from __future__ import annotations

import ctypes

from cellwall.guard.ctext.library import DATA, NOWHERE, NUMBERS, OFFSETS, SET, SIZE, function

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
