"""Lines that begin with certain words."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from holdfast.guard.native.library import DATA, OFFSETS, SET, SIZE, function

_line_heads = function(
    "hf_line_heads", SIZE, DATA, SIZE, SET, SIZE, ctypes.c_char_p, SET, OFFSETS, SIZE
)
_FEW_LINES = 4096


def line_heads(
    data: bytes, ornaments: bytes, most: int, words: Sequence[bytes], follow: bytes
) -> list[int]:
    """Where lines begin that have one of the words behind at most `most` ornaments, and behind it
    one of the bytes that may follow."""
    listed = b"".join(word + b"\0" for word in words) + b"\0"
    room = _FEW_LINES
    while True:
        places = (ctypes.c_uint64 * room)()
        found = _line_heads(data, len(data), ornaments, most, listed, follow, places, room)
        if found <= room:
            return places[:found]
        room = found
