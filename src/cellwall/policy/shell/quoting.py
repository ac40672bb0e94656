"""How bash takes quotes and escapes away, and what braces become. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cellwall.policy.shell.parser import NotUnderstood
from cellwall.policy.shell.words import UNKNOWN, Number

_MAX_BRACED = 256
_MAX_MARKS = 2000
_ESCAPES = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))
_ansi = re.compile(
    r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|c(.)|(.))",
    re.DOTALL,
)
_range = re.compile(r"(-?\d{1,6}|[a-zA-Z])\.\.(-?\d{1,6}|[a-zA-Z])(?:\.\.(-?\d{1,6}))?").fullmatch


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a word. In an active one, not quoted, braces and wildcards mean something."""

    text: str
    is_active: bool = False
    number: Number = Number.NONE
    is_gap: bool = False
    """It may become nothing and is not quoted: a word of nothing else is no word then."""


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
    """What stands in `$'…'`. What bash and we might read differently is unknown."""

    def meant(found: re.Match[str]) -> str:
        for digits, base in zip(found.groups()[:4], (16, 16, 16, 8), strict=True):
            if digits is not None:
                number = int(digits, base)
                # NUL ends the text for bash; beyond ASCII a byte is not a character.
                is_plain = 0 < number < 128 or (found[1] is None and found[4] is None)
                return chr(number) if is_plain and 0 < number < 0xD800 else UNKNOWN
        if found[5] is not None:
            return UNKNOWN
        return _ESCAPES.get(found[6], found[0])

    return _ansi.sub(meant, text)


def braced(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """All words that the braces of one word make, as bash does it before anything else."""
    if not any(piece.is_active and "{" in piece.text for piece in pieces):
        return [list(pieces)]
    marks = [(mark, piece.is_active) for piece in pieces for mark in piece.text]
    if len(marks) > _MAX_MARKS:
        raise NotUnderstood("a word with braces is too long")
    return [_joined(each) for each in _expand(marks)]


_Marks = list[tuple[str, bool]]


def _expand(marks: _Marks, depth: int = 0) -> list[_Marks]:
    if depth > 8:
        raise NotUnderstood("its braces are nested too deeply")
    span = _first_braces(marks)
    if span is None:
        return [marks]
    start, end, commas = span
    inner = marks[start + 1 : end]
    if commas:
        cuts = [start, *commas, end]
        options = [
            made
            for left, right in pairwise(cuts)
            for made in _expand(marks[left + 1 : right], depth + 1)
        ]
    else:
        options = _counted("".join(mark for mark, _ in inner))
    rests = _expand(marks[end + 1 :], depth + 1)
    if len(options) * len(rests) > _MAX_BRACED:
        raise NotUnderstood("its braces make too many words")
    return [marks[:start] + option + rest for option in options for rest in rests]


def _first_braces(marks: _Marks) -> tuple[int, int, list[int]] | None:
    """Where the first braces that mean something begin and end, and the commas between."""
    for start, (mark, is_active) in enumerate(marks):
        if not (is_active and mark == "{"):
            continue
        depth, commas = 0, []
        for at in range(start, len(marks)):
            if not marks[at][1]:
                continue
            if marks[at][0] == "{":
                depth += 1
            elif marks[at][0] == "," and depth == 1:
                commas.append(at)
            elif marks[at][0] == "}" and depth > 1:
                depth -= 1
            elif marks[at][0] == "}":
                inner = "".join(each for each, _ in marks[start + 1 : at])
                if commas and start == 0 and marks[1] == ("}", True):
                    # Where a word begins with `{}`, bash takes no notice of it; behind quotes, of
                    # which nothing is left here, it does: `{}p,x` is one word and `''{}p,x}` two.
                    raise NotUnderstood("its braces can be read in two ways")
                if commas or _range(inner):
                    return start, at, commas
                # To bash a brace that closes nothing is a letter, and it looks on for one that
                # does: `{p}0,x}` is two words. What could be a range is for it to decide.
                if ".." in inner:
                    raise NotUnderstood("its braces can be read in two ways")
    return None


def _counted(inner: str) -> list[_Marks]:
    found = _range(inner)
    if found is None or found[1].isalpha() != found[2].isalpha():
        return [[(mark, False) for mark in f"{{{inner}}}"]]
    is_text = found[1].isalpha()
    first, last = (ord(found[1]), ord(found[2])) if is_text else (int(found[1]), int(found[2]))
    step = abs(int(found[3] or 1)) or 1
    if abs(last - first) // step >= _MAX_BRACED:
        raise NotUnderstood("its braces make too many words")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    # Zeros in front are kept by bash; a number is never an option or a path that matters, but a
    # word of it may be.
    width = max(len(found[1]), len(found[2])) if {found[1][:1], found[2][:1]} & {"0"} else 0
    texts = [chr(number) if is_text else str(number).zfill(width) for number in numbers]
    return [[(mark, False) for mark in text] for text in texts]


def _joined(marks: _Marks) -> list[Piece]:
    pieces: list[Piece] = []
    for mark, is_active in marks:
        if pieces and pieces[-1].is_active is is_active:
            pieces[-1] = Piece(pieces[-1].text + mark, is_active)
        else:
            pieces.append(Piece(mark, is_active))
    return pieces
