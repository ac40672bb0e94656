"""Brace expansion, as bash does it: on the text of a word, before all other expansions. Pure.

What braces put together is read again by bash, so `{$,a}{x@P}` is `${x@P}`, `$x{a,b}` is `$xa` and
`{~/a,b}` begins with a tilde. A word is expanded here only if it consists of forms that mean the
same wherever braces put them:

    literal characters, but no `$` on its own      a\\ b   'a b'   "a b"   $'a b'
    `$name`, not followed by a name character      ${name}   "…$name…${name}…"
    `$(…)` without quotes, braces or commas        {a,b}   {1..9}   {01..10..2}   {a..f}   {A..F}

Braces are balanced in it, and each pair has a comma or one of these ranges. `{a..Z}` has `\\` and a
backquote among its letters, which bash would then read. All else with braces is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.quoting import Piece

_MAX_WORDS = 256
_MAX_MARKS = 2000
_MAX_DEPTH = 8
_NUMBERS = re.compile(r"(-?[0-9]{1,6})\.\.(-?[0-9]{1,6})(?:\.\.(-?[0-9]{1,6}))?")
_LETTERS = re.compile(r"(?:([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z]))(?:\.\.(-?[0-9]{1,6}))?")
_is_name_sign = re.compile(r"[A-Za-z0-9_]").fullmatch
_QUOTE = "; put the word between quotes, or write its words one by one"


@dataclass(frozen=True, slots=True)
class Token:
    """A part of a word that is quoted, or an expansion: to braces it is one sign."""

    pieces: tuple[Piece, ...]
    is_split: bool = False
    is_movable: bool = True
    """It means the same wherever braces put it."""
    is_short: bool = False
    """`$name`: name characters behind it would belong to the name."""


Mark: TypeAlias = str | Token
"""One character that is not quoted, or a token."""


def expand_braces(marks: Sequence[Mark]) -> list[list[Mark]]:
    """The words that one word becomes; the word itself where bash sees no braces in it."""
    if not may_be_braced(marks):
        return [list(marks)]
    if len(marks) > _MAX_MARKS:
        raise NotUnderstood("a word with braces is too long")
    for mark in marks:
        if mark == "$" or (isinstance(mark, Token) and not mark.is_movable):
            raise NotUnderstood(f"braces could make another expansion out of this one{_QUOTE}")
    made, at = _sequence(marks, 0, 0)
    if at != len(marks):
        raise NotUnderstood(f"its braces can be read in two ways{_QUOTE}")
    for each in made:
        for left, right in pairwise(each):
            is_short = isinstance(left, Token) and left.is_short
            if is_short and isinstance(right, str) and _is_name_sign(right):
                raise NotUnderstood("braces change the name in `$name{a,b}`; write `${name}{a,b}`")
    return made


def may_be_braced(marks: Sequence[Mark]) -> bool:
    """Whether braces stand around a comma or two dots, none of them quoted."""
    if "{" not in marks:
        return False
    inside = marks[marks.index("{") + 1 :]
    if "}" not in inside:
        return False
    inside = inside[: len(inside) - list(reversed(inside)).index("}") - 1]
    return "," in inside or (".", ".") in pairwise(inside)


def _sequence(marks: Sequence[Mark], at: int, depth: int) -> tuple[list[list[Mark]], int]:
    """What can stand from here to the comma or brace that ends it, or to the end of the word."""
    if depth > _MAX_DEPTH:
        raise NotUnderstood("its braces are nested too deeply")
    made: list[list[Mark]] = [[]]
    while at < len(marks):
        mark = marks[at]
        if mark == "}" or (mark == "," and depth):
            break
        if mark == "{":
            options, at = _group(marks, at, depth + 1)
            if len(made) * len(options) > _MAX_WORDS:
                raise NotUnderstood("its braces make too many words")
            made = [before + option for before, option in product(made, options)]
        else:
            for each in made:
                each.append(mark)
            at += 1
    return made, at


def _group(marks: Sequence[Mark], start: int, depth: int) -> tuple[list[list[Mark]], int]:
    """The braces that begin here: what they stand for, and where they end."""
    made, at = _sequence(marks, start + 1, depth)
    has_comma = False
    while at < len(marks) and marks[at] == ",":
        has_comma = True
        more, at = _sequence(marks, at + 1, depth)
        made += more
    if at >= len(marks):
        raise NotUnderstood(f"its braces can be read in two ways{_QUOTE}")
    if has_comma:
        return made, at + 1
    return _counted(marks[start + 1 : at]), at + 1


def _counted(inner: Sequence[Mark]) -> list[list[Mark]]:
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
        raise NotUnderstood("bash counts up to no variable in {…}; write $(seq …)")
    raise NotUnderstood(f"its braces can be read in two ways{_QUOTE}")


def _width(first: str, last: str) -> int:
    """A zero in front of one of the numbers makes all of them as long as the longer one."""
    is_padded = any(len(each) > 1 and each.lstrip("-").startswith("0") for each in (first, last))
    if is_padded and "-" in first + last:
        raise NotUnderstood(f"its braces count with zeros below zero{_QUOTE}")
    return max(len(first), len(last)) if is_padded else 0


def _steps(first: int, last: int, by: str | None) -> range:
    step = abs(int(by or 1)) or 1
    if abs(last - first) // step >= _MAX_WORDS:
        raise NotUnderstood("its braces make too many words")
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
