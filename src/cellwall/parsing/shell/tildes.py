"""Tilde expansion, as bash does it: behind braces, before all other expansions. Pure.

`~` and `~/…` are the home directory. `~user` is refused: it is the home of another person, and the
machine's users decide which directory that is. `~+` and the like are not known here, nor is a tilde
with quotes or expansions right behind it: bash takes that for a letter and zsh does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from cellwall.parsing.shell.braces import Mark, Token
from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.quoting import Piece
from cellwall.parsing.shell.words import UNKNOWN

_ASSIGNS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_MAY_ASSIGN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[|\+?=)")
_USER = re.compile(r"~[A-Za-z_][A-Za-z0-9_.-]*")
_UNSURE = Token((Piece(UNKNOWN),))


class Place(Enum):
    """Where a word stands: that decides which of its tildes mean something."""

    ARGUMENT = "a word of a command; in `name=~/a:~/b` each is expanded"
    VALUE = "behind the `=` of an assignment, or a here-string: at its begin and behind each `:`"
    ELEMENT = "of an array, or a pattern: only at its begin"


def expand_tildes(marks: Sequence[Mark], home: str, place: Place, *, is_braced: bool) -> list[Mark]:
    """`is_braced`: braces have made this word, which bash no longer takes for `name=…` then."""
    if "~" not in marks:
        return list(marks)
    found: list[Mark] = []
    leading = "".join(_leading(marks))
    starts, doubtful = {0}, set[int]()
    colons = {at + 1 for at, mark in enumerate(marks) if mark == ":"}
    if place is Place.VALUE:
        starts |= colons
    elif place is Place.ARGUMENT and not is_braced and (name := _ASSIGNS.match(leading)):
        starts |= {name.end()} | {at for at in colons if at > name.end()}
    elif place is Place.ARGUMENT and _MAY_ASSIGN.match(leading):
        doubtful = colons | {at + 1 for at, mark in enumerate(marks) if mark == "="}
    at = 0
    while at < len(marks):
        mark = marks[at]
        if mark == "~" and at in starts | doubtful:
            end, token = _prefix(marks, at, home)
            # Whether a colon ends the prefix depends on what follows it, but in an assignment.
            is_odd = place is not Place.VALUE and at == 0 and marks[end : end + 1] == [":"]
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


def _prefix(marks: Sequence[Mark], start: int, home: str) -> tuple[int, Token]:
    """Where the tilde and the name behind it end, and what they become."""
    at = start + 1
    while at < len(marks) and marks[at] not in {"/", ":"}:
        if marks[at] == "[" and at == start + 1:
            raise NotUnderstood("zsh runs a function for ~[…]; put it between quotes")
        at += 1
    if at == start + 1:
        return at, Token((Piece(home),))
    # The home of a user, a directory of the stack, or the text as it stands.
    is_plain = all(isinstance(mark, str) for mark in marks[start:at])
    name = "".join(mark for mark in marks[start:at] if isinstance(mark, str))
    if is_plain and _USER.fullmatch(name):
        raise NotUnderstood(f"{name} is the home folder of another user; write the path itself")
    return (at, _UNSURE) if is_plain else (start + 1, _UNSURE)
