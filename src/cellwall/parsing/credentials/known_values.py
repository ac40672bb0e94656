"""Finds known values in data, and the possible beginning of one at the end of the data.

Every form of a value has a substring, the anchor, that is visible in a simple view of the data: the
data verbatim, with numeric escapes decoded, or with only letters and digits. Without the anchor the
form is absent; with it, `known_forms.Form` decides.

Bytes before a value can swallow its first two bytes in a view (`%` before `ab`), and `x` after
hexadecimal its last digit; so these bytes are never part of an anchor.
"""

from __future__ import annotations

import re
import struct
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Literal

from cellwall.parsing.credentials.known_forms import (
    PLAIN,
    Encoding,
    ValueForm,
    cores,
    forms,
    heads,
    max_bytes,
    pieces,
)

_SWALLOWED_BYTES = 2
_MIN_ANCHOR_BYTES = 4
_PLAIN_RUN = re.compile(b"[%s]+" % re.escape(PLAIN))
_ALNUM_RUN = re.compile(rb"[A-Za-z0-9]+")
_NOT_ALNUM = bytes(byte for byte in range(256) if not _ALNUM_RUN.match(bytes([byte])))
_NOT_HEX = bytes(byte for byte in range(256) if byte not in b"0123456789abcdefABCDEF")
_HEX_LOWER = bytes.maketrans(b"ABCDEF", b"abcdef")
_LINE_ENDS = (b"\\n", b"\\r", b"%0A", b"%0a", b"%0D", b"%0d")
_HEX_MARKS = (b"0x", b"0X")
_NUMBERS = {
    digits.encode(): bytes([byte]) for byte in PLAIN for digits in (f"{byte:02x}", f"{byte:02X}")
}
"""Hexadecimal digits of the bytes that anchors consist of; other escapes stay."""
_ESCAPES = {
    mark: re.compile(b"%s(?:2[DEde]|3[0-9]|[46][1-9A-Fa-f]|5[0-9AFaf]|7[0-9Aa])" % re.escape(mark))
    for mark in (b"%", b"\\u00", b"\\x")
}
"""The mark of each escape, and a pattern for one worth decoding: encoders rarely escape letters."""

_ENTITY = re.compile(rb"&#(?:[xX]0*([2-7][0-9A-Fa-f])|0*([0-9]{2,3}));")

_TEXT: tuple[Encoding, ...] = ("raw", "url", "json", "escaped", "html")

_MAX_LOOSE = 12
"""Pieces of a value that are searched for without an anchor: each takes milliseconds to compile,
and the proxy waits meanwhile. More pieces do not fit into a field of a request."""
_SIEVE_FROM = 64
"""From this number of anchors on, one pass over the data is cheaper than one per anchor."""


@dataclass(frozen=True)
class ValuePiece:
    """A value, or a part of a long value; `repr` shows the name only."""

    name: str
    value: bytes
    number: int = 0
    """Within the value."""

    def __repr__(self) -> str:
        return f"ValuePiece({self.name})"

    @cached_property
    def forms(self) -> tuple[ValueForm, ...]:
        """Every form; built lazily, since most values never occur."""
        return forms(self.value)


AnchorTarget = tuple[ValuePiece, tuple[Encoding, ...]]
"""A value, and the encodings that an anchor stands for."""


class AnchorIndex:
    """The anchors of all values, by view."""

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        self.pieces = tuple(
            ValuePiece(name, piece, number)
            for name, value in values
            for number, piece in enumerate(pieces(value))
        )
        self._text = _AnchorView("Q")
        self._base64 = _AnchorView("I")
        self._hex = _AnchorView("Q")
        for piece in self.pieces:
            runs = _PLAIN_RUN.findall(piece.value)
            anchor = max((run[_SWALLOWED_BYTES:] for run in runs), key=len, default=b"")
            self._text.add(anchor, piece, _TEXT)
            self._text.add(anchor[::-1], piece, ("reversed",))
            for core in cores(piece.value):
                runs = _ALNUM_RUN.findall(core[_SWALLOWED_BYTES:])
                self._base64.add(max(runs, key=len, default=b""), piece, ("base64",))
            self._hex.add(piece.value.hex().encode()[_SWALLOWED_BYTES:-1], piece, ("hex",))

    @cached_property
    def max_bytes(self) -> int:
        """The longest form of any value, by length alone; 0 without values."""
        longest = max((len(piece.value) for piece in self.pieces), default=0)
        return max_bytes(longest) if longest else 0

    def candidates(self, data: bytes) -> Iterator[tuple[ValuePiece, ValueForm]]:
        """The pieces and forms that may occur in `data`; all others do not."""
        if not self.pieces:
            return
        yield from self._text.candidates_in(data, data, *_decode_escapes(data))
        unwrapped = _blank_out(data, _LINE_ENDS)
        yield from self._base64.candidates_in(data, unwrapped.translate(None, _NOT_ALNUM))
        unmarked = _blank_out(unwrapped, _HEX_MARKS)
        yield from self._hex.candidates_in(data, unmarked.translate(_HEX_LOWER, _NOT_HEX))


class _AnchorView:
    """Anchors that are searched for in the same view of the data."""

    def __init__(self, gram: Literal["I", "Q"]) -> None:
        # The sieve cuts the data into integers of four or eight bytes. An anchor of nearly twice
        # that length contains one whole integer, at whatever offset the anchor begins.
        self._gram = gram
        self._gram_bytes = struct.calcsize(gram)
        self._sieved_from_bytes = 2 * self._gram_bytes - 1
        self._anchored: dict[bytes, list[AnchorTarget]] = defaultdict(list)
        self._loose: dict[AnchorTarget, re.Pattern[bytes]] = {}
        """Values without a useful anchor are found by the heads of their forms."""

    def add(self, anchor: bytes, piece: ValuePiece, encodings: tuple[Encoding, ...]) -> None:
        wanted = (piece, encodings)
        if len(anchor) >= _MIN_ANCHOR_BYTES:
            self._anchored[anchor].append(wanted)
        elif piece.number < _MAX_LOOSE:
            self._loose[wanted] = heads(form for _, form in _forms(wanted))

    def candidates_in(self, data: bytes, *views: bytes) -> Iterator[tuple[ValuePiece, ValueForm]]:
        candidates = {wanted: None for wanted, head in self._loose.items() if head.search(data)}
        for view in views:
            for anchor in self._likely_anchors(view):
                if anchor in view:
                    candidates.update(dict.fromkeys(self._anchored[anchor]))
        for wanted in candidates:
            yield from _forms(wanted)

    def _likely_anchors(self, view: bytes) -> Iterable[bytes]:
        if len(self._anchored) < _SIEVE_FROM:
            return self._anchored
        whole = len(view) // self._gram_bytes * self._gram_bytes
        cut = memoryview(view)[:whole].cast(self._gram)
        grams = self._grams.intersection(cut)
        return [*self._unsieved, *{anchor for gram in grams for anchor in self._sieve[gram]}]

    @cached_property
    def _sieve(self) -> dict[int, list[bytes]]:
        sieve: dict[int, list[bytes]] = defaultdict(list)
        for anchor in self._anchored:
            if len(anchor) >= self._sieved_from_bytes:
                # Every cut has one integer within these bytes: the rest is not needed.
                for start in range(self._gram_bytes):
                    gram = anchor[start : start + self._gram_bytes]
                    sieve[int.from_bytes(gram, sys.byteorder)].append(anchor)
        return sieve

    @cached_property
    def _grams(self) -> frozenset[int]:
        return frozenset(self._sieve)

    @cached_property
    def _unsieved(self) -> list[bytes]:
        return [anchor for anchor in self._anchored if len(anchor) < self._sieved_from_bytes]


def _forms(wanted: AnchorTarget) -> Iterator[tuple[ValuePiece, ValueForm]]:
    piece, encodings = wanted
    return ((piece, form) for form in piece.forms if form.encoding in encodings)


def _decode_escapes(data: bytes) -> Iterator[bytes]:
    """The data with the numeric escapes of one kind decoded, for each kind in the data."""
    for mark, decodable in _ESCAPES.items():
        if decodable.search(data):
            first, *rest = data.split(mark)
            parts = [
                _NUMBERS[part[:2]] + part[2:] if part[:2] in _NUMBERS else mark + part
                for part in rest
            ]
            yield first + b"".join(parts)
    if b"&#" in data:
        yield _ENTITY.sub(_letter, data)


def _letter(entity: re.Match[bytes]) -> bytes:
    code = int(entity[1], 16) if entity[1] else int(entity[2])
    letter = bytes([code]) if code < 0x80 else b""
    return letter if letter and letter in PLAIN else entity[0]


def _blank_out(data: bytes, marks: Iterable[bytes]) -> bytes:
    # Replaced by a blank: otherwise two halves could join to another mark and swallow more.
    for mark in marks:
        data = data.replace(mark, b" ")
    return data


PREFIX_BYTES = 3
"""Looked up at every position near the end: short enough to list, long enough to be rare."""
_SAMPLE_BYTES = 8
"""Bytes of a value that determine the first bytes of all of its forms."""


class KnownValueMatches:
    """Start, end and name of the known values in a window; each form is searched for once.

    Overlapping matches are merged: one value may begin with another, or end where another begins.
    The match that begins first gives the name; of several, the longest.
    """

    def __init__(self, anchors: AnchorIndex, window: bytes) -> None:
        self._window = window
        self._candidates = list(anchors.candidates(window))
        self._next: list[tuple[int, int, int]] = []
        for number in range(len(self._candidates)):
            self._search(number, 0)

    def first(self, place: int) -> tuple[int, int, str] | None:
        """The first match at or behind `place`, which must not decrease between calls."""
        while self._next and self._next[0][0] < place:
            self._search(heappop(self._next)[2], place)
        if not self._next:
            return None
        start, end, number = self._next[0]
        while self._next and self._next[0][0] < end:
            first, last, other = heappop(self._next)
            if first == start and last >= end:
                number = other
            end = max(end, last)
            self._search(other, first + 1)
        return start, end, self._candidates[number][0].name

    def _search(self, number: int, place: int) -> None:
        match = self._candidates[number][1].first(self._window, place)
        if match is not None:
            heappush(self._next, (*match, number))


class PrefixIndex:
    """The prefixes of every form of every value, to hold back only the end that may begin a value.

    A verbatim value counts from its first byte on, another form from its third: nearly every
    letter begins some form of some value, and a terminal that waits for each would be unusable.

    The time at which bytes pass discloses how much of a guess is right to an attacker who chooses
    the bytes: never use this index between code and a server that is not trusted (see
    `egress.inspection.body_filters`).
    """

    def __init__(self, anchors: AnchorIndex) -> None:
        self._pieces = anchors.pieces
        self._max_bytes = anchors.max_bytes

    def prefix_start(self, data: bytes, start: int = 0) -> int:
        """The first position from `start` on whose rest is the prefix of a form; else the end."""
        if not self._pieces:
            return len(data)
        known = self._beginnings
        last = len(data) - PREFIX_BYTES
        for place in range(max(start, len(data) - self._max_bytes + 1), last + 1):
            wanted = known.get(data[place : place + PREFIX_BYTES])
            if wanted is not None and any(
                piece.forms[number].is_begun(data, place) for piece, number in wanted
            ):
                return place
        for place in range(max(start, last + 1), len(data)):
            if data[place:] in self._first_bytes:
                return place
        return len(data)

    @cached_property
    def _beginnings(self) -> dict[bytes, tuple[tuple[ValuePiece, int], ...]]:
        by_prefix: dict[bytes, dict[tuple[ValuePiece, int], None]] = {}
        for piece in self._pieces:
            for number, form in enumerate(_samples(piece)):
                for beginning in set(form_prefixes(form)):
                    by_prefix.setdefault(beginning, {})[piece, number] = None
        return {beginning: tuple(wanted) for beginning, wanted in by_prefix.items()}

    @cached_property
    def _first_bytes(self) -> frozenset[bytes]:
        lengths = range(1, PREFIX_BYTES)
        return frozenset(piece.value[:length] for piece in self._pieces for length in lengths)


def _samples(piece: ValuePiece) -> tuple[ValueForm, ...]:
    """Forms with the same prefixes as those of the whole piece, in the same order."""
    value = piece.value
    # The middle is left out; the reversed form begins with the end.
    sample = value[:_SAMPLE_BYTES] + value[-_SAMPLE_BYTES:]
    if len(sample) >= len(value) or not value.isascii() or sample == sample[::-1]:
        return piece.forms
    return forms(sample)


def form_prefixes(form: ValueForm) -> Iterator[bytes]:
    """The first PREFIX_BYTES bytes of every spelling of this form."""
    prefixes = {b""}
    for unit in form.units:
        longer = {each + option for each in prefixes for option in unit}
        yield from (each[:PREFIX_BYTES] for each in longer if len(each) >= PREFIX_BYTES)
        prefixes = {each for each in longer if len(each) < PREFIX_BYTES}
        if not prefixes:
            return
