"""Filters that tell which units of records may contain a text. Pure.

A unit is a few dozen consecutive records. Its filter is a Bloom filter of the sequences of four
characters (grams) in their texts. The filters of a chunk of units are stored by position: a row has
one bit per unit, so that a search reads the rows of its grams and combines them with AND. All rows
of a gram lie in one page, which is the unit of reading and of encryption.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from cellwall.audit.searchable_text import MIN_OPAQUE_CHARACTERS, without_opaque

PAGES = 32
PAGE_ROWS = 512
MAX_UNITS = 512
MAX_UNIT_GRAMS = 1024
"""With four of 16,384 rows for each gram, one unit in four hundred has all rows of a gram that it
does not have; two grams of a text err together once in a hundred and sixty thousand."""
MAX_UNIT_RECORDS = 32
MIN_UNIT_BYTES = 16 * 1024
"""Of stored records, so that the filters take an eighth of them at most. Long texts have more grams
in as many bytes: their filters are denser, and err more often."""
GRAM_CHARACTERS = 4
_OPAQUE_KEPT = 8
_OPAQUE_GRAMS = _OPAQUE_KEPT - GRAM_CHARACTERS + 1
_MAX_QUERY_GRAMS = 16
_MAX_CACHED_GRAMS = 32_768
_WIDTH = MAX_UNITS // 8
_ROW_MASK = PAGE_ROWS - 1
_ROW_BITS = PAGE_ROWS.bit_length() - 1
_WORD = (1 << 64) - 1
_RUNS = re.compile(rb"[0-9a-z]++")

Place = tuple[int, int, int, int, int]
"""The page of a gram, and its rows there."""


def add_grams(grams: set[int], text: bytes) -> None:
    """Add the grams that the filter of a unit has for this text, as numbers."""
    short = without_opaque(text, kept=_OPAQUE_KEPT)
    for start in range(GRAM_CHARACTERS):
        end = start + (len(short) - start) // GRAM_CHARACTERS * GRAM_CHARACTERS
        if end > start:
            grams.update(memoryview(short[start:end]).cast("I"))


def query_places(wanted: bytes) -> list[Place]:
    """Places of grams that every text has in which `contains` finds the encoded text; none for a
    text that is too short."""
    places = [gram_place(wanted[at : at + GRAM_CHARACTERS]) for at in _certain_grams(wanted)]
    distinct = sorted(set(places))
    step = -(-len(distinct) // _MAX_QUERY_GRAMS) or 1
    return distinct[::step]


def _certain_grams(wanted: bytes) -> list[int]:
    """Where grams begin that are never left out as the inner part of an id or digest.

    A run of letters and digits in the wanted text is part of one run of the record. If that one is
    opaque, both begin at the same character, or the match would begin inside. So the first grams of
    the run are in the filter. A short run that ends within the wanted text is not opaque.
    """
    left_out: set[int] = set()
    for run in _RUNS.finditer(wanted):
        if run.end() == len(wanted) or run.end() - run.start() >= MIN_OPAQUE_CHARACTERS:
            left_out.update(range(run.start() + _OPAQUE_GRAMS, run.end()))
    count = len(wanted) - GRAM_CHARACTERS + 1
    return [at for at in range(count) if at not in left_out]


def gram_place(gram: bytes) -> Place:
    """The place of four characters."""
    return _place(memoryview(gram).cast("I")[0])


def _place(gram: int) -> Place:
    # Two rounds of multiplication and shift; whoever can choose texts can make grams collide, and
    # wins only that the search reads more units.
    mixed = gram * 0x9E3779B97F4A7C15 & _WORD
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & _WORD
    mixed ^= mixed >> 32
    return (
        (mixed >> 40) % PAGES,
        mixed & _ROW_MASK,
        mixed >> _ROW_BITS & _ROW_MASK,
        mixed >> 2 * _ROW_BITS & _ROW_MASK,
        mixed >> 3 * _ROW_BITS & _ROW_MASK,
    )


class FilterRows:
    """The filters of a chunk while it grows: rows of `MAX_UNITS` bits."""

    def __init__(self) -> None:
        self._rows = bytearray(PAGES * PAGE_ROWS * _WIDTH)
        self._offsets: dict[int, tuple[int, int, int, int]] = {}

    def add(self, unit: int, grams: Iterable[int]) -> None:
        """Set the bits of a unit."""
        rows, offsets, bit = self._rows, self._offsets, 1 << unit % 8
        byte = unit // 8
        for gram in grams:
            found = offsets.get(gram)
            if found is None:
                if len(offsets) >= _MAX_CACHED_GRAMS:
                    offsets.clear()
                page, one, two, three, four = _place(gram)
                start = page * PAGE_ROWS
                found = offsets[gram] = (
                    (start + one) * _WIDTH,
                    (start + two) * _WIDTH,
                    (start + three) * _WIDTH,
                    (start + four) * _WIDTH,
                )
            one, two, three, four = found
            rows[one + byte] |= bit
            rows[two + byte] |= bit
            rows[three + byte] |= bit
            rows[four + byte] |= bit

    def pages(self, units: int) -> list[bytes]:
        """The pages, with rows that are as wide as this many units need."""
        width, page_bytes = row_bytes(units), PAGE_ROWS * _WIDTH
        found = []
        for start in range(0, len(self._rows), page_bytes):
            page = bytes(self._rows[start : start + page_bytes])
            found.append(_narrow(page, width))
        return found

    @classmethod
    def of(cls, pages: Sequence[bytes], units: int) -> FilterRows:
        """Rows that go on with the pages of a chunk."""
        rows, width = cls(), row_bytes(units)
        gap = bytes(_WIDTH - width)
        rows._rows = bytearray(  # a constructor of its own class
            b"".join(
                page[at : at + width] + gap for page in pages for at in range(0, len(page), width)
            )
        )
        return rows


def row_bytes(units: int) -> int:
    """How wide a row is."""
    return -(-units // 8)


def matching_units(pages: dict[int, bytes], places: Sequence[Place], units: int) -> list[int]:
    """The units that may have all grams of these places, the last first."""
    width, found = row_bytes(units), (1 << units) - 1
    for number, *rows in places:
        page = pages[number]
        for row in rows:
            found &= int.from_bytes(page[row * width : (row + 1) * width], "little")
        if not found:
            return []
    return [unit for unit in range(units - 1, -1, -1) if found >> unit & 1]


def _narrow(page: bytes, width: int) -> bytes:
    if width == _WIDTH:
        return page
    starts = range(0, len(page) + 1, _WIDTH)
    return b"".join([page[start : start + width] for start, _ in pairwise(starts)])
