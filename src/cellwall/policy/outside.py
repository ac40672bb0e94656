"""What is asked about where a command runs outside of a sandbox (outside.toml). Pure.

A project's or a user's rules decide what an agent may do in its project. These commands reach
further: other processes, the environment, other machines, code without a file.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.opened import CommandEffects
from cellwall.policy.rulebook import RuleBook


@dataclass(frozen=True, slots=True)
class OutsideRule:
    """One table of outside.toml, for one program."""

    program: str
    why: str
    only: re.Pattern[str] | None = None
    """Only where an argument has this form."""
    unless: frozenset[str] = frozenset()
    """Not where the first argument is one of these; '' is none at all."""

    def is_about(self, words: Sequence[Word]) -> bool:
        arguments = [word.text for word in words[1:]]
        if self.only is not None:
            return any(UNKNOWN in text or self.only.search(text) for text in arguments)
        return (arguments[0] if arguments else "") not in self.unless or not self.unless


@dataclass(frozen=True, slots=True)
class OutsideRules:
    """outside.toml."""

    programs: Mapping[str, OutsideRule] = field(default_factory=dict)
    inline: str = ""
    languages: frozenset[str] = frozenset()
    variables: str = ""
    printing: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()


@cache
def outside_rules() -> OutsideRules:
    """Read once."""
    text = resources.files("cellwall.policy").joinpath("outside.toml").read_text("utf-8")
    told = tomllib.loads(text)
    programs = {}
    for table in told["rule"]:
        only = re.compile(table["only"]) if "only" in table else None
        for program in table["programs"].split():
            unless = frozenset(table.get("unless", {}).get(program, ()))
            programs[program] = OutsideRule(program, table["why"], only, unless)
    inline, variables = told["inline"], told["variables"]
    return OutsideRules(
        programs,
        inline["why"],
        frozenset(inline["languages"].split()),
        variables["why"],
        frozenset(variables["commands"].split()),
        frozenset(variables["options"].split()),
    )


def asked_outside(
    book: RuleBook, command: Command, opened: CommandEffects, *, home: str, what: str
) -> Iterator[Decision]:
    """The questions about one command; none that the administrator has answered."""
    words, rules = command.words, outside_rules()
    name = posixpath.basename(words[0].text)
    found: list[tuple[str, str]] = []
    rule = rules.programs.get(name)
    if rule is not None and rule.is_about(words):
        found.append((f"Bash({name} *)", rule.why))
    if name in rules.printing and _prints_variables(command, opened, rules):
        found.append((f"Bash({name})", rules.variables))
    if _is_inline(command, opened, rules):
        found.append(("inline code", rules.inline))
    if found and book.is_administrators(words, home=home):
        return
    for text, why in found:
        yield Decision(Verdict.ASK, text, f"it {why}", "built-in: outside", what)


def _prints_variables(command: Command, opened: CommandEffects, rules: OutsideRules) -> bool:
    if opened.inner or opened.scripts:  # `env A=1 npm test`
        return False
    arguments = [word.text for word in command.words[1:]]
    if posixpath.basename(command.words[0].text) == "env":
        return True  # whatever it sets: without a command it prints
    if command.assignments:  # `export A=1`: they are no words here
        return False
    return not arguments or arguments[0] in rules.options


def _is_inline(command: Command, opened: CommandEffects, rules: OutsideRules) -> bool:
    if any(code.language in rules.languages for code in opened.codes):
        return True
    return opened.reads_stdin_as in rules.languages and command.stdin != "file"
