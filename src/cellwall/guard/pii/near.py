"""Where words stand that say what follows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.parsing.matching import WordIndex

_PIECE_BYTES = 1 << 20
_SHORT = 4
"""Words up to this long stand inside many others, so they must stand by themselves."""


@dataclass(frozen=True, slots=True)
class Place:
    """One occurrence of a word."""

    word: str
    start: int
    end: int


def places(words: tuple[tuple[str, ...], WordIndex], data: bytes) -> Iterator[Place]:
    """All occurrences from left to right, in memory that does not grow with the text."""
    names, index = words
    longest = max(len(name.encode()) for name in names)
    for piece in range(0, len(data), _PIECE_BYTES):
        before = max(0, piece - longest)
        part = data[before : piece + _PIECE_BYTES]
        for number, last in index.places(part, len(part)):
            end = before + last
            start = end - len(names[number].encode())
            if end > piece and _stands(data, start, end):
                yield Place(names[number], start, end)


def _stands(data: bytes, start: int, end: int) -> bool:
    if end - start > _SHORT:
        return True
    return not data[start - 1 : start].isalpha() and not data[end : end + 1].isalpha()
