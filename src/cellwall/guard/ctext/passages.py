"""Passages of a text as C reads them: where they are, their traits, and their weight where they
stand. `passages.h` says which source does what; what the traits mean is decided in
`detect/passages`.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from cellwall.guard.ctext.letters import Letters, letters
from cellwall.guard.ctext.library import SIZE, function

CLASSES = 128
"""At most so many classes of words; their traits are the first."""
TRAIT_WORDS = 5
TRAITS = 64 * TRAIT_WORDS
FIRST_FORM = CLASSES
FORMS = (
    *("order", "order inside", "code", "ends colon", "opens key"),
    *("to mail", "to address", "to path", "to code", "to tool", "to quote"),
    *("amount", "to account", "at time", "number", "to person"),
    *("list", "heading", "quoted", "key", "tag", "ends question", "ends loud", "ends stop"),
    *("capitals", "short", "medium", "long"),
    *("other script", "last", "begins", "near end"),
)
"""In the order of `enum form`."""
FIRST_ACT = 192
TEXT_TRAITS = (
    *("text of one", "text of few", "text of some", "text of many"),
    *("no other order", "few orders", "some orders", "all orders"),
    *("text about attacks", "text to a reader", "text of code", "text of a letter"),
)
"""In the order of `enum text_trait`; the shapes of the text follow."""
MAX_TEXT_TRAITS = 64
SCRIPTS = ("latin", "cyrillic", "cjk", "other")
MAX_CARRIED = 16
MAX_NUMBERS = 512
"""Of traits of a network."""
_NONE = 0xFFFF
_NO_PAIR = 0xFF

_PLACE = ctypes.c_void_p
_BITS = 64
Bits = ctypes.c_uint64 * TRAIT_WORDS


class PassageRecord(ctypes.Structure):
    """`struct passage`."""

    _fields_ = (
        ("traits", Bits),
        ("byte_start", ctypes.c_uint64),
        ("byte_end", ctypes.c_uint64),
        ("start", ctypes.c_uint32),
        ("end", ctypes.c_uint32),
        ("script", ctypes.c_uint32),
        ("is_candidate", ctypes.c_uint32),
    )


_RECORD_BYTES = ctypes.sizeof(PassageRecord)


class _Spans(ctypes.Structure):
    _fields_ = (("starts", _PLACE), ("ends", _PLACE), ("count", SIZE))


class _Word(ctypes.Structure):
    _fields_ = (
        ("classes", ctypes.c_uint64 * 2),
        ("size", ctypes.c_uint32),
        ("is_skipped", ctypes.c_uint32),
    )


class _ClassTable(ctypes.Structure):
    _fields_ = (
        ("gate", Bits),
        ("spoken_to", ctypes.c_uint64 * 2),
        ("openers", ctypes.c_uint64 * 2),
        ("opens", ctypes.c_uint16 * CLASSES),
        *(
            (name, ctypes.c_uint16)
            for name in (
                *("verbs", "objects", "override", "forget", "reminder", "instructions"),
                *("first_act", "padding"),
            )
        ),
    )


class _CommonTraits(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint16) for name in ("attack_talk", "about", "you", "modal", "letter")
    )


class SurroundingsRecord(ctypes.Structure):
    """`struct surroundings`."""

    _fields_ = (
        ("traits", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("script", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


_split = function("cw_passages_split", SIZE, ctypes.POINTER(Letters), _PLACE, _PLACE, SIZE)
_new = function(
    "cw_lexicon_new",
    _PLACE,
    ctypes.c_char_p,
    ctypes.POINTER(_Word),
    ctypes.c_uint32,
    _PLACE,
    ctypes.c_uint32,
    ctypes.POINTER(_ClassTable),
)
_free = function("cw_lexicon_free", None, _PLACE)
_read = function(
    "cw_passages_read",
    SIZE,
    _PLACE,
    ctypes.POINTER(Letters),
    ctypes.POINTER(_Spans),
    ctypes.POINTER(Letters),
    ctypes.POINTER(_Spans),
    _PLACE,
    SIZE,
    _PLACE,
    _PLACE,
)
_surroundings = function(
    "cw_surroundings",
    None,
    ctypes.POINTER(_CommonTraits),
    _PLACE,
    SIZE,
    ctypes.c_uint64,
    ctypes.POINTER(SurroundingsRecord),
)


def _at(values: array[int]) -> int:
    return values.buffer_info()[0]


def _zeros(code: str, count: int) -> array[int]:
    return array(code, bytes(array(code).itemsize * count))


@dataclass(frozen=True, slots=True)
class LowerCase:
    """A text in lower case with the spans of its passages, each as if it stood alone."""

    text: str
    starts: array[int]
    ends: array[int]


class SplitText:
    """The spans of the passages of a text: in order, and apart."""

    def __init__(self, text: str) -> None:
        self.text, self.letters = text, letters(text)
        self.starts, self.ends = _zeros("I", len(text)), _zeros("I", len(text))
        count = _split(self.letters, _at(self.starts), _at(self.ends), len(text))
        del self.starts[count:], self.ends[count:]

    def in_lower_case(self) -> LowerCase:
        """One letter becomes two, and that of another depends on where its word ends."""
        if "\u0130" not in self.text and "\u03a3" not in self.text:
            return LowerCase(self.text.lower(), self.starts, self.ends)
        pieces = [
            self.text[start:end].lower() for start, end in zip(self.starts, self.ends, strict=True)
        ]
        ends = array("I", accumulate(map(len, pieces)))
        return LowerCase("".join(pieces), array("I", [0, *ends[:-1]])[: len(ends)], ends)


class Passages:
    """The passages of a text, read."""

    def __init__(self, data: bytes, records: array[int], chosen: array[int]) -> None:
        self.data = data
        """The text in lower case, in UTF-8."""
        self.records, self.chosen = records, chosen
        """`chosen`: numbers of those that may instruct a model."""

    def __len__(self) -> int:
        return len(self.records) * 8 // _RECORD_BYTES

    def __getitem__(self, number: int) -> PassageRecord:
        if number >= len(self):
            raise IndexError(number)
        return PassageRecord.from_buffer(self.records, number * _RECORD_BYTES)


def bits_of(words: Sequence[int]) -> Iterator[int]:
    """The numbers of the bits that are set."""
    for number, word in enumerate(words):
        left = word
        while left:
            yield number * _BITS + (left & -left).bit_length() - 1
            left &= left - 1


def words_of(bits: Sequence[int], count: int) -> tuple[int, ...]:
    """So many words of 64 bits, in which these are set."""
    return tuple(
        sum(1 << bit % _BITS for bit in set(bits) if bit // _BITS == number)
        for number in range(count)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Words and phrases with the numbers of their classes, and what the classes are for. The first
    classes are those of verbs, then those of objects."""

    words: Mapping[str, Sequence[int]]
    skipped: frozenset[str]
    phrases: Sequence[tuple[str, int]]
    verbs: int
    objects: int
    gate: Sequence[int]
    """Traits of which a passage that may instruct a model has one."""
    spoken_to: Sequence[int]
    openers: Sequence[int]
    opens: Mapping[int, int]
    """By class: the trait of a passage that begins with a word of it."""
    override: int
    forget: int
    reminder: int
    instructions: int
    common: tuple[int, int, int, int, int]
    """The classes of talk about attacks (two), of addressing (two), and of letters."""

    def table(self) -> _ClassTable:
        opens = [self.opens.get(number, _NONE) for number in range(CLASSES)]
        return _ClassTable(
            gate=Bits(*words_of(self.gate, TRAIT_WORDS)),
            spoken_to=(ctypes.c_uint64 * 2)(*words_of(self.spoken_to, 2)),
            openers=(ctypes.c_uint64 * 2)(*words_of(self.openers, 2)),
            opens=(ctypes.c_uint16 * CLASSES)(*opens),
            verbs=self.verbs,
            objects=self.objects,
            override=self.override,
            forget=self.forget,
            reminder=self.reminder,
            instructions=self.instructions,
            first_act=FIRST_ACT,
        )


class PassageReader:
    """Made once for a lexicon; can serve many threads."""

    def __init__(self, words: Vocabulary) -> None:
        classes = {**dict.fromkeys(words.skipped, ()), **words.words}
        entries = (_Word * len(classes))(
            *(
                _Word((ctypes.c_uint64 * 2)(*words_of(names, 2)), len(word), word in words.skipped)
                for word, names in classes.items()
            )
        )
        phrases = array(
            "I", chain.from_iterable((len(text.encode()), number) for text, number in words.phrases)
        )
        codes = "".join(classes).encode("utf-32-le")
        self._common = _CommonTraits(*words.common)
        self._made = _new(
            codes, entries, len(classes), _at(phrases), len(words.phrases), words.table()
        )
        if not self._made:
            raise MemoryError
        # Not at exit: another thread may still scan a text during shutdown.
        weakref.finalize(self, _free, self._made).atexit = False

    def read(
        self, text: SplitText, low: LowerCase, data: bytes, hits: Sequence[tuple[int, int]]
    ) -> Passages:
        """`data`: the lower case in UTF-8; `hits`: number and end of each phrase there."""
        count = len(text.starts)
        records, chosen = _zeros("Q", count * _RECORD_BYTES // 8), _zeros("Q", count)
        found = array("I", chain.from_iterable(hits))
        low_letters = text.letters if low.text is text.text else letters(low.text)
        kept = _read(
            self._made,
            text.letters,
            _Spans(_at(text.starts), _at(text.ends), count),
            low_letters,
            _Spans(_at(low.starts), _at(low.ends), count),
            _at(found),
            len(hits),
            _at(records),
            _at(chosen),
        )
        del chosen[kept:]
        return Passages(data, records, chosen)

    def surroundings(self, passages: Passages, shape: int) -> SurroundingsRecord:
        """What the passages have in common; `shape`: bits of the traits of the text's shape."""
        found = SurroundingsRecord()
        _surroundings(self._common, _at(passages.records), len(passages), shape, found)
        return found
