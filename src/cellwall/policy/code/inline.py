"""Whether a piece of code of an interpreter looks harmless. Pure.

It is a sieve for `python -c` and the like, not a wall: what it lets through still runs inside of
the walls. What it does not know is a reason to refuse.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.code.inline_python import Rules, look_at_python

FILE: Final = os.path.join(os.path.dirname(__file__), "languages.toml")
MAX_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen in the code."""

    why: str | None = None
    """Why it is not harmless."""
    reads: tuple[str, ...] = ()
    """The files that it reads, where it is."""


def screen(language: str, text: str) -> str | None:
    """None if the code looks harmless, else the reason why it does not."""
    return look_at(language, text).why


@lru_cache(maxsize=64)
def look_at(language: str, text: str) -> Look:
    """As `screen`, with the files that harmless code reads."""
    if len(text) > MAX_CHARACTERS:
        return Look("the code is too long to be looked at")
    if UNKNOWN in text:
        return Look("part of the code is not known")
    if language == "python":
        return Look(*look_at_python(text, _python()))
    sieve = _sieves().get(language)
    if sieve is None:
        return Look(f"code of {language or 'this language'} cannot be looked at")
    return sieve.look(text)


@dataclass(frozen=True, slots=True)
class _Sieve:
    """Patterns over the whole text, in strings and comments too: in doubt it is refused."""

    shown: str
    refuses: tuple[re.Pattern[str], ...]
    reads: re.Pattern[str] | None

    def look(self, text: str) -> Look:
        for pattern in self.refuses:
            if found := pattern.search(text):
                word = (found[0].strip() or found[0])[:40]
                return Look(f"the {self.shown} code has `{word}`")
        paths: list[str] = []
        for found in self.reads.finditer(text) if self.reads else ():
            if found.groupdict().get("input"):
                continue
            if found["path"] is None:
                return Look(f"the {self.shown} code reads a file whose name is not written out")
            paths.append(found["path"])
        return Look(reads=tuple(paths))


@cache
def language_data() -> Mapping[str, Any]:
    """The tables of languages.toml."""
    with open(FILE, "rb") as stream:
        return tomllib.load(stream)


@cache
def _python() -> Rules:
    return Rules.of(language_data()["python"])


@cache
def _sieves() -> Mapping[str, _Sieve]:
    return {
        name: _Sieve(
            table["shown"],
            tuple(re.compile(pattern, re.MULTILINE) for pattern in table["refuses"]),
            re.compile(table["reads"]) if "reads" in table else None,
        )
        for name, table in language_data().items()
        if "refuses" in table
    }
