"""The compiled library with its argument types, and its small passes: base64, characters, lines."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
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
    values = iter(parts[: 4 * found])
    return list(zip(values, values, values, values, strict=True))


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


# Finds where a text may contain something encoded, in one pass.

_CHAINS = 3
_LANE_BITS = 16
_MASKS = ctypes.c_uint64 * 256


class _Tables(ctypes.Structure):
    _fields_ = (
        ("moves", _MASKS),
        ("keeps", _MASKS),
        ("firsts", ctypes.c_uint64),
        ("lasts", ctypes.c_uint64),
        ("loose", ctypes.c_uint64),
    )


class _Places(ctypes.Structure):
    _fields_ = (("found", OFFSETS), ("count", ctypes.c_uint64), ("room", ctypes.c_uint64))


class _Survey(ctypes.Structure):
    _fields_ = (("chains", _Places * _CHAINS),)


_survey = function("cw_survey", None, DATA, SIZE, ctypes.POINTER(_Tables), ctypes.POINTER(_Survey))
_runs = function("cw_runs", None, DATA, SIZE, SET, SIZE, ctypes.POINTER(_Places))


class Chain(NamedTuple):
    """Sixteen bytes of certain kinds, one after the other."""

    kinds: Sequence[bytes]
    """Which bytes the first may be, the second, and so on; then from the beginning."""
    between: bytes
    """What may stand between them."""
    is_loose: bool = False
    """Whether what may stand between them may also be one of them. Of such a chain two places are
    told: before which it cannot begin, and where it ends; of others where it begins."""


class SurveyResult(NamedTuple):
    """Places in a text; None for those that are too many to be looked at one by one."""

    chains: Sequence[list[int] | None]


class Survey:
    """What is looked for: three chains."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        assert len(chains) == _CHAINS  # noqa: S101  # one lane of bits for each chain
        self._tables = tables = _Tables()
        for number, chain in enumerate(chains):
            shift = number * _LANE_BITS
            last = 1 << (shift + _LANE_BITS - 1)
            tables.firsts |= 1 << shift
            tables.lasts |= last
            tables.loose |= last if chain.is_loose else 0
            for place in range(_LANE_BITS):
                self._move(chain.kinds[place % len(chain.kinds)], shift + place)
            for byte in chain.between:
                tables.keeps[byte] |= ((1 << _LANE_BITS) - 1) << shift

    def _move(self, members: bytes, bit: int) -> None:
        for byte in members:
            self._tables.moves[byte] |= 1 << bit

    def of(self, data: bytes, most: int) -> SurveyResult:
        """Where it is in the data; of each thing at most `most` places."""
        rooms = [(ctypes.c_uint64 * most)() for _ in range(_CHAINS)]
        survey = _Survey((_Places * _CHAINS)(*(_Places(room, 0, most) for room in rooms)))
        _survey(data, len(data), ctypes.byref(self._tables), ctypes.byref(survey))
        return SurveyResult(
            [_read_places(room, places) for room, places in zip(rooms, survey.chains, strict=True)]
        )


def run_begins(data: bytes, members: bytes, least: int) -> list[int]:
    """Where runs of at least `least` bytes of a byte set begin."""
    size = min(_FEW_PLACES, len(data) // least + 1)
    while True:
        room = (ctypes.c_uint64 * size)()
        places = _Places(room, 0, size)
        _runs(data, len(data), members, least, ctypes.byref(places))
        found = _read_places(room, places)
        if found is not None:
            return found
        size = places.count


_FEW_PLACES = 1024


def _read_places(room: ctypes.Array[ctypes.c_uint64], places: _Places) -> list[int] | None:
    return room[: places.count] if places.count <= places.room else None


# Sentences around the words that may begin a request, and the upper bound of their weights.

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
    buffer = ctypes.create_string_buffer(len(data))
    return ctypes.string_at(buffer, _marked(data, len(data), buffer))


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
        assert len(kinds) == len(lengths) < 1 << _NUMBER_BITS  # noqa: S101  # the numbers of shipped words fit their bits
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
        weights = (WordWeights * count)(*words.values())
        self._made = _new(b"".join(words), sizes, weights, count, ctypes.byref(worths))
        if not self._made:
            raise MemoryError
        # Not at exit: another thread may still scan a text during shutdown.
        weakref.finalize(self, _free, self._made).atexit = False

    def most(self, text: bytes, found: Sentences) -> list[float]:
        """Of each of these sentences; endless for what is not ASCII or far too long."""
        count = len(found)
        most = (ctypes.c_double * count)()
        _glance(self._made, text, len(text), found.starts, found.ends, most, count)
        return most[:]
