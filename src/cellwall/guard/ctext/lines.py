"""Lines that begin with certain words."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from cellwall.guard.ctext.library import DATA, OFFSETS, SET, SIZE, function

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
