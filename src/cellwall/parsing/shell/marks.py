"""Brace and tilde expansion of one word, and the word that is left. Pure.

Braces are expanded as bash expands them: on the text of a word, before all other expansions.
Bash reads the result again, so `{$,a}{x@P}` is `${x@P}`, `$x{a,b}` is `$xa` and `{~/a,b}` begins
with a tilde. A word is expanded here only if braces cannot change the meaning of its forms:

    literal characters, but no `$` on its own      a\\ b   'a b'   "a b"   $'a b'
    `$name`, not followed by a name character      ${name}   "…$name…${name}…"
    `$(…)` without quotes, braces or commas        {a,b}   {1..9}   {01..10..2}   {a..f}   {A..F}

The braces must balance, and each pair needs a comma or one of these ranges. `{a..Z}` includes
`\\` and a backquote, which bash would then interpret. Every other word with braces is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise, product
from typing import TypeAlias

from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.words import UNKNOWN, Join, Number, Origin, Word, WordPart

_MAX_WORDS = 256
_MAX_MARKS = 2000
_MAX_DEPTH = 8
_NUMBERS = re.compile(r"(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})(?:\.\.(-?[0-9]{1,6}))?")
_LETTERS = re.compile(r"(?:([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z]))(?:\.\.(-?[0-9]{1,6}))?")
_is_name_sign = re.compile(r"[A-Za-z0-9_]").fullmatch
_QUOTE = "; quote the word, or write its words one by one"


@dataclass(frozen=True, slots=True)
class WordToken:
    """A quoted part of a word, or an expansion: brace expansion treats either as one character."""

    pieces: tuple[WordPart, ...]
    is_split: bool = False
    is_movable: bool = True
    """Brace expansion cannot change its meaning."""
    is_short: bool = False
    """`$name`: name characters behind it would belong to the name."""


Mark: TypeAlias = str | WordToken
"""One unquoted character, or a token."""


def expand_braces(marks: Sequence[Mark]) -> list[list[Mark]]:
    """The words that one word expands to; the word itself where bash sees no braces."""
    if not may_be_braced(marks):
        return [list(marks)]
    if len(marks) > _MAX_MARKS:
        raise NotUnderstood("a word with braces is too long to expand")
    for mark in marks:
        if mark == "$" or (isinstance(mark, WordToken) and not mark.is_movable):
            raise NotUnderstood(f"braces could change an expansion of the word{_QUOTE}")
    made, at = _sequence(marks, 0, 0)
    if at != len(marks):
        raise NotUnderstood(f"the braces of a word are ambiguous{_QUOTE}")
    for each in made:
        for left, right in pairwise(each):
            is_short = isinstance(left, WordToken) and left.is_short
            if is_short and isinstance(right, str) and _is_name_sign(right):
                raise NotUnderstood("braces change the name in `$name{a,b}`; write `${name}{a,b}`")
    return made


def may_be_braced(marks: Sequence[Mark]) -> bool:
    """Whether unquoted braces enclose an unquoted comma or two dots."""
    if "{" not in marks:
        return False
    inside = marks[marks.index("{") + 1 :]
    if "}" not in inside:
        return False
    inside = inside[: len(inside) - list(reversed(inside)).index("}") - 1]
    return "," in inside or (".", ".") in pairwise(inside)


def _sequence(marks: Sequence[Mark], at: int, depth: int) -> tuple[list[list[Mark]], int]:
    """The alternatives from here to the comma or brace that ends them, or to the end."""
    if depth > _MAX_DEPTH:
        raise NotUnderstood("the braces of a word are nested too deeply")
    made: list[list[Mark]] = [[]]
    while at < len(marks):
        mark = marks[at]
        if mark == "}" or (mark == "," and depth):
            break
        if mark == "{":
            options, at = _group(marks, at, depth + 1)
            if len(made) * len(options) > _MAX_WORDS:
                raise NotUnderstood("the braces of a word expand to too many words")
            made = [before + option for before, option in product(made, options)]
        else:
            for each in made:
                each.append(mark)
            at += 1
    return made, at


def _group(marks: Sequence[Mark], start: int, depth: int) -> tuple[list[list[Mark]], int]:
    """The alternatives of the braces that begin here, and the end of the braces."""
    made, at = _sequence(marks, start + 1, depth)
    has_comma = False
    while at < len(marks) and marks[at] == ",":
        has_comma = True
        more, at = _sequence(marks, at + 1, depth)
        made += more
    if at >= len(marks):
        raise NotUnderstood(f"the braces of a word are ambiguous{_QUOTE}")
    if has_comma:
        return made, at + 1
    return _expand_range(marks[start + 1 : at]), at + 1


def _expand_range(inner: Sequence[Mark]) -> list[list[Mark]]:
    text = "".join(mark if isinstance(mark, str) else "$" for mark in inner)
    if found := _NUMBERS.fullmatch(text):
        first, last = found[1], found[2]
        width = _width(first, last)
        return [
            list(str(number).zfill(width)) for number in _steps(int(first), int(last), found[3])
        ]
    if found := _LETTERS.fullmatch(text):
        first, last = found[1] or found[3], found[2] or found[4]
        return [[chr(number)] for number in _steps(ord(first), ord(last), found[5])]
    if "$" in text and ".." in text:
        raise NotUnderstood("bash expands no variable in a range {…}; write $(seq …)")
    raise NotUnderstood(f"the braces of a word are ambiguous{_QUOTE}")


def _width(first: str, last: str) -> int:
    """A leading zero of one bound pads all numbers to the length of the longer bound."""
    is_padded = any(len(each) > 1 and each.lstrip("-").startswith("0") for each in (first, last))
    if is_padded and "-" in first + last:
        raise NotUnderstood(f"a brace range has leading zeros and negative numbers{_QUOTE}")
    return max(len(first), len(last)) if is_padded else 0


def _steps(first: int, last: int, by: str | None) -> range:
    step = abs(int(by or 1)) or 1
    if abs(last - first) // step >= _MAX_WORDS:
        raise NotUnderstood("the braces of a word expand to too many words")
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


# Tilde expansion in the order of bash: after braces, before all other expansions.
#
# `~` and `~/…` are the home directory. `~user` is refused: it is the home of another user, which
# only the user database knows. `~+` and the like are unknown, and so is a tilde with quotes or
# expansions right after it: bash reads that tilde literally and zsh does not.

_ASSIGNS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_MAY_ASSIGN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[|\+?=)")
_USER = re.compile(r"~[A-Za-z_][A-Za-z0-9_.-]*")
_UNSURE = WordToken((WordPart(UNKNOWN),))


class WordPosition(Enum):
    """The position of a word decides which of its tildes are expanded."""

    ARGUMENT = "a word of a command; in `name=~/a:~/b` each is expanded"
    VALUE = "behind the `=` of an assignment, or a here-string: at its begin and behind each `:`"
    ELEMENT = "of an array, or a pattern: only at its begin"


def expand_tildes(
    marks: Sequence[Mark], home: str, place: WordPosition, *, is_braced: bool
) -> list[Mark]:
    """`is_braced`: brace expansion produced the word, so bash does not read it as `name=…`."""
    if "~" not in marks:
        return list(marks)
    found: list[Mark] = []
    leading = "".join(_leading(marks))
    starts, doubtful = {0}, set[int]()
    colons = {at + 1 for at, mark in enumerate(marks) if mark == ":"}
    if place is WordPosition.VALUE:
        starts |= colons
    elif place is WordPosition.ARGUMENT and not is_braced and (name := _ASSIGNS.match(leading)):
        starts |= {name.end()} | {at for at in colons if at > name.end()}
    elif place is WordPosition.ARGUMENT and _MAY_ASSIGN.match(leading):
        doubtful = colons | {at + 1 for at, mark in enumerate(marks) if mark == "="}
    at = 0
    while at < len(marks):
        mark = marks[at]
        if mark == "~" and at in starts | doubtful:
            end, token = _prefix(marks, at, home)
            # Outside an assignment, the text after a colon decides whether it ends the prefix.
            is_odd = place is not WordPosition.VALUE and at == 0 and marks[end : end + 1] == [":"]
            found.append(_UNSURE if at in doubtful or is_odd else token)
            at = end
        else:
            found.append(mark)
            at += 1
    return found


def _leading(marks: Sequence[Mark]) -> Sequence[str]:
    signs: list[str] = []
    for mark in marks:
        if not isinstance(mark, str):
            break
        signs.append(mark)
    return signs


def _prefix(marks: Sequence[Mark], start: int, home: str) -> tuple[int, WordToken]:
    """The end of the tilde prefix, and the token that replaces the prefix."""
    at = start + 1
    while at < len(marks) and marks[at] not in {"/", ":"}:
        if marks[at] == "[" and at == start + 1:
            raise NotUnderstood("zsh runs a function for ~[…]; quote the word")
        at += 1
    if at == start + 1:
        return at, WordToken((WordPart(home),))
    # The home of a user, a directory of the stack, or literal text.
    is_plain = all(isinstance(mark, str) for mark in marks[start:at])
    name = "".join(mark for mark in marks[start:at] if isinstance(mark, str))
    if is_plain and _USER.fullmatch(name):
        raise NotUnderstood(f"{name} is the home folder of another user; write the path")
    return (at, _UNSURE) if is_plain else (start + 1, _UNSURE)


# A word while it is assembled from its pieces.

_NOT_ONE_WORD = frozenset(" \t\n*?[\\")
"""Characters that turn an unquoted value into other words; a backslash starts a pattern."""


@dataclass(slots=True)
class Draft:
    """The pieces of one expansion, or of one quoted part."""

    pieces: list[WordPart] = field(default_factory=list)
    is_split: bool = False

    def unknown(self, *, is_quoted: bool, origin: Origin = Origin.ANYWHERE) -> None:
        self.pieces.append(WordPart(UNKNOWN, origin=origin))
        self.is_split = self.is_split or not is_quoted

    def number(self, number: Number, *, is_quoted: bool) -> None:
        may_be_empty = number in (Number.COUNT_OR_NOTHING, Number.PROCESSES, Number.OBJECT)
        is_gap = may_be_empty and not is_quoted
        self.pieces.append(WordPart(UNKNOWN, number=number, is_gap=is_gap))

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
            found = WordPart(word.text, is_active=True, is_found=True, join=word.join)
            self.pieces.append(found)
        elif word.is_split:
            self.unknown(is_quoted=is_quoted)
        else:
            self.pieces.append(WordPart(word.text))


def finish(marks: Sequence[Mark]) -> Word | None:
    """The word of these marks; None where unquoted expansions are empty."""
    pieces = list(_pieces(marks))
    if not pieces:
        return None
    is_split = any(isinstance(mark, WordToken) and mark.is_split for mark in marks)
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


def _join(pieces: Sequence[WordPart]) -> Join:
    """How earlier results of wildcards are joined with the text around them."""
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


def _pieces(marks: Sequence[Mark]) -> Iterator[WordPart]:
    letters: list[str] = []
    for mark in marks:
        if isinstance(mark, str):
            letters.append(mark)
            continue
        if letters:
            yield WordPart("".join(letters), is_active=True)
            letters.clear()
        yield from mark.pieces
    if letters:
        yield WordPart("".join(letters), is_active=True)
