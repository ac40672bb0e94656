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

All other words hold `UNKNOWN` in place of each unknown part; `$!`, `$#`, `$((…))` and the like
are at least known to be numbers. Without quotes an unknown value is any number of words
(`is_split`), and `*`, `?`, `[…]` are names that match (`has_glob`). Unknown is not allowed as the
name of a program, as code, as the file that a redirection writes, as a file where the text itself
assembles names, and where an option of a program could stand that runs code or writes files.

Refused, because they can run code that was not read: braces that make or change another expansion,
`${x@P}`, `${!x}`, arithmetic over other values than numbers, evaluated subscripts, and
spellings that bash, its parser here, and zsh do not read alike (dialects.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Literal

from cellwall.parsing.shell.parser import NotUnderstood

UNKNOWN = "\ufffc"
"""Stands in a word for a part that only the running shell knows. No rule can spell it."""


class Number(Enum):
    """The kind of number that an `UNKNOWN` word is. A number is neither split nor a wildcard."""

    __hash__ = object.__hash__  # an enumeration's own is Python code, and each word has two

    NONE = "any text"
    PROCESS = "the process id of the shell, or of a job that it started"
    COUNT = "a number that is not negative"
    COUNT_OR_NOTHING = "the same, or empty"
    SUM = "a number that may be negative"
    PROCESSES = "process ids, or nothing; each is a word of its own"
    OBJECT = "the hexadecimal name of a git object, or nothing"


_NO_OPTION = frozenset(Number) - {Number.NONE, Number.SUM}


class Origin(Enum):
    """Where the unknown part of a word comes from."""

    __hash__ = object.__hash__  # as above

    ANYWHERE = "the text itself, or a file"
    ENVIRONMENT = "a variable that the text does not set: the environment of the user"
    OUTPUT = "the output of a command of the text"


class Join(IntEnum):
    """How text is joined to wildcards that another place of the text expanded. A shell expands
    wildcards to existing paths; a joined path may be that of a new file."""

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
    """An unquoted expansion: becomes no word, one or many."""
    has_glob: bool = False
    """Holds an unquoted `*`, `?` or `[`: becomes many words, each a name that matches."""
    number: Number = Number.NONE
    origin: Origin = Origin.ANYWHERE
    join: Join = Join.NONE
    is_operand: bool = False
    """Treated as one word and no option, although the text is unknown."""

    @property
    def is_literal(self) -> bool:
        """Exactly this one word."""
        return not (self.is_split or self.has_glob or UNKNOWN in self.text)

    @property
    def may_be_option(self) -> bool:
        """Begins with a dash, or with an expansion that could."""
        return not self.is_operand and (
            self.text.startswith("-")
            or (self.text.startswith(UNKNOWN) and not self.is_digits)
            or self.is_split
            or (self.has_glob and self.text.startswith(("*", "?", "[")))
        )

    @property
    def is_digits(self) -> bool:
        """Unknown digits (hexadecimal for a git object) without a sign."""
        return self.number in _NO_OPTION

    def after(self, prefix: str) -> Word:
        """The rest of the word after a prefix such as `--file=`."""
        return replace(self, text=self.text[len(prefix) :], number=Number.NONE, is_operand=False)

    def as_operand(self) -> Word:
        """The same word, treated as one word and no option."""
        return replace(self, is_split=False, is_operand=True)


def literals(texts: Iterable[str]) -> tuple[Word, ...]:
    """Literal words: an argument vector that no shell expands."""
    return tuple(Word(text) for text in texts)


def render_words(words: Sequence[Word]) -> str:
    """The words for a message, with unknown parts as `…`."""
    return " ".join(word.text.replace(UNKNOWN, "…") or "''" for word in words)


def base_name(words: Sequence[Word]) -> str:
    """The base name of the program that the words start; empty if there are none."""
    return words[0].text.rpartition("/")[2] if words else ""


def is_unknown_path(path: Word) -> bool:
    """No name in the path is known. A dot right before the unknown part makes a name known."""
    names = {
        name.replace(UNKNOWN, "") if name.startswith(UNKNOWN) else name
        for name in path.text.split("/")
    }
    return UNKNOWN in path.text and names <= {"", ".", ".."}


# Quote removal as bash does it.

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
class WordPart:
    """A part of a word. Wildcards count only in active, that is unquoted, parts."""

    text: str
    is_active: bool = False
    number: Number = Number.NONE
    origin: Origin = Origin.ANYWHERE
    is_found: bool = False
    """A path that wildcards found earlier, as the value of a variable."""
    join: Join = Join.NONE
    is_gap: bool = False
    """Unquoted and possibly empty; a word made only of this is dropped."""


def unquote_pieces(text: str) -> Iterator[WordPart]:
    """Text outside quotes, where a backslash makes the next character literal."""
    start, at = 0, text.find("\\")
    while at >= 0:
        yield WordPart(text[start:at], is_active=True)
        following = text[at + 1 : at + 2]
        if following != "\n":
            yield WordPart(following)
        start = at + 2
        at = text.find("\\", start)
    yield WordPart(text[start:], is_active=True)


def in_double_quotes(text: str, special: str = '$`"\\') -> str:
    """Text in double quotes, where a backslash escapes only the special characters."""
    return re.sub(
        r"\\(.)",
        lambda found: "" if found[1] == "\n" else found[1] if found[1] in special else found[0],
        text,
        flags=re.DOTALL,
    )


def ansi(text: str) -> str:
    r"""The text of `$'…'`, where all shells must read each escape alike; unknown with a control
    character, which no relevant name holds.

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
            # The length first: `\UFFFFFFFF` is no character.
            if len(found[0]) == _WHOLE and chr(number) in _CONTROL:
                return UNKNOWN
    if found[5] is not None:
        return _NAMED[found[5]]
    raise NotUnderstood(
        f"shells read the escape {found[0]} of $'…' differently; write the character itself"
    )


# A simple command of a shell text, as far as the text determines the command. Pure.

Access = Literal["read", "write"]
Stdin = Literal["given", "pipe", "file", "text"]


@dataclass(frozen=True, slots=True)
class File:
    """A path that a command reads or writes."""

    access: Access
    path: Word
    why: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable that is set for one command, or for the shell."""

    name: str
    value: Word


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. A command without words only sets variables or opens files."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    files: tuple[File, ...] = ()
    stdin: Stdin = "given"
    stdin_text: Word | None = None
    piped: Word | None = None
    """Standard input, where a single command of the text prints known text into the pipe."""
    is_input_shared: bool = False
    """Other commands share the input, so this command may get any part of the text."""
    directories: tuple[str, ...] = ()
    """The possible working directories; `UNKNOWN` stands for an unknown part."""
    place: tuple[str, ...] = ()
    """The constructs around the command, outermost first, for messages."""
    is_feeding: bool = False
    """Its output becomes words, or the input of another command."""
    is_made_up: bool = False
    """The text builds or cuts words out of its own variables."""
    mentioned: tuple[Word, ...] = ()
    """Words of its expansions: candidates for the value of an unknown word."""
    is_function: bool = False
    """The command calls a function of the text; the body is read at its definition."""
    facts: dict[object, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What others found out about the command; see `policy.command_facts`."""

    @property
    def program(self) -> str:
        """The base name of the program; empty for a command without words."""
        return base_name(self.words)

    @property
    def arguments(self) -> list[str]:
        """The texts of the words behind the program."""
        return [word.text for word in self.words[1:]]
