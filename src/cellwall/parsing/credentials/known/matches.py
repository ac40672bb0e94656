"""Where known values stand in some data, and where at its end one may just have begun."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from heapq import heappop, heappush

from cellwall.parsing.credentials.known.anchors import AnchorIndex, Piece
from cellwall.parsing.credentials.known.encodings import Form, forms

BEGINNING_BYTES = 3
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


class Beginnings:
    """How every form of every value begins.

    A value as it is has begun with its first byte, another form of it with its third: of single
    letters nearly all begin some form of some value, and a terminal that waits for each is none.

    For whoever may keep back an end only where it could be the beginning of a value. That tells
    how far a guess is right to whoever can choose the bytes and see when they pass: never use it
    between code and a server that is not trusted (see `egress.inspection.echo_filter`).
    """

    def __init__(self, anchors: AnchorIndex) -> None:
        self._pieces = anchors.pieces
        self._max_bytes = anchors.max_bytes

    def begun(self, data: bytes, start: int = 0) -> int:
        """The first place from `start` on from which the rest is a part of a form; else the end."""
        if not self._pieces:
            return len(data)
        known = self._beginnings
        last = len(data) - BEGINNING_BYTES
        for place in range(max(start, len(data) - self._max_bytes + 1), last + 1):
            wanted = known.get(data[place : place + BEGINNING_BYTES])
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
                for beginning in set(beginnings(form)):
                    found.setdefault(beginning, {})[piece, number] = None
        return {beginning: tuple(wanted) for beginning, wanted in found.items()}

    @cached_property
    def _first_bytes(self) -> frozenset[bytes]:
        lengths = range(1, BEGINNING_BYTES)
        return frozenset(piece.value[:length] for piece in self._pieces for length in lengths)


def _samples(piece: Piece) -> tuple[Form, ...]:
    """Forms that begin as those of the whole piece do, in the same order."""
    value = piece.value
    # Its middle is left out; the end is where the reversed form begins.
    sample = value[:_SAMPLE_BYTES] + value[-_SAMPLE_BYTES:]
    if len(sample) >= len(value) or not value.isascii() or sample == sample[::-1]:
        return piece.forms
    return forms(sample)


def beginnings(form: Form) -> Iterator[bytes]:
    """The first bytes of all that can be written in this form."""
    begun = {b""}
    for unit in form.units:
        longer = {each + option for each in begun for option in unit}
        yield from (each[:BEGINNING_BYTES] for each in longer if len(each) >= BEGINNING_BYTES)
        begun = {each for each in longer if len(each) < BEGINNING_BYTES}
        if not begun:
            return
