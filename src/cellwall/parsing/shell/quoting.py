"""How bash takes quotes and escapes away. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.words import UNKNOWN, Join, Number, Origin

_NAMED = dict(zip("abeEfnrtv\\'\"", "\a\b\x1b\x1b\f\n\r\t\v\\'\"", strict=True))
_ansi = re.compile(
    r"""\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})"""
    r"""|([abeEfnrtv\\'"])|(.))""",
    re.DOTALL,
)
_PRINTABLE = range(0x20, 0x7F)
_CONTROL = frozenset("\a\b\x1b\f\r\v")
_WHOLE = len(r"\033")
_NOTHING = (r"\0", r"\00", r"\000", r"\x00")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a word. In an active one, not quoted, wildcards mean something."""

    text: str
    is_active: bool = False
    number: Number = Number.NONE
    origin: Origin = Origin.ANYWHERE
    is_found: bool = False
    """A path that wildcards have found before, as a variable holds it."""
    join: Join = Join.NONE
    is_gap: bool = False
    """Unquoted and possibly empty; a word made only of this is dropped."""


def unquoted(text: str) -> Iterator[Piece]:
    """Text outside of quotes, where a backslash takes the meaning of what follows."""
    start, at = 0, text.find("\\")
    while at >= 0:
        yield Piece(text[start:at], is_active=True)
        following = text[at + 1 : at + 2]
        if following != "\n":
            yield Piece(following)
        start = at + 2
        at = text.find("\\", start)
    yield Piece(text[start:], is_active=True)


def in_double_quotes(text: str, special: str = '$`"\\') -> str:
    """Text between double quotes, where a backslash means itself but before a few."""
    return re.sub(
        r"\\(.)",
        lambda found: "" if found[1] == "\n" else found[1] if found[1] in special else found[0],
        text,
        flags=re.DOTALL,
    )


def ansi(text: str) -> str:
    r"""What stands in `$'…'`, where each escape is one that all shells read alike; unknown with a
    control character in it, which no name that matters has.

    bash reads `\x{69}` as one character, ends the text at a NUL, takes `\400` modulo 256, makes
    `\c…` a control character and keeps the backslash of others; zsh differs in most of these.
    """
    if text in _NOTHING:  # empty in bash, a NUL in zsh
        return UNKNOWN
    found = _ansi.sub(_meant, text)
    return UNKNOWN if UNKNOWN in found else found


def _meant(found: re.Match[str]) -> str:
    for digits, base in zip(found.groups()[:4], (16, 16, 16, 8), strict=True):
        if digits is not None:
            number = int(digits, base)
            if number in _PRINTABLE or number in (0x09, 0x0A):
                return chr(number)
            if chr(number) in _CONTROL and len(found[0]) == _WHOLE:
                return UNKNOWN
    if found[5] is not None:
        return _NAMED[found[5]]
    raise NotUnderstood(
        f"shells read the escape {found[0]} of $'…' differently; write the character itself"
    )
