"""Commands that take the guard away: agents with their permissions off, Cellwall removed, another
copy of Cellwall started (unguarded.toml). Pure.

By the literal words of a command, not by rules: a rule whose program is a wildcard would also mean
every word that only the running shell will know.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cellwall.policy.shell.words import UNKNOWN, Word

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*\Z")
_PACKAGE = re.compile(r"[A-Za-z0-9_.-]+")
_RUNNING = frozenset(("run", "tool", "x", "exec", "dlx"))


@dataclass(frozen=True, slots=True)
class Unguarded:
    """unguarded.toml."""

    options: Mapping[str, tuple[tuple[str, ...], ...]]
    """By agent: what turns its questions off, as the words that have to follow one another."""
    verbs: frozenset[str]
    installers: frozenset[str]
    everything: tuple[tuple[str, ...], ...]
    starters: frozenset[str]
    modules: tuple[str, ...]


@cache
def unguarded() -> Unguarded:
    """Read once."""
    text = resources.files("cellwall.policy").joinpath("unguarded.toml").read_text("utf-8")
    told = tomllib.loads(text)
    options = {
        agent: tuple(tuple(option.split()) for option in table["options"])
        for table in told["agents"]
        for agent in table["agents"].split()
    }
    remove, copies = told["remove"], told["copies"]
    return Unguarded(
        options,
        frozenset(remove["verbs"].split()),
        frozenset(remove["installers"].split()),
        tuple(tuple(each.split()) for each in remove["all"]),
        frozenset(copies["starters"].split()),
        tuple(copies["modules"]),
    )


def guard_trouble(words: Sequence[Word]) -> str | None:
    """Why this command would take the guard away; None: it would not, as far as its words tell."""
    texts = [word.text for word in words if UNKNOWN not in word.text]
    if not texts or UNKNOWN in words[0].text:
        return None
    program = _program(texts[0])
    return _agent(texts) or _removal(program, texts) or _copy(program, texts)


def _agent(texts: Sequence[str]) -> str | None:
    known = unguarded().options
    for at, text in enumerate(texts):
        options = known.get(_package(text)) if not text.startswith("-") else None
        if options is None or (at and not _starts_packages(texts)):
            continue
        rest = tuple(texts[at + 1 :])
        for option in options:
            if any(rest[start : start + len(option)] == option for start in range(len(rest))) or (
                len(option) > 1 and "=".join(option) in rest
            ):
                shown = f"{_package(text)} {' '.join(option)}"
                return f"starts an agent that asks nobody before it acts ({shown})"
    return None


def _starts_packages(texts: Sequence[str]) -> bool:
    """`npx claude …` starts it; `grep claude …` does not."""
    starting = {"npx", "bunx", "pnpm", "yarn", "npm", "bun", "uvx", "uv", "pipx", "deno", "node"}
    return _program(texts[0]) in starting


def _removal(program: str, texts: Sequence[str]) -> str | None:
    rules, why = unguarded(), "removes Cellwall, which judges and records what agents do"
    words = (program, *texts[1:])
    for whole in rules.everything:
        if all(word in words for word in whole) and words[0] == whole[0]:
            return why
    if program not in rules.installers:
        return None
    for at, text in enumerate(texts[1:], start=1):
        if text in rules.verbs:
            return why if any(_package(each) == "cellwall" for each in texts[at + 1 :]) else None
    return None


def _copy(program: str, texts: Sequence[str]) -> str | None:
    rules = unguarded()
    if program not in rules.starters:
        return None
    why = "starts another copy of Cellwall, past the rules for `cellwall`; write `cellwall` itself"
    if program.startswith(("python", "pypy")):
        modules = [texts[at + 1] for at, text in enumerate(texts[:-1]) if _is_module_option(text)]
        return why if any(each.partition(".")[0] in rules.modules for each in modules) else None
    for at, text in enumerate(texts[1:], start=1):
        before = texts[at - 1]
        is_source = before in {"--from", "--spec", "-p", "--package", "--with"}
        if _package(text.rpartition("=")[2]) in rules.modules and (
            is_source or text.startswith(("--from=", "--spec=", "--package="))
        ):
            return why
        if text.startswith("-") or is_source or text in _RUNNING:
            continue
        is_fetched = program in {"uvx", "npx", "bunx"} or (
            bool({"tool", "x"} & set(texts[1:at])) or (program == "pipx" and "run" in texts[1:at])
        )
        return why if is_fetched and _package(text) in rules.modules else None
    return None


def _is_module_option(text: str) -> bool:
    """`-m`, also at the end of a cluster: `-Im`."""
    return text.startswith("-") and not text.startswith("--") and text.endswith("m")


def _program(text: str) -> str:
    """`/usr/bin/pip3.11` is pip3, `python3.12` is python3."""
    name = posixpath.basename(text)
    base = _VERSION.sub("", name)
    major = _VERSION.search(name)
    return f"{base}{major[0].partition('.')[0]}" if major else name


def _package(text: str) -> str:
    """`@openai/codex@latest` is codex, `Cellwall[claude]==1.0` is cellwall (PEP 503)."""
    name = text.rpartition("/")[2] if text.startswith("@") else posixpath.basename(text)
    found = _PACKAGE.match(name)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
