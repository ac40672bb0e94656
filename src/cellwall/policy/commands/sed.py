"""sed: the commands, reads and writes of a script. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.arguments import ArgumentModel
from cellwall.policy.commands.effects import CommandEffects, EffectsBuilder, ShellScript
from cellwall.policy.commands.interpret import read_options


def is_closed(pattern: str) -> bool:
    """Whether no bracket is open at the end, by the reading of any sed or awk.

    A delimiter inside a bracket ends the pattern for some of them and not for others; the rest is
    then code for one and text for the other.
    """
    if "[" not in pattern:
        return True
    return all(_closes(pattern, *reading) for reading in product((False, True), repeat=3))


def is_open(pattern: str) -> bool:
    """Whether a bracket is open at the end, by the reading of every sed: none compiles it."""
    if "[" not in pattern:
        return False
    return not any(_closes(pattern, *reading) for reading in product((False, True), repeat=3))


def _closes(pattern: str, escapes: bool, classes: bool, first_counts: bool) -> bool:  # noqa: FBT001  # from `product`
    """`escapes`: a backslash counts inside; `classes`: `[:` does; `first_counts`: `[]` closes."""
    at, depth = 0, 0
    while at < len(pattern):
        sign = pattern[at]
        at += 1
        if sign == "\\" and (not depth or escapes):
            at += 1
        elif sign == "[" and not depth:
            depth = 1
            at += pattern.startswith("^", at)
            at += not first_counts and pattern.startswith("]", at)
        elif sign == "[" and classes and pattern.startswith((":", ".", "="), at):
            depth += 1
        elif sign == "]" and depth:
            depth -= 1
    return not depth


# The commands of a sed script.

MAX_CHARACTERS = 65_536

RUNS_INPUT = "the sed script runs its input as a command; remove its `e`"
_UNCLEAR = "the sed script cannot be parsed; write a simpler one, or use the Edit tool"
_VALUE = (
    "the sed script holds a value that is known only at run time, and may be a sed command; "
    "write the value itself"
)
_OUTPUTS = frozenset(("/dev/stdout", "/dev/stderr", "/dev/stdin", "-"))
_MAX_HIDDEN = 8
"""Delimiters in the brackets of one regular expression."""
_BLANKS = " \t\r\n;"
_NUMBER = re.compile(r"[0-9]+(?:~[0-9]+)?|\$|[+~][0-9]+")
_FLAGS = re.compile(r"[gpiImM0-9 \t]*")
_LABEL = re.compile(r"[ \t]*[^\s;}]*")
_AMOUNT = re.compile(r"[ \t]*[0-9.]*")
_LINE = re.compile(r"[^\n]*")
_is_suffix = re.compile(r"\.[\w.~-]+|").fullmatch
_TEXT = re.compile(r"(?:[^\\\n]|\\.|\\\n)*", re.DOTALL)


class _NotSed(Exception):
    """The text is not a script that the parser supports."""


@dataclass(slots=True)
class SedEffects:
    """The effects of a script beyond its input and output."""

    runs: list[str] = field(default_factory=list)
    """The commands that the script runs; an empty one is its input."""
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    unclear: bool = False


def judge(text: str) -> SedEffects:
    """The effects of a sed script; an ambiguous script is unclear."""
    if len(text) > MAX_CHARACTERS or UNKNOWN in text:
        return SedEffects(unclear=True)
    try:
        return _SedParser(text).run()
    except _NotSed:
        return SedEffects(unclear=True)


class _SedParser:
    """Reads command after command."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found = SedEffects()

    def run(self) -> SedEffects:
        while self._skip(_BLANKS + "}"):
            if self._text[self._at] == "#":
                self._take(_LINE)
            else:
                self._addresses()
                self._command()
        return self._found

    def _skip(self, characters: str) -> bool:
        while self._at < len(self._text) and self._text[self._at] in characters:
            self._at += 1
        return self._at < len(self._text)

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise _NotSed
        self._at = found.end()
        return found[0]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise _NotSed
        self._at += 1
        return self._text[self._at - 1]

    def _addresses(self) -> None:
        self._address()
        self._skip(" \t")
        if self._text.startswith(",", self._at):
            self._at += 1
            self._skip(" \t")
            self._address()
        self._skip(" \t!")

    def _address(self) -> None:
        if self._at >= len(self._text):
            raise _NotSed
        character = self._text[self._at]
        if character in "/\\":
            self._at += 1
            self._pattern(self._next() if character == "\\" else "/")
            self._skip("IM")
        elif _NUMBER.match(self._text, self._at):
            self._take(_NUMBER)

    def _pattern(self, delimiter: str) -> None:
        """Skips a regular expression; seds differ on whether its brackets hide the delimiter. A sed
        that ends the pattern in an open bracket rejects the script."""
        start = self._at
        self._until(delimiter)
        for _ in range(_MAX_HIDDEN):
            if not is_open(self._text[start : self._at - 1]):
                break
            self._until(delimiter)
        if not is_closed(self._text[start : self._at - 1]):
            raise _NotSed

    def _until(self, delimiter: str) -> None:
        """Skips to after the next unescaped delimiter."""
        if delimiter in "\n\\":
            raise _NotSed
        while (character := self._next()) != delimiter:
            if character == "\\":
                self._next()

    def _command(self) -> None:
        name = self._next()
        if name == "s":
            self._substitute()
        elif name == "y":
            delimiter = self._next()
            self._until(delimiter)
            self._until(delimiter)
        elif name in "rR":
            self._file(self._found.reads)
        elif name in "wW":
            self._file(self._found.writes)
        elif name == "e":
            self._found.runs.append(self._take(_LINE).strip())
        elif name in "aic":
            self._take(_TEXT)
        elif name in ":btT":
            self._take(_LABEL)
        elif name in "lLqQv":
            self._take(_AMOUNT)
        elif name not in "{=dDgGhHnNpPxzF":
            raise _NotSed

    def _file(self, paths: list[str]) -> None:
        path = self._take(_LINE).strip()
        if path not in _OUTPUTS:
            paths.append(path)

    def _substitute(self) -> None:
        delimiter = self._next()
        self._pattern(delimiter)
        self._until(delimiter)
        # GNU sed takes flags behind blanks as well: `s/a/b/ e`.
        while self._take(_FLAGS) or self._at < len(self._text):
            if self._text.startswith("e", self._at):
                self._at += 1
                self._found.runs.append("")
            elif self._text.startswith("w", self._at):
                self._at += 1
                self._file(self._found.writes)
            else:
                break
        if self._at < len(self._text) and self._text[self._at] not in "\n;}#\r":
            raise _NotSed


def analyse_sed(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """The script is the first operand, unless an option brings it; all `-e` are one script."""
    builder, found = read_options(model, words)
    if found.is_query:
        return builder.build()
    operands = found.operands
    scripts = list(found.values("-e", "--expression"))
    if not scripts and not found.has("-f", "--file") and operands:
        if found.has("-i") and len(operands) > 1 and _is_suffix(operands[0].text):
            operands = operands[1:]  # `sed -i .bak SCRIPT` of BSD; GNU sed takes it for no script
        scripts, operands = operands[:1], operands[1:]
    for file in found.values("-f", "--file"):
        builder.program(file, "sed runs it", "sed")
    if scripts:
        is_literal = all(word.is_literal for word in scripts)
        text = "\n".join(word.text for word in scripts)
        _note_script(builder, text if is_literal else UNKNOWN, is_boxed=found.has("--sandbox"))
    for word in operands:
        builder.file("read", word, "sed reads it")
        if found.has("-i"):
            builder.file("write", word, "sed edits it")
    return builder.build()


def _note_script(builder: EffectsBuilder, text: str, *, is_boxed: bool) -> None:
    commands = judge(text)
    if commands.unclear:
        builder.danger("", _VALUE if UNKNOWN in text else _UNCLEAR)
    if is_boxed:
        return
    for run in commands.runs:
        if run:
            builder.scripts.append(ShellScript(Word(run), "the sed script runs it"))
        else:
            builder.danger("", RUNS_INPUT)
    for path in commands.reads:
        builder.file("read", Word(path), "the sed script reads it")
    for path in commands.writes:
        builder.file("write", Word(path), "the sed script writes it")
