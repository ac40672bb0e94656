"""unguarded.toml, and how programs and packages are named in it. Pure."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*\Z")
_PACKAGE = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Unguarded:
    """unguarded.toml."""

    options: Mapping[str, tuple[tuple[str, ...], ...]]
    """By agent: what turns its questions off, as the words that have to follow one another."""
    settings: Mapping[str, tuple[tuple[str, ...], ...]]
    """By agent or editor: what changes its servers, extensions or settings for later."""
    verbs: frozenset[str]
    installers: frozenset[str]
    everything: tuple[tuple[str, ...], ...]
    replacing: frozenset[str]
    """Options of installers that put another version in the place of one that is there."""
    killers: frozenset[str]
    starters: frozenset[str]
    modules: tuple[str, ...]
    copiers: frozenset[str]
    finders: frozenset[str]
    managing: tuple[tuple[str, ...], ...]
    typing: tuple[str, ...]
    """Commands of tmux that type into a terminal."""


@cache
def unguarded() -> Unguarded:
    """Read once."""
    text = resources.files("cellwall.policy").joinpath("unguarded.toml").read_text("utf-8")
    told = tomllib.loads(text)
    options, settings = (
        {
            agent: tuple(tuple(option.split()) for option in table.get(key, ()))
            for table in told["agents"]
            for agent in table["agents"].split()
        }
        for key in ("options", "settings")
    )
    remove, copies = told["remove"], told["copies"]
    return Unguarded(
        options,
        settings,
        frozenset(remove["verbs"].split()),
        frozenset(remove["installers"].split()),
        tuple(tuple(each.split()) for each in remove["all"]),
        frozenset(remove["replacing"].split()),
        frozenset(remove["killers"].split()),
        frozenset(copies["starters"].split()),
        tuple(copies["modules"]),
        frozenset(copies["copiers"].split()),
        frozenset(copies["finders"].split()),
        tuple(tuple(each.split()) for each in copies["managing"]),
        tuple(told["tmux"]["typing"].split()),
    )


def program_of(text: str) -> str:
    """`/usr/bin/pip3.11` is pip3, `python3.12` is python3."""
    name = posixpath.basename(text)
    base = _VERSION.sub("", name)
    major = _VERSION.search(name)
    return f"{base}{major[0].partition('.')[0]}" if major else name


def package_of(text: str) -> str:
    """`@openai/codex@latest` is codex, `Cellwall[claude]==1.0` is cellwall (PEP 503)."""
    name = text.rpartition("/")[2] if text.startswith("@") else posixpath.basename(text)
    found = _PACKAGE.match(name)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
