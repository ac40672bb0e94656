"""A first policy for a project, from the files in its folder. Pure; the rules are starters.toml.

The names of scripts and targets in a project are untrusted: only plain words become rules, and
names that suggest a change outside the machine become questions.
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from cellwall.core.verdict import Verdict
from cellwall.policy.protected_rules import starter_rules

MAX_NAMES = 100
_WIDTH = 96
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_PART = re.compile(r"[-_.:]")
_LEAVING = frozenset(
    {
        *("apply", "deploy", "docker", "login", "prod", "production", "publish", "push"),
        *("release", "remote", "rollback", "ship", "sync", "upload"),
        *("clean", "clobber", "delete", "destroy", "distclean", "down", "drop", "install"),
        *("prune", "purge", "reset", "uninstall", "wipe"),
    }
)
"""Parts of names whose scripts become questions."""
_TARGET = re.compile(r"^([^\s#:=$%][^#:=$%\n]*):(?!=)", re.MULTILINE)
_RECIPE = re.compile(r"^@?([^\s#:='\"\[{]+)(?: [^\n:]*)?:(?!=)", re.MULTILINE)
_MANAGERS = re.compile(r"(npm|pnpm|yarn|bun)@")


@dataclass(frozen=True, slots=True)
class Starter:
    """One table of starters.toml."""

    name: str
    because: Mapping[Verdict, str]
    when: tuple[str, ...] = ()
    rules: Mapping[Verdict, tuple[str, ...]] = field(default_factory=dict)
    names: str = ""
    run: str = ""
    more: bool = False
    manager: bool = False

    def is_for(self, files: Iterable[str]) -> bool:
        """Whether one of its files exists; a starter without files fits every project."""
        if not self.when:
            return True
        return any(fnmatchcase(name, pattern) for name in files for pattern in self.when)


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """The files of a project folder."""

    files: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    """The texts of files that hold names, by `Starter.names`."""


@dataclass(frozen=True, slots=True)
class StarterPolicy:
    """The text of the proposed policy, and what it is based on."""

    text: str
    kinds: tuple[str, ...]
    rules: int
    notes: tuple[str, ...] = ()
    """Notes for the user: omissions, and their reasons."""


@cache
def starters() -> tuple[Starter, ...]:
    """All tables, in the order in which they are written."""
    text = resources.files("cellwall.policy").joinpath("starters.toml").read_text("utf-8")
    return tuple(_starter(name, table) for name, table in tomllib.loads(text).items())


def _more_denials(table: Mapping[str, object]) -> tuple[str, ...]:
    """`protected = true`: the rules of the list of protected names (FS-8, SKL-1)."""
    return starter_rules() if table.get("protected") else ()


def _starter(name: str, table: Mapping[str, object]) -> Starter:
    def texts(key: str) -> tuple[str, ...]:
        found = table.get(key, [])
        return tuple(str(each) for each in found) if isinstance(found, list) else ()

    return Starter(
        name,
        {each: str(table.get(f"because_{each.word}", table["because"])) for each in Verdict},
        texts("when"),
        {
            Verdict.ALLOW: texts("allow"),
            Verdict.ASK: texts("ask"),
            Verdict.DENY: (*texts("deny"), *_more_denials(table)),
        },
        str(table.get("names", "")),
        str(table.get("run", "")),
        bool(table.get("more", False)),
        bool(table.get("manager", False)),
    )


def start(found: ProjectFiles) -> StarterPolicy:
    """The policy for this folder; an empty folder gets the rules that fit every project."""
    notes: list[str] = []
    chosen = []
    for each in _chosen(found):
        names = _names(each, found, notes)
        chosen.append(_with_names(each, names))
    text = _HEAD + "".join(_array(verdict, chosen) for verdict in Verdict)
    count = 1 + sum(len(rules) for each in chosen for rules in each.rules.values())
    return StarterPolicy(text, tuple(each.name for each in chosen), count, tuple(notes))


def _chosen(found: ProjectFiles) -> list[Starter]:
    chosen = [each for each in starters() if each.is_for(found.files)]
    if "package.json" not in found.files:
        return [each for each in chosen if not each.manager]
    if any(each.manager for each in chosen):
        return chosen
    wanted = package_manager(found.texts.get("package.json", "")) or "npm"
    return [each for each in starters() if each in chosen or each.name == wanted]


# Names of scripts


def _names(starter: Starter, found: ProjectFiles, notes: list[str]) -> tuple[str, ...]:
    text = found.texts.get(starter.names)
    if text is None:
        return ()
    try:
        names = _READERS[starter.names](text)
    except _Unread as problem:
        notes.append(f"{starter.names}: {problem}; its names were left out")
        return ()
    plain = [name for name in names if _PLAIN.fullmatch(name)]
    odd = len(names) - len(plain)
    if odd:
        notes.append(f"{starter.names}: {odd} names are no plain words and were left out")
    if len(plain) > MAX_NAMES:
        notes.append(f"{starter.names}: only the first {MAX_NAMES} of {len(plain)} names are in")
    return tuple(plain[:MAX_NAMES])


def _with_names(starter: Starter, names: Sequence[str]) -> Starter:
    rules = {verdict: list(starter.rules[verdict]) for verdict in Verdict}
    for name in names:
        words = f"{starter.run} {name}" + (" *" if starter.more else "")
        leaves = any(part.lower() in _LEAVING for part in _PART.split(name))
        rules[Verdict.ASK if leaves else Verdict.ALLOW].append(f"Bash({words})")
    kept = {verdict: tuple(dict.fromkeys(texts)) for verdict, texts in rules.items()}
    return Starter(starter.name, starter.because, starter.when, kept)


class _Unread(Exception):
    """A file of the project that cannot be understood; the policy does without it."""


def _json(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _Unread("it is not valid JSON") from None
    if not isinstance(found, dict):
        raise _Unread("it holds no JSON object")
    return found


def scripts(text: str) -> list[str]:
    """The names of the scripts in a package.json or composer.json."""
    found = _json(text).get("scripts", {})
    if not isinstance(found, dict):
        raise _Unread("its `scripts` are no object")
    return [str(name) for name in found]


def package_manager(text: str) -> str:
    """The package manager that a package.json requests; empty if there is none."""
    try:
        wanted = _json(text).get("packageManager", "")
    except _Unread:
        return ""
    found = _MANAGERS.match(wanted) if isinstance(wanted, str) else None
    return found[1] if found else ""


def make_targets(text: str) -> list[str]:
    """The targets of a Makefile that a person would type."""
    joined = text.replace("\\\n", " ")
    found = [name for names in _TARGET.findall(joined) for name in names.split()]
    return [name for name in dict.fromkeys(found) if not name.startswith(".") and "/" not in name]


def recipes(text: str) -> list[str]:
    """The recipes of a justfile, without its private ones."""
    return [name for name in dict.fromkeys(_RECIPE.findall(text)) if not name.startswith("_")]


_READERS = {
    "package.json": scripts,
    "composer.json": scripts,
    "Makefile": make_targets,
    "justfile": recipes,
}

# Writing

_HEAD = """\
# What an agent may do in this project. Written by `cellwall policy init`; change it as you like.
#
# deny goes before ask, ask before allow. Commands are judged by their effects: each one in a pipe,
# a script or a substitution by itself. Built-in denials need no rule here: secrets, files of other
# users, private addresses, commands that stop or take over the machine.
#
#   cellwall policy check 'Bash(git push)'     the verdict for a call
#   cellwall policy explain 'Bash(...)'        and why
#   cellwall policy trust                      after every change: rules that allow count only
#                                              once a person has reviewed them

[permissions]

# Calls that no rule matches: "ask" a person, or "deny".
otherwise = "ask"
"""
_TITLES = {
    Verdict.ALLOW: "Allowed without a question.",
    Verdict.ASK: "A person is asked.",
    Verdict.DENY: "Refused without a question.",
}


def _array(verdict: Verdict, chosen: Sequence[Starter]) -> str:
    blocks = []
    for each in chosen:
        rules = each.rules[verdict]
        if rules:
            comment = textwrap.fill(
                each.because[verdict], _WIDTH, initial_indent="  # ", subsequent_indent="  # "
            )
            blocks.append(f"{comment}\n{_rows(rules)}")
    inside = "\n".join(blocks)
    return f"\n# {_TITLES[verdict]}\n{verdict.word} = [\n{inside}]\n"


def _rows(rules: Sequence[str]) -> str:
    """Rules are of plain ASCII, so that JSON's quotes are TOML's."""
    lines, line = [], " "
    for rule in rules:
        piece = f" {json.dumps(rule)},"
        if len(line) + len(piece) > _WIDTH and line.strip():
            lines.append(line)
            line = " "
        line += piece
    return "".join(f"{each}\n" for each in [*lines, line])
