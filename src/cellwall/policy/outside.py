"""Questions about commands that run outside a sandbox (outside.toml). Pure.

A project's or a user's rules decide what an agent may do in its project. These commands reach
further: other processes, the environment, other machines, code without a file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.words import UNKNOWN, Command, Word
from cellwall.policy.commands.effects import CommandEffects
from cellwall.policy.package_commands import registry_of
from cellwall.policy.rulebook import RuleBook


@dataclass(frozen=True, slots=True)
class OutsideRule:
    """One table of outside.toml, for one program."""

    program: str
    why: str
    only: re.Pattern[str] | None = None
    """Asked only where an argument has this form."""
    unless: frozenset[str] = frozenset()
    """Not asked where the first argument is one of these; '' is no argument."""

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
    installs: str = ""


@cache
def outside_rules() -> OutsideRules:
    """The tables of outside.toml, parsed once."""
    text = resources.files("cellwall.policy").joinpath("outside.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    programs = {}
    for table in tables["rule"]:
        only = re.compile(table["only"]) if "only" in table else None
        for program in table["programs"].split():
            unless = frozenset(table.get("unless", {}).get(program, ()))
            programs[program] = OutsideRule(program, table["why"], only, unless)
    inline, variables = tables["inline"], tables["variables"]
    return OutsideRules(
        programs,
        inline["why"],
        frozenset(inline["languages"].split()),
        variables["why"],
        frozenset(variables["commands"].split()),
        frozenset(variables["options"].split()),
        tables["packages"]["why"],
    )


def ask_outside(
    book: RuleBook, command: Command, effects: CommandEffects, *, home: str, what: str
) -> Iterator[Decision]:
    """The questions about one command that no administrator's rule answers."""
    words, rules = command.words, outside_rules()
    name = command.program
    found: list[tuple[str, str]] = []
    rule = rules.programs.get(name)
    if rule is not None and rule.is_about(words):
        found.append((f"Bash({name} *)", rule.why))
    if name in rules.printing and _prints_variables(command, effects, rules):
        found.append((f"Bash({name})", rules.variables))
    if _is_inline(command, effects, rules):
        found.append(("inline code", rules.inline))
    if (registry := registry_of(words, with_runs=False)) is not None:
        inside = f"cellwall run --packages {registry} --workspace .:rw -- {name} …"
        why = f"{rules.installs}; inside: {inside}"
        found.append((f"Bash({name} *)", why))
    if found and book.is_administrators(words, home=home):
        return
    for text, why in found:
        yield Decision(Verdict.ASK, text, f"it {why}", "built-in: outside", what)


def _prints_variables(command: Command, effects: CommandEffects, rules: OutsideRules) -> bool:
    if effects.inner or effects.scripts:  # `env A=1 npm test`
        return False
    arguments = command.arguments
    if command.program == "env":
        return True  # without a command `env` prints the variables
    if command.assignments:  # `export A=1`: assignments are no words
        return False
    return not arguments or arguments[0] in rules.options


def _is_inline(command: Command, effects: CommandEffects, rules: OutsideRules) -> bool:
    if any(code.language in rules.languages for code in effects.codes):
        return True
    return effects.reads_stdin_as in rules.languages and command.stdin != "file"
