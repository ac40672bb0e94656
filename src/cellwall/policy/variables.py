"""Variables that change what a command is, as data (variables.toml). Pure."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, lru_cache
from importlib import resources

from cellwall.parsing.shell.command import Assignment, Command
from cellwall.parsing.shell.names import RUNNERS, SETTERS
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.commands.models import open_known
from cellwall.policy.commands.unmodelled import why_given

_DECLARING = frozenset(("declare", "typeset", "local", "readonly"))


@dataclass(frozen=True, slots=True)
class _Entry:
    names: re.Pattern[str]
    reason: str
    is_harmless: bool
    is_relative: bool
    """Values that are plain paths inside of the workspace are harmless."""
    values: frozenset[str]
    """Values that are harmless."""
    pattern: re.Pattern[str] | None
    is_exported: bool
    """Only a variable that a program gets counts, not one of the shell alone."""
    parts: re.Pattern[str] | None
    """What a part of the name ends in, in place of `names`: `PRE_BUILDCMD_X` has `cmd`."""
    is_given: bool
    """The value is denied only where its words would be by the rule for unmodelled programs."""

    def is_about(self, name: str) -> bool:
        if self.parts is not None:
            return any(map(self.parts.fullmatch, name.casefold().split("_")))
        return self.names.fullmatch(name) is not None

    def accepts(self, value: str) -> bool:
        if self.is_harmless or value in self.values:
            return True
        if self.is_given:
            return why_given(value) is None
        if self.is_relative and UNKNOWN not in value:
            return all(_is_inside(each) for each in value.split(":"))
        return self.pattern is not None and self.pattern.fullmatch(value) is not None


def trouble(assignment: Assignment, *, is_exported: bool = True) -> str | None:
    """Why a variable may not be set to this; None if it may."""
    entry = _entry(assignment.name)
    if entry is None or entry.accepts(assignment.value.text):
        return None
    if entry.is_exported and not is_exported:
        return None
    hint = "leave it away; a program may be named by its path"
    return f"{assignment.name} may not be set: {entry.reason}; {hint}"


def export_trouble(name: str) -> str | None:
    """Why a variable may not be handed to programs with whatever it holds (`export NAME`)."""
    entry = _entry(name)
    if entry is None or not entry.is_exported or entry.accepts(UNKNOWN):
        return None
    return f"{name} may not be exported: {entry.reason}"


def exported_names(command: Command) -> Iterator[str]:
    """The names that `export NAME`, `declare -x NAME=VALUE` and their like give to programs."""
    name = command.words[0].text if command.words else ""
    flags = [word.text for word in command.words[1:] if word.text.startswith("-")]
    if name == "export" or (name in _DECLARING and any("x" in each for each in flags)):
        yield from (each.name for each in command.assignments)


@lru_cache(maxsize=512)
def _entry(name: str) -> _Entry | None:
    """The first that speaks of it."""
    return next((entry for entry in _entries() if entry.is_about(name)), None)


@cache
def _entries() -> Sequence[_Entry]:
    text = resources.files(__package__).joinpath("variables.toml").read_text("utf-8")
    return [
        _Entry(
            re.compile("|".join(translate(name) for name in each.get("names", ()))),
            each["reason"],
            each.get("harmless", False),
            each.get("relative", False),
            frozenset(each.get("values", ())),
            re.compile(each["pattern"]) if "pattern" in each else None,
            each.get("exported", False),
            re.compile(each["parts"]) if "parts" in each else None,
            each.get("given", False),
        )
        for each in tomllib.loads(text)["variable"]
    ]


def _is_inside(path: str) -> bool:
    plain = posixpath.normpath(path)
    return not (posixpath.isabs(plain) or plain == ".." or plain.startswith("../") or path == "~")


def runs_as_a_number(text: str) -> bool:
    """`a[$(id)]`: wherever it is evaluated, now or in a program that gets it."""
    return "[" in text and ("$(" in text or "`" in text)


# Which variables a text gives values to that a script inside of it then uses.
#
# `X=~/.ssh/id_rsa; eval 'cat "$X"'`: in the script alone X looks like a variable of the person's
# own.

ANY_NAME = "*"
"""Among the names: any variable may have been set."""
_find_names = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").findall
_BEHIND = frozenset(("command", "builtin"))


def outer_names(commands: Sequence[Command], script: Command) -> frozenset[str]:
    """Names that these commands may set before the script of one of them runs. Text that is run
    elsewhere (`eval`, `source`) may set any name."""
    runners = sum(_program(each) in RUNNERS for each in commands)
    is_own = _program(script) in RUNNERS
    found = {ANY_NAME} if runners > is_own else set()
    for each in commands:
        found.update(_names_set_by(each))
    return frozenset(found)


def _program(command: Command) -> str:
    texts = [word.text for word in command.words]
    while texts and texts[0] in _BEHIND:
        texts = texts[1:]
    return texts[0] if texts else ""


def _names_set_by(command: Command) -> Iterator[str]:
    yield from (each.name for each in command.assignments)
    if command.words:
        yield from (each.name for each in open_known(command.words).assignments)
    if _program(command) in SETTERS:
        for word in command.words:
            yield from _find_names(word.text)
