"""Shared by the finders of personal data: hits, limits, word borders, keywords, forms."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from cellwall.parsing.matching import WordIndex

REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "PT", "BR", "IN", "CH", "AT", "AU")
"""Regions assumed for telephone numbers without a country code."""

UNREAD = "unread"
"""Kind of the last hit when a limit was reached: the rest of the text, which was not searched."""

_LETTERS_AND_DIGITS = frozenset(b"0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_JOINERS = frozenset(b".,-+/:")


@dataclass(frozen=True, slots=True)
class PiiHit:
    """Kind and position of personal data, never the data itself."""

    kind: str
    start: int
    end: int


class CheckBudget:
    """Limits the checks, which cost much more than finding a candidate.

    When it is spent, candidates count as hits without a check: hiding too much is safe.
    """

    def __init__(self, checks: int) -> None:
        self._left = checks

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def take(self, checks: int = 1) -> None:
        self._left -= checks


def stands_alone(data: bytes, start: int, end: int) -> bool:
    """Whether the span is not part of a longer word, number, identifier or version."""
    if start > 0:
        before = data[start - 1]
        if before in _LETTERS_AND_DIGITS:
            return False
        if before in b".-" and start > 1 and data[start - 2] in _LETTERS_AND_DIGITS:
            return False
    if end < len(data):
        after = data[end]
        if after in _LETTERS_AND_DIGITS:
            return False
        if after in _JOINERS and end + 1 < len(data) and _continues(data[end + 1], after):
            return False
    return True


def _continues(character: int, joiner: int) -> bool:
    # `12-34x` is one identifier; `4111…,next` and `4111….Next` are not.
    return character in (_LETTERS_AND_DIGITS if joiner in b"-" else b"0123456789")


@cache
def load_forms() -> dict[str, list[dict[str, Any]]]:
    """The content of `forms.toml`; shared, so it must not be changed."""
    return tomllib.loads((resources.files(__package__) / "forms.toml").read_text("utf-8"))


_PIECE_BYTES = 1 << 20
_SHORT = 4
"""Words up to this length occur inside other words, so they must be whole words."""


@dataclass(frozen=True, slots=True)
class KeywordPlace:
    """One occurrence of a keyword."""

    word: str
    start: int
    end: int


def keyword_places(words: tuple[tuple[str, ...], WordIndex], data: bytes) -> Iterator[KeywordPlace]:
    """All occurrences from left to right, in bounded memory."""
    names, index = words
    longest = max(len(name.encode()) for name in names)
    for piece in range(0, len(data), _PIECE_BYTES):
        before = max(0, piece - longest)
        part = data[before : piece + _PIECE_BYTES]
        for number, last in index.places(part, len(part)):
            end = before + last
            start = end - len(names[number].encode())
            if end > piece and _is_word(data, start, end):
                yield KeywordPlace(names[number], start, end)


def _is_word(data: bytes, start: int, end: int) -> bool:
    if end - start > _SHORT:
        return True
    return not data[start - 1 : start].isalpha() and not data[end : end + 1].isalpha()
