"""The most that sentences can weigh."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping

from cellwall.guard.ctext.cues import Sentences
from cellwall.guard.ctext.library import DATA, NUMBERS, OFFSETS, SIZE, function

_WORDS = (
    *("base", "names_address", "quotes"),
    *("has_digits", "looks_technical", "is_wrapped", "is_question"),
    *("few_words", "some_words", "many_words"),
    *("begin", "asks_openly", "tells_or_asks", "then_a_name", "tells"),
)
_FLAGS = ("is_first_verb", "is_leading", "is_question_word", "is_telling")


class Worths(ctypes.Structure):
    """What a sentence is worth for other things than its words; see `Prospects`."""

    _fields_ = (*((name, ctypes.c_double) for name in _WORDS), ("ends", ctypes.c_double * 128))


class WordWorth(ctypes.Structure):
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
    ctypes.POINTER(WordWorth),
    ctypes.c_uint32,
    ctypes.POINTER(Worths),
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


class Glance:
    """Made once for a model; can serve many threads."""

    def __init__(self, words: Mapping[bytes, WordWorth], worths: Worths) -> None:
        count = len(words)
        sizes = (ctypes.c_uint32 * count)(*map(len, words))
        told = (WordWorth * count)(*words.values())
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
