"""The pieces of a passage, by the table of the shipped vectors: vectors.c adds up their rows.

A word is cut from its start into the longest pieces that the table has; of a number there is its
first digit, and of what is no letter each character that is a piece.
"""

from __future__ import annotations

import re

from guard_vectors import MAX_PIECE_BYTES, PieceTable

MOST = 72
"""Pieces of a passage that the attention network may see: its window is shorter."""
_START = " "
"""Before a piece that begins a word."""
# Letters as vectors.c tells them by their first bytes; of a number the first digit is read.
_LETTERS = "[A-Za-z\u00c0-\u1fff\u2040-\u2fff\u3040-\ufeff\uff40-\U0010ffff]+"
_PARTS = re.compile(f"{_LETTERS}|[0-9]+|[^\0- ]")
_WORD = re.compile(_LETTERS)


class PieceSplitter:
    """Finds the numbers of pieces; keeps those of each word, most of which come again."""

    def __init__(self, table: PieceTable) -> None:
        self._numbers: dict[str, int] = {}
        at = 0
        for number, size in enumerate(table.sizes):
            self._numbers.setdefault(table.pieces[at : at + size].decode(), number)
            at += size
        self._known: dict[str, list[int]] = {}

    def pieces(self, passage: str) -> list[int]:
        """Of a passage in lower case."""
        found: list[int] = []
        for part in _PARTS.findall(passage):
            own = self._known.get(part)
            if own is None:
                own = self._known[part] = self._part(part)
            found += own
        return found

    def _part(self, part: str) -> list[int]:
        first = part[0]
        if first.isascii() and first.isdigit():
            return self._cut(first)
        if _WORD.match(part):
            return self._cut(part)
        return [self._numbers[part]] if part in self._numbers else []

    def _cut(self, word: str) -> list[int]:
        found, at, start = list[int](), 0, _START
        while at < len(word):
            for end in range(min(len(word), at + MAX_PIECE_BYTES), at, -1):
                number = self._numbers.get(start + word[at:end])
                if number is not None:
                    found.append(number)
                    at = end
                    break
            else:
                at += not start
            start = ""
        return found
