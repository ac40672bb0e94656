"""A word while it is put together out of its pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cellwall.parsing.shell.braces import Mark, Token
from cellwall.parsing.shell.quoting import Piece
from cellwall.parsing.shell.words import UNKNOWN, Join, Number, Origin, Word

_NOT_ONE_WORD = frozenset(" \t\n*?[\\")
"""What an unquoted value may hold, and then becomes other words; a backslash starts a pattern."""


@dataclass(slots=True)
class Draft:
    """What one expansion, or one quoted part, becomes."""

    pieces: list[Piece] = field(default_factory=list)
    is_split: bool = False

    def unknown(self, *, is_quoted: bool, origin: Origin = Origin.ANYWHERE) -> None:
        self.pieces.append(Piece(UNKNOWN, origin=origin))
        self.is_split = self.is_split or not is_quoted

    def number(self, number: Number, *, is_quoted: bool) -> None:
        may_be_empty = number in (Number.COUNT_OR_NOTHING, Number.PROCESSES, Number.OBJECT)
        is_gap = may_be_empty and not is_quoted
        self.pieces.append(Piece(UNKNOWN, number=number, is_gap=is_gap))

    def value(self, word: Word, *, is_quoted: bool) -> None:
        """Of a variable."""
        if word.number is not Number.NONE:
            self.number(word.number, is_quoted=is_quoted)
        elif word == Word("") and not is_quoted:
            pass  # unquoted and empty: a word made only of this is dropped
        elif not is_quoted and not (word.is_literal and _NOT_ONE_WORD.isdisjoint(word.text)):
            # Split at blanks; a file may have blanks in its name as well.
            self.unknown(is_quoted=False)
        elif word.has_glob and not word.is_split:  # one of the names that match
            found = Piece(word.text, is_active=True, is_found=True, join=word.join)
            self.pieces.append(found)
        elif word.is_split:
            self.unknown(is_quoted=is_quoted)
        else:
            self.pieces.append(Piece(word.text))


def finish(marks: Sequence[Mark]) -> Word | None:
    """The word that these make; None where unquoted expansions have left nothing."""
    pieces = list(_pieces(marks))
    if not pieces:
        return None
    is_split = any(isinstance(mark, Token) and mark.is_split for mark in marks)
    text = "".join(piece.text for piece in pieces)
    active = "".join(piece.text for piece in pieces if piece.is_active)
    has_glob = "*" in active or "?" in active or ("[" in active and "]" in text)
    number = Number.NONE
    if UNKNOWN in text:
        solid = [piece for piece in pieces if piece.text]
        number = solid[0].number if len(solid) == 1 else number
        is_split = is_split or all(piece.is_gap for piece in solid)
    origins = {piece.origin for piece in pieces if UNKNOWN in piece.text}
    origin = origins.pop() if len(origins) == 1 else Origin.ANYWHERE
    return Word(text, is_split, has_glob, number, origin, _join(pieces))


def _join(pieces: Sequence[Piece]) -> Join:
    """Of what wildcards have found before with the text around it."""
    joins = [Join.NONE]
    for at, piece in enumerate(pieces):
        if not piece.is_found:
            continue
        before = "".join(each.text for each in pieces[:at])
        after = "".join(each.text for each in pieces[at + 1 :])
        is_whole = before[-1:] in {"", "/"} and after[:1] in {"", "/"}
        around = Join.FOLDER if is_whole else Join.NAME
        joins += [piece.join, around if before or after else Join.NONE]
    return max(joins)


def _pieces(marks: Sequence[Mark]) -> Iterator[Piece]:
    letters: list[str] = []
    for mark in marks:
        if isinstance(mark, str):
            letters.append(mark)
            continue
        if letters:
            yield Piece("".join(letters), is_active=True)
            letters.clear()
        yield from mark.pieces
    if letters:
        yield Piece("".join(letters), is_active=True)
