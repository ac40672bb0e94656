"""Sentences around the words that may begin a request."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from cellwall.guard.ctext.library import DATA, NUMBERS, OFFSETS, SIZE, function

_PLACE = ctypes.POINTER(SIZE)
_marked = function("cw_marked", SIZE, DATA, SIZE, ctypes.c_void_p)
_sort = function("cw_cues_sort", None, OFFSETS, SIZE)
_candidates = function(
    "cw_candidates", SIZE, DATA, SIZE, OFFSETS, SIZE, DATA, DATA, _PLACE, _PLACE, OFFSETS, OFFSETS
)
_rivals = function("cw_rivals", None, OFFSETS, OFFSETS, SIZE, ctypes.c_uint64, NUMBERS)
_NUMBER_BITS = 20

Offsets = ctypes.Array[ctypes.c_uint64]
Look = Callable[[int, int], tuple[int, int] | None]
"""Begin and number of a cue -> begin and end of its sentence."""


class Kind(IntEnum):
    """How a cue begins a sentence, as `cues.c` knows it."""

    NAMED = 0
    NAMED_QUESTION = 1
    AFTER = 2
    AFTER_QUESTION = 3
    BY_PYTHON = 4


def marked(text: str) -> bytes:
    """A byte for each character: itself if it is ASCII, else one above that says what it is."""
    if text.isascii():
        return text.encode()
    data = text.encode("utf-8", "surrogatepass")
    told = ctypes.create_string_buffer(len(data))
    return ctypes.string_at(told, _marked(data, len(data), told))


class Candidate(NamedTuple):
    """A sentence, in characters of the text."""

    start: int
    end: int


class Sentences:
    """Where sentences stand in a text: in order, and apart."""

    def __init__(self, starts: Offsets, ends: Offsets, count: int) -> None:
        self.starts, self.ends, self._count = starts, ends, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Candidate:
        if number >= self._count:
            raise IndexError(number)
        return Candidate(self.starts[number], self.ends[number])

    def rivals(self, near: int) -> list[int]:
        """How many others are so near, for each of them."""
        found = (ctypes.c_uint32 * self._count)()
        _rivals(self.starts, self.ends, self._count, near, found)
        return found[:]


class Cues:
    """Words that may begin a request: of each its kind and its length."""

    def __init__(self, kinds: Sequence[Kind], lengths: Sequence[int]) -> None:
        assert len(kinds) == len(lengths) < 1 << _NUMBER_BITS  # noqa: S101  # our own words
        self._kinds, self._lengths = bytes(kinds), bytes(lengths)

    def sentences(self, text: bytes, places: Sequence[tuple[int, int]], look: Look) -> Sentences:
        """The sentences in a marked text, of cues by number and end; `look` reads those of which
        the bytes do not tell."""
        lengths, count = self._lengths, len(places)
        offsets = ctypes.c_uint64 * count
        cues = offsets(
            *[(end - lengths[number]) << _NUMBER_BITS | number for number, end in places]
        )
        _sort(cues, count)
        starts, ends = offsets(), offsets()
        found, next_cue, done = 0, SIZE(0), SIZE(0)
        while next_cue.value < count:
            at = 8 * found
            found += _candidates(
                text,
                len(text),
                cues,
                count,
                self._kinds,
                lengths,
                ctypes.byref(next_cue),
                ctypes.byref(done),
                ctypes.cast(ctypes.addressof(starts) + at, OFFSETS),
                ctypes.cast(ctypes.addressof(ends) + at, OFFSETS),
            )
            if next_cue.value < count:
                cue = cues[next_cue.value]
                next_cue.value += 1
                span = look(cue >> _NUMBER_BITS, cue & ((1 << _NUMBER_BITS) - 1))
                if span is not None and span[0] >= done.value:
                    starts[found], ends[found] = span
                    found += 1
                    done.value = span[1]
        return Sentences(starts, ends, found)
