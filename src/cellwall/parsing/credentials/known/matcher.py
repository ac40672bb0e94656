"""Finds known values in data, and where a value may begin at the end of the data.

Every form of a value has a substring, the anchor, that is visible in a simple view of the data: the
data as it is, with numeric escapes decoded, or with only letters and digits. Without the anchor the
form is absent; with it, `encodings.Form` decides.

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

from cellwall.parsing.credentials.known.encodings import (
    PLAIN,
    Encoding,
    Form,
    cores,
    forms,
    heads,
    max_bytes,
    pieces,
)

_SWALLOWED_BYTES = 2
_ANCHOR_SHORTEST_BYTES = 4
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
"""Hexadecimal digits of the bytes that anchors are made of; others need not be undone."""
_ESCAPES = {
    mark: re.compile(b"%s(?:2[DEde]|3[0-9]|[46][1-9A-Fa-f]|5[0-9AFaf]|7[0-9Aa])" % re.escape(mark))
    for mark in (b"%", b"\\u00", b"\\x")
}
"""What undoing begins with, and whether it is worth it: encoders seldom escape letters."""

_ENTITY = re.compile(rb"&#(?:[xX]0*([2-7][0-9A-Fa-f])|0*([0-9]{2,3}));")

_TEXT: tuple[Encoding, ...] = ("raw", "url", "json", "escaped", "html")

_MAX_LOOSE = 12
"""Pieces of a value that are searched for without an anchor: each costs milliseconds to make ready,
and the proxy waits for it. More do not fit into a field of a request."""
_SIEVE_FROM = 64
"""Anchors in one view, beyond which looking at the data once is cheaper than once for each."""


@dataclass(frozen=True)
class Piece:
    """A value, or a part of a long one. `repr` does not show it."""

    name: str
    value: bytes
    number: int = 0
    """Within the value."""

    def __repr__(self) -> str:
        return f"Piece({self.name})"

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """Every form; made when first needed, for most values are never met."""
        return forms(self.value)


Wanted = tuple[Piece, tuple[Encoding, ...]]
"""Which forms of a value an anchor stands for."""


class AnchorIndex:
    """The anchors of all values, by view."""

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        self.pieces = tuple(
            Piece(name, piece, number)
            for name, value in values
            for number, piece in enumerate(pieces(value))
        )
        self._text = _View("Q")
        self._base64 = _View("I")
        self._hex = _View("Q")
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
        """Of any form of any value, by their lengths alone; 0 if there is none."""
        longest = max((len(piece.value) for piece in self.pieces), default=0)
        return max_bytes(longest) if longest else 0

    def candidates(self, data: bytes) -> Iterator[tuple[Piece, Form]]:
        """What may stand in `data`; what is not named here does not."""
        if not self.pieces:
            return
        yield from self._text.met_in(data, data, *_undone(data))
        unwrapped = _blanked(data, _LINE_ENDS)
        yield from self._base64.met_in(data, unwrapped.translate(None, _NOT_ALNUM))
        unmarked = _blanked(unwrapped, _HEX_MARKS)
        yield from self._hex.met_in(data, unmarked.translate(_HEX_LOWER, _NOT_HEX))


class _View:
    """Anchors that are searched for in the same view of the data."""

    def __init__(self, gram: Literal["I", "Q"]) -> None:
        # What the sieve cuts the data into: numbers of four or of eight bytes. However an anchor
        # lies over such data, one number is all its own if it is as long as nearly two of them.
        self._gram = gram
        self._gram_bytes = struct.calcsize(gram)
        self._sieved_from_bytes = 2 * self._gram_bytes - 1
        self._anchored: dict[bytes, list[Wanted]] = defaultdict(list)
        self._loose: dict[Wanted, re.Pattern[bytes]] = {}
        """Values without a useful anchor: how their forms begin is the best there is."""

    def add(self, anchor: bytes, piece: Piece, encodings: tuple[Encoding, ...]) -> None:
        wanted = (piece, encodings)
        if len(anchor) >= _ANCHOR_SHORTEST_BYTES:
            self._anchored[anchor].append(wanted)
        elif piece.number < _MAX_LOOSE:
            self._loose[wanted] = heads(form for _, form in _forms(wanted))

    def met_in(self, data: bytes, *views: bytes) -> Iterator[tuple[Piece, Form]]:
        met = {wanted: None for wanted, begun in self._loose.items() if begun.search(data)}
        for view in views:
            for anchor in self._worth_a_look(view):
                if anchor in view:
                    met.update(dict.fromkeys(self._anchored[anchor]))
        for wanted in met:
            yield from _forms(wanted)

    def _worth_a_look(self, view: bytes) -> Iterable[bytes]:
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
                # Of any cut, one number lies within so many bytes: no more of a long one is needed.
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


def _forms(wanted: Wanted) -> Iterator[tuple[Piece, Form]]:
    piece, encodings = wanted
    return ((piece, form) for form in piece.forms if form.encoding in encodings)


def _undone(data: bytes) -> Iterator[bytes]:
    """The data with the numbered escapes of one kind undone, for each kind that is in it."""
    for mark, worth_it in _ESCAPES.items():
        if worth_it.search(data):
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


def _blanked(data: bytes, marks: Iterable[bytes]) -> bytes:
    # A blank instead of nothing: else two halves could join to another mark and swallow more.
    for mark in marks:
        data = data.replace(mark, b" ")
    return data


PREFIX_BYTES = 3
"""Looked up at every place near the end: few enough to list, enough to be seldom met."""
_SAMPLE_BYTES = 8
"""Of a value; more than the first bytes of any of its forms come from."""


class Matches:
    """Start, end and name of what stands in a window, each form searched through once.

    Forms that overlap are one: one value may begin another, or end where another begins. Its name
    is that of the one that begins first, and of those of the longest.
    """

    def __init__(self, anchors: AnchorIndex, window: bytes) -> None:
        self._window = window
        self._candidates = list(anchors.candidates(window))
        self._next: list[tuple[int, int, int]] = []
        for number in range(len(self._candidates)):
            self._search(number, 0)

    def first(self, place: int) -> tuple[int, int, str] | None:
        """The first that begins at `place` or behind it; `place` never goes back."""
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
    """How every form of every value begins.

    A value as it is has begun with its first byte, another form of it with its third: of single
    letters nearly all begin some form of some value, and a terminal that waits for each is none.

    For whoever may keep back an end only where it could be the beginning of a value. That tells
    how far a guess is right to whoever can choose the bytes and see when they pass: never use it
    between code and a server that is not trusted (see `egress.values.echoes`).
    """

    def __init__(self, anchors: AnchorIndex) -> None:
        self._pieces = anchors.pieces
        self._max_bytes = anchors.max_bytes

    def begun(self, data: bytes, start: int = 0) -> int:
        """The first place from `start` on from which the rest is a part of a form; else the end."""
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
    def _beginnings(self) -> dict[bytes, tuple[tuple[Piece, int], ...]]:
        found: dict[bytes, dict[tuple[Piece, int], None]] = {}
        for piece in self._pieces:
            for number, form in enumerate(_samples(piece)):
                for beginning in set(form_prefixes(form)):
                    found.setdefault(beginning, {})[piece, number] = None
        return {beginning: tuple(wanted) for beginning, wanted in found.items()}

    @cached_property
    def _first_bytes(self) -> frozenset[bytes]:
        lengths = range(1, PREFIX_BYTES)
        return frozenset(piece.value[:length] for piece in self._pieces for length in lengths)


def _samples(piece: Piece) -> tuple[Form, ...]:
    """Forms that begin as those of the whole piece do, in the same order."""
    value = piece.value
    # Its middle is left out; the end is where the reversed form begins.
    sample = value[:_SAMPLE_BYTES] + value[-_SAMPLE_BYTES:]
    if len(sample) >= len(value) or not value.isascii() or sample == sample[::-1]:
        return piece.forms
    return forms(sample)


def form_prefixes(form: Form) -> Iterator[bytes]:
    """The first bytes of all that can be written in this form."""
    begun = {b""}
    for unit in form.units:
        longer = {each + option for each in begun for option in unit}
        yield from (each[:PREFIX_BYTES] for each in longer if len(each) >= PREFIX_BYTES)
        begun = {each for each in longer if len(each) < PREFIX_BYTES}
        if not begun:
            return
