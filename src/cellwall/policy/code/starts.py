"""Commands in code of other languages, by one small scan for calls. Pure.

Which names start a command stands in languages.toml, under `starts`. A name of the list with an
argument behind it is a call wherever it stands, also in a text or a comment. Its arguments are read
as long as they are plain texts, or a list of them; anything else makes the command unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.code.python_starts import look_into_python
from cellwall.policy.code.sieve import Starts, language_data

_MAX_CALLS: Final = 64
_MAX_WORDS: Final = 64
_CLOSING: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}
_ENDS: Final = frozenset(")];}\n|&")
_SIMPLE_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_ANY_START: Final = re.compile(
    r"(?i)\b(?:system|exec\w*|e?popen\w*|spawn\w*|fork|shell\w*|process\w*|runtime|run|eval)\b"
)
_option_or_function = re.compile(r"\w+\s*:[^:]|(?:async\s+)?function\b|[\w\s,]*\)?\s*=>").match
_condition = re.compile(r"(?:do|or|and|if|unless)\b").match
_moves = re.compile(
    r"""\b(?:cwd\s{0,8}:|chdir\b:?)\s{0,8}\(?\s{0,8}["']([^"'$#\n]{1,300})["']"""
).findall
_quotes = re.compile(r"""["']""").split
_open_mode = re.compile(r"\s*(?:[+<>&=]{0,3})\s*(?::\w[\w()-]*)?")
_plain_open = re.compile(r"""\s*["'][+<>]{1,3}[^"'|]{0,30}["']\s*,""").match
_quoting = re.compile(r"(?:q|qq|qw|%q|%Q|%w|%)\s*([({\[<|/!])")


@dataclass(frozen=True, slots=True)
class _LanguageTable:
    """The patterns of one language."""

    calls: re.Pattern[str]
    """`name` is the function; what follows it are its arguments."""
    joined: frozenset[str]
    """Functions whose further texts are words of the same command."""
    pipes: re.Pattern[str] | None
    """Opens a file, or a command if a text in it has a pipe sign."""
    deletes: re.Pattern[str] | None
    backtick: bool
    """A text in backticks is a command."""
    commands: re.Pattern[str] | None
    """Another way to write a text that is a command: `qx(…)`, `%x(…)`."""
    hides: tuple[re.Pattern[str], ...]
    """What can start a command that is not written out."""
    expands: re.Pattern[str]
    """What is put into a text while the code runs."""
    gate: re.Pattern[str] | None
    """Without this word in the code none of the calls starts anything."""
    asks: tuple[re.Pattern[str], ...]
    """What a person is asked about where it stands in none of the calls that were read."""


def is_known(language: str) -> bool:
    """Whether there is a table of what starts commands in it."""
    return language in _tables()


def scan_code(language: str, text: str, found: Starts) -> None:
    """Adds what the code starts."""
    table = _tables().get(language)
    if table is None:
        if start := _ANY_START.search(text):
            found.doubt(f"its code has `{start[0]}`, and code of this language is not read")
        return
    for pattern in table.hides:
        if hit := pattern.search(text):
            found.doubt(f"it has `{hit[0].strip()[:40]}`, which can start what is not written out")
    for joined in _joined_texts(text):
        found.text(joined)
    found.folders += _moves(text)
    _CodeScan(table, text, found).run()


def _joined_texts(text: str) -> Iterator[str]:
    """`"." + "env"`: texts that are put together where they stand. Which quote begins a text is not
    known without reading the language, so each piece is taken for one, and for what is between."""
    pieces = _quotes(text)
    for first in (1, 2):
        joined, count = "", 0
        for at in range(first, len(pieces), 2):
            if pieces[at - 1].strip() in ("+", ".", "..", "") and at > first:
                joined, count = joined + pieces[at], count + 1
                continue
            if count:
                yield joined
            joined, count = pieces[at], 0
        if count:
            yield joined


class _CodeScan:
    """One piece of code. What was read is taken out; a person is asked about what is left."""

    def __init__(self, table: _LanguageTable, text: str, found: Starts) -> None:
        self._table = table
        self._text = text
        self._found = found
        self._spans: list[tuple[int, int]] = []

    def run(self) -> None:
        table, text, found = self._table, self._text, self._found
        for call in table.deletes.finditer(text) if table.deletes else ():
            for word in self._arguments(call) or ():
                found.delete(word, "-rf")
        if table.gate is None or table.gate.search(text):
            count = self._calls() + self._commands()
            if table.gate is not None and not count:
                found.doubt("it has what starts commands, and calls it in a way that is not plain")
        rest = self._rest()
        for pattern in table.asks:
            if hit := pattern.search(rest):
                found.ask(
                    f"it has `{hit[0].strip()[:40]}`, which can start what is not written out"
                )
                return

    def _rest(self) -> str:
        """The code without the calls that were read."""
        parts, at = [], 0
        for start, end in sorted(self._spans):
            if start >= at:
                parts += [self._text[at:start], " "]
                at = end
        return "".join((*parts, self._text[at:]))

    def _arguments(self, call: re.Match[str]) -> list[str] | None:
        arguments = _PlainTexts(self._table, self._text, call.end())
        words = arguments.read()
        if words is not None:
            self._spans.append((call.start(), arguments.end))
        return words

    def _calls(self) -> int:
        table, found, count = self._table, self._found, 0
        for call in table.calls.finditer(self._text):
            count += 1
            if count > _MAX_CALLS:
                found.doubt("it starts more commands than can be judged")
                break
            words = self._arguments(call)
            if words is None:
                name = call["name"] or call[0].strip()
                found.doubt(f"it gives `{name}` what is put together while it runs")
            elif len(words) == 1 or call["name"] not in table.joined:
                found.script(words[0])
            else:
                found.command([*words])
        for call in table.pipes.finditer(self._text) if table.pipes else ():
            words = self._arguments(call)
            if words is not None:
                _pipe(words, found)
                continue
            tail = self._text[call.end() : call.end() + 200].partition(";")[0]
            if "|" in tail:
                found.doubt("it opens a pipe to a command that is not written out")
            elif not _plain_open(tail):
                found.ask("it opens what is put together while it runs, which may be a command")
        return count

    def _commands(self) -> int:
        table, text, found, count = self._table, self._text, self._found, 0
        for written in table.commands.finditer(text) if table.commands else ():
            count += 1
            opening = written[0][-1]
            end = text.find(_CLOSING.get(opening, opening), written.end())
            inside = text[written.end() : end] if end >= 0 else None
            found.script(None if inside is None else table.expands.sub(UNKNOWN, inside))
            self._spans.append((written.start(), end + 1 if end >= 0 else written.end()))
        pieces = text.split("`") if table.backtick else []
        at = 0
        for number, inside in enumerate(pieces[: 2 * _MAX_CALLS]):
            if number % 2:
                count += 1
                found.script(table.expands.sub(UNKNOWN, inside))
                self._spans.append((at - 1, at + len(inside) + 1))
            at += len(inside) + 1
        return count


def _pipe(words: list[str], found: Starts) -> None:
    for place, word in enumerate(words):
        mark = word.strip()
        if mark in ("|-", "-|"):
            rest = words[place + 1 :]
            found.script(rest[0]) if len(rest) == 1 else found.command([*rest])
            return
        if mark.startswith("|") or mark.endswith("|"):
            found.script(mark.strip("|").strip())
            return
    opened = _open_mode.match(words[0]) if words else None
    if opened is not None:  # `open(F, "<path")`, `open(F, "<", "path")`, `open("path")`
        path = words[0][opened.end() :].strip() or "".join(words[1:2])
        found.file("write" if {">", "+"} & set(opened[0]) else "read", path)


class _PlainTexts:
    """Reads plain texts from one place on: `("a", "b")`, `"a", ["b", "c"]`, `qw(a b)`."""

    def __init__(self, table: _LanguageTable, text: str, at: int) -> None:
        self._table = table
        self._text = text
        self._at = at
        self._words: list[str] = []

    @property
    def end(self) -> int:
        """Where the arguments that were read end."""
        return self._at

    def read(self) -> list[str] | None:
        """None if there is something else among them."""
        depth = 0
        self._blanks()
        is_bracketed = self._text.startswith("(", self._at)
        while len(self._words) <= _MAX_WORDS:
            self._blanks()
            sign = self._text[self._at : self._at + 1]
            if sign in ("(", "["):
                depth += 1
                self._at += 1
            elif sign == "," or (sign == "" and not self._words):
                if not sign:
                    return None
                self._at += 1
            elif sign in ("]", ")") and depth > 0:
                depth -= 1
                self._at += 1
                if is_bracketed and not depth:
                    return self._words or None
            elif not sign or sign in _ENDS or sign == "{":
                # `{shell: true}` and the like come behind the words; they do not change them.
                return self._words or None
            elif not self._one(sign):
                return self._words if self._words and self._is_behind(depth) else None
        return None

    def _is_behind(self, depth: int) -> bool:
        """What follows is no word of the command: `encoding: "utf8"`, a function to call back, or
        a condition behind a call without brackets."""
        rest = self._text[self._at : self._at + 40]
        before = self._text[: self._at].rstrip()[-1:]
        if before in (",", "("):
            return _option_or_function(rest) is not None
        return not depth and _condition(rest) is not None

    def _blanks(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in " \t\r":
            self._at += 1

    def _one(self, sign: str) -> bool:
        if sign in "'\"" or (sign == "`" and not self._table.backtick):
            return self._quoted(sign, sign)
        quoting = _quoting.match(self._text, self._at)
        if quoting is None:
            return False
        opening = quoting[1]
        self._at = quoting.end() - 1
        is_list = "w" in quoting[0]
        if not self._quoted(opening, _CLOSING.get(opening, opening)):
            return False
        if is_list:
            self._words[-1:] = self._words[-1].split()
        return True

    def _quoted(self, opening: str, closing: str) -> bool:
        at, parts = self._at + 1, []
        while at < len(self._text) and self._text[at] != closing:
            if self._text[at] == "\\" and at + 1 < len(self._text):
                sign = self._text[at + 1]
                if sign in "xuU0123456789c" and opening != "'":
                    parts.append(UNKNOWN)
                elif opening == "'":
                    parts.append(sign if sign in "'\\" else f"\\{sign}")
                else:
                    parts.append(_SIMPLE_ESCAPES.get(sign, sign))
                at += 2
            else:
                parts.append(self._text[at])
                at += 1
        if at >= len(self._text):
            return False
        self._at = at + 1
        inside = "".join(parts)
        self._words.append(inside if opening == "'" else self._table.expands.sub(UNKNOWN, inside))
        self._blanks()
        # What is put behind a text makes it another one; awk and ruby join two without a sign.
        return self._text[self._at : self._at + 1] not in {".", "+", "*", "%", "x", "'", '"'} or (
            self._text[self._at : self._at + 1] == "." and self._text[self._at + 1].isalpha()
        )


@cache
def _tables() -> Mapping[str, _LanguageTable]:
    return {
        name: _table(table["starts"])
        for name, table in language_data().items()
        if isinstance(table, dict) and "starts" in table
    }


def _table(data: Mapping[str, Any]) -> _LanguageTable:
    def pattern(key: str) -> re.Pattern[str] | None:
        return re.compile(data[key]) if key in data else None

    return _LanguageTable(
        calls=re.compile(data["calls"]),
        joined=frozenset(data.get("joined", "").split()),
        pipes=pattern("pipes"),
        deletes=pattern("deletes"),
        backtick=data.get("backtick", False),
        commands=pattern("commands"),
        hides=tuple(re.compile(each) for each in data.get("hides", ())),
        expands=re.compile(data.get("expands", r"\Z(?!\Z)")),
        gate=pattern("gate"),
        asks=tuple(re.compile(each) for each in data.get("asks", ())),
    )


# What inline code of an interpreter starts, reads and writes, as far as it is written out.
#
# The sieve (sieve.py) says whether code is harmless. This says what code does that is not: each
# command that it starts is judged like one of the shell text, and built-in denials hold for it
# under any rule. A command that is put together while the code runs is unknown, and no rule for
# everything covers that; a rule that spells out the option (`Bash(python3 -c *)`) does.

MAX_CHARACTERS: Final = 65_536


def is_read(language: str) -> bool:
    """Whether code of this language is searched for what it starts."""
    return language == "python" or is_known(language)


@lru_cache(maxsize=64)
def starts_in(language: str, text: str) -> Starts:
    """The commands that the code starts. The result is shared and must not be changed."""
    found = Starts()
    if len(text) > MAX_CHARACTERS:
        found.doubt("the code is too long to be looked at")
        return found
    if UNKNOWN in text:  # what is known is judged all the same: a denial in it holds
        found.doubt("part of the code is not known")
    if language == "python":
        look_into_python(text, found)
    else:
        scan_code(language, text, found)
    if found.is_too_much:
        return Starts(unknown="it starts more than can be judged in time")
    return found
