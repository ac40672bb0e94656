"""Sentences around the words that may begin a request, and the upper bound of their weights."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
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


_WORDS = (
    *("base", "names_address", "quotes"),
    *("has_digits", "looks_technical", "is_wrapped", "is_question"),
    *("few_words", "some_words", "many_words"),
    *("begin", "asks_openly", "tells_or_asks", "then_a_name", "tells"),
)
_FLAGS = ("is_first_verb", "is_leading", "is_question_word", "is_telling")


class SentenceWeights(ctypes.Structure):
    """What a sentence is worth for other things than its words; see `Prospects`."""

    _fields_ = (*((name, ctypes.c_double) for name in _WORDS), ("ends", ctypes.c_double * 128))


class WordWeights(ctypes.Structure):
    """What a word is worth, wherever it stands and where it asks; see `Prospects`."""

    _fields_ = (
        *(
            (name, ctypes.c_double)
            for name in ("anywhere", "asking", "asking_first", "opening", "behind", "next")
        ),
        *((name, ctypes.c_uint8) for name in _FLAGS),
        ("padding", ctypes.c_uint8 * 4),
    )


_POINTER = ctypes.c_void_p
_new = function(
    "cw_glance_new",
    _POINTER,
    DATA,
    NUMBERS,
    ctypes.POINTER(WordWeights),
    ctypes.c_uint32,
    ctypes.POINTER(SentenceWeights),
)
_free = function("cw_glance_free", None, _POINTER)
_glance = function(
    "cw_glance",
    None,
    _POINTER,
    DATA,
    SIZE,
    OFFSETS,
    OFFSETS,
    ctypes.POINTER(ctypes.c_double),
    SIZE,
)


class SentenceBounds:
    """Made once for a model; can serve many threads."""

    def __init__(self, words: Mapping[bytes, WordWeights], worths: SentenceWeights) -> None:
        count = len(words)
        sizes = (ctypes.c_uint32 * count)(*map(len, words))
        told = (WordWeights * count)(*words.values())
        self._made = _new(b"".join(words), sizes, told, count, ctypes.byref(worths))
        if not self._made:
            raise MemoryError
        # Not at exit: somebody may still look at a text while others are taken down.
        weakref.finalize(self, _free, self._made).atexit = False

    def most(self, text: bytes, found: Sentences) -> list[float]:
        """Of each of these sentences; endless for what is not ASCII or far too long."""
        count = len(found)
        most = (ctypes.c_double * count)()
        _glance(self._made, text, len(text), found.starts, found.ends, most, count)
        return most[:]
