r"""A word of a command, as far as it is known before the command runs. Pure.

A word is *plain*, its value known exactly, or *unknown*. These forms are plain, alone or one behind
the other in a word; the list is closed:

    a-b/c.d                   characters that mean nothing to bash
    \a  'a b'  "a b"          escaped or quoted characters
    $'a\tb\x41\101\u41\''     escapes abefnrtv\'" and codes of printable ASCII, tab, newline
    ~  ~/a                    at the begin of a word; behind `name=`, and behind `:` there
    $HOME  $PWD               where the text sets neither, and is in one directory
    $name  ${name}            which the text sets once, surely before, to a plain word; without
                              quotes only if the value holds no blank, wildcard or backslash
    {a,b}  {1..3}  {a..c}     of plain forms, and of expansions that braces cannot change: marks.py

All other words hold `UNKNOWN` in the place of what is not known; `$!`, `$#`, `$((…))` and the like
are at least known to be numbers. Without quotes an unknown value is any number of words
(`is_split`), and `*`, `?`, `[…]` are names that match (`has_glob`). Unknown is not allowed as the
name of a program, as code, as the file that a redirection writes, as a file where the text itself
puts names together, and where an option of a program could stand that runs code or writes files.

Refused, because they can run what was not read: braces that make or change another expansion,
`${x@P}`, `${!x}`, arithmetic over what is not a number, subscripts that are evaluated, and
spellings that bash, its parser here, and zsh do not read alike (dialects.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from cellwall.parsing.shell.parser import NotUnderstood

UNKNOWN = "\ufffc"
"""Stands in a word's text for what only the running shell will know. No rule can spell it."""


class Number(Enum):
    """The kind of number that an `UNKNOWN` word is. A number is neither split nor a wildcard."""

    NONE = "it may be anything"
    PROCESS = "the number of the shell's own process, or of one that it has started"
    COUNT = "a number that is not negative"
    COUNT_OR_NOTHING = "the same, or empty"
    SUM = "a number that may be negative"
    PROCESSES = "numbers of processes, or nothing; each is a word of its own"
    OBJECT = "the hexadecimal name of an object of git, or nothing"


_NO_OPTION = frozenset(Number) - {Number.NONE, Number.SUM}


class Origin(Enum):
    """Where the unknown part of a word comes from."""

    ANYWHERE = "the text itself, or a file"
    ENVIRONMENT = "a variable that the text does not set: the environment of the person"
    OUTPUT = "what a command of the text prints"


class Join(IntEnum):
    """What stands beside wildcards that were expanded before, in another place of the text. A
    shell expands wildcards to paths that exist; a path that is joined may be that of a new file."""

    NONE = 0
    FOLDER = 1
    """Whole names: `for d in .git/h*; do … "$d/pre-commit"`, `cd .git/h*`, `cp a .git/h*`."""
    NAME = 2
    """A part of a name: `for f in .gi*; do … "${f}config"`."""


@dataclass(frozen=True, slots=True)
class Word:
    """`text` has no quotes and escapes; `UNKNOWN` stands for each unknown part."""

    text: str
    is_split: bool = False
    """An unquoted expansion: it can become no word, or many."""
    has_glob: bool = False
    """Holds an unquoted `*`, `?` or `[`: it can become many words, each a name that matches."""
    number: Number = Number.NONE
    origin: Origin = Origin.ANYWHERE
    join: Join = Join.NONE
    is_operand: bool = False
    """Taken to be one word and no option, though its text is not known."""

    @property
    def is_literal(self) -> bool:
        """It is this one word and no other."""
        return not (self.is_split or self.has_glob or UNKNOWN in self.text)

    @property
    def may_be_option(self) -> bool:
        """It begins with a dash, or with something that could."""
        return not self.is_operand and (
            self.text.startswith("-")
            or (self.text.startswith(UNKNOWN) and not self.is_digits)
            or self.is_split
            or (self.has_glob and self.text.startswith(("*", "?", "[")))
        )

    @property
    def is_digits(self) -> bool:
        """Nobody knows which, but digits (an object's may be hexadecimal) and no sign before."""
        return self.number in _NO_OPTION

    def after(self, prefix: str) -> Word:
        """The rest of a word that begins with this text, as `--file=` does."""
        return replace(self, text=self.text[len(prefix) :], number=Number.NONE, is_operand=False)

    def as_operand(self) -> Word:
        """The same word, taken to be one word and no option."""
        return replace(self, is_split=False, is_operand=True)


def literals(texts: Iterable[str]) -> tuple[Word, ...]:
    """Words that are known: an argument vector that no shell has touched."""
    return tuple(Word(text) for text in texts)


def shown(words: Sequence[Word]) -> str:
    """For people: unknown parts as `…`."""
    return " ".join(word.text.replace(UNKNOWN, "…") or "''" for word in words)


def is_unknown_path(path: Word) -> bool:
    """Nothing in it tells what it is. A dot right before the unknown part tells something."""
    names = {
        name.replace(UNKNOWN, "") if name.startswith(UNKNOWN) else name
        for name in path.text.split("/")
    }
    return UNKNOWN in path.text and names <= {"", ".", ".."}


# How bash takes quotes and escapes away.

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
    """A part of a word. Wildcards count only in active, that is unquoted, parts."""

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
