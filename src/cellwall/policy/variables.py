"""Variables that change the meaning of a command, as data (variables.toml). Pure."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, lru_cache
from importlib import resources

from cellwall.parsing.shell.names import RUNNERS, SETTERS
from cellwall.parsing.shell.words import UNKNOWN, Assignment, Command
from cellwall.policy.commands.models import effects_of
from cellwall.policy.commands.unmodelled import why_given

_DECLARING = frozenset(("declare", "typeset", "local", "readonly"))


@dataclass(frozen=True, slots=True)
class _VariableRule:
    names: re.Pattern[str]
    reason: str
    is_harmless: bool
    is_relative: bool
    """Plain paths inside the workspace are harmless values."""
    values: frozenset[str]
    """Harmless values."""
    pattern: re.Pattern[str] | None
    is_exported: bool
    """Only an exported variable counts, not one of the shell alone."""
    parts: re.Pattern[str] | None
    """The end of a part of the name, instead of `names`: `PRE_BUILDCMD_X` has `cmd`."""
    is_given: bool
    """A value is denied only if the rule for unmodelled programs denies its words."""

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
    """Why an assignment is denied; None: it is not."""
    entry = _entry(assignment.name)
    if entry is None or entry.accepts(assignment.value.text):
        return None
    if entry.is_exported and not is_exported:
        return None
    hint = "remove the assignment; name a program by its path"
    return f"{assignment.name} may not be set: {entry.reason}; {hint}"


def export_trouble(name: str) -> str | None:
    """Why the export of a variable with an unknown value is denied (`export NAME`)."""
    entry = _entry(name)
    if entry is None or not entry.is_exported or entry.accepts(UNKNOWN):
        return None
    return f"{name} may not be exported: {entry.reason}"


def exported_names(command: Command) -> Iterator[str]:
    """The variables that `export NAME`, `declare -x NAME=VALUE` and the like export."""
    name = command.words[0].text if command.words else ""
    flags = [word.text for word in command.words[1:] if word.text.startswith("-")]
    if name == "export" or (name in _DECLARING and any("x" in each for each in flags)):
        yield from (each.name for each in command.assignments)


@lru_cache(maxsize=512)
def _entry(name: str) -> _VariableRule | None:
    """The first entry that matches the name."""
    return next((entry for entry in _entries() if entry.is_about(name)), None)


@cache
def _entries() -> Sequence[_VariableRule]:
    text = resources.files(__package__).joinpath("variables.toml").read_text("utf-8")
    return [
        _VariableRule(
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
    """`a[$(id)]`: runs a command wherever it is evaluated, here or in another program."""
    return "[" in text and ("$(" in text or "`" in text)


# The variables that a text sets and a script inside the text then uses.
#
# `X=~/.ssh/id_rsa; eval 'cat "$X"'`: in the script alone X looks like a variable of the user.

ANY_NAME = "*"
"""Among the names: the text may have set any variable."""
_find_names = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").findall
_BEHIND = frozenset(("command", "builtin"))


def outer_names(commands: Sequence[Command], script: Command) -> frozenset[str]:
    """Names that these commands may set before the script of one of them runs. Other text that runs
    (`eval`, `source`) may set any name."""
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
        yield from (each.name for each in effects_of(command.words).assignments)
    if _program(command) in SETTERS:
        for word in command.words:
            yield from _find_names(word.text)
