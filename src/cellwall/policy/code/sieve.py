"""Whether a piece of code of an interpreter looks harmless. Pure.

A sieve for `python -c` and the like, not a boundary: code that passes still runs in the sandbox.
Unknown forms are refused.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final

from cellwall.core.showing import one_line
from cellwall.parsing.shell.words import UNKNOWN, Access, File, Word
from cellwall.policy.code.python_sieve import PythonLists, look_at_python

FILE: Final = os.path.join(os.path.dirname(__file__), "languages.toml")
MAX_CHARACTERS = 65_536


@dataclass(frozen=True, slots=True)
class SieveResult:
    """The result for one piece of code."""

    why: str | None = None
    """Why it is not harmless."""
    reads: tuple[str, ...] = ()
    """The files that it reads, where it is."""


def screen(language: str, text: str) -> str | None:
    """None if the code looks harmless, else the reason why it does not."""
    return look_at(language, text).why


@lru_cache(maxsize=64)
def look_at(language: str, text: str) -> SieveResult:
    """As `screen`, with the files that harmless code reads."""
    if len(text) > MAX_CHARACTERS:
        return SieveResult("the code is too long to be looked at")
    if UNKNOWN in text:
        return SieveResult("part of the code is not known")
    if language == "python":
        return SieveResult(*look_at_python(text, _python()))
    sieve = _sieves().get(language)
    if sieve is None:
        return SieveResult(f"code of {language or 'this language'} cannot be looked at")
    return sieve.look(text)


@dataclass(frozen=True, slots=True)
class _Sieve:
    """Patterns over the whole text, in strings and comments too: in doubt it is refused."""

    shown: str
    refuses: tuple[re.Pattern[str], ...]
    reads: re.Pattern[str] | None

    def look(self, text: str) -> SieveResult:
        for pattern in self.refuses:
            if found := pattern.search(text):
                word = one_line(found[0].strip() or found[0], most=40)  # a person reads it
                return SieveResult(f"the {self.shown} code has `{word}`")
        paths: list[str] = []
        for found in self.reads.finditer(text) if self.reads else ():
            if found.groupdict().get("input"):
                continue
            if found["path"] is None:
                return SieveResult(
                    f"the {self.shown} code reads a file whose name is not written out"
                )
            paths.append(found["path"])
        return SieveResult(reads=tuple(paths))


@cache
def language_data() -> Mapping[str, Any]:
    """The tables of languages.toml."""
    with open(FILE, "rb") as stream:
        return tomllib.load(stream)


@cache
def _python() -> PythonLists:
    return PythonLists.of(language_data()["python"])


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


# What one piece of inline code starts, reads and writes.

MAX_STARTS: Final = 64


@dataclass(slots=True)
class Starts:
    """The commands, files and folders that one piece of code uses."""

    scripts: list[Word] = field(default_factory=list)
    """Text for a shell."""
    commands: list[tuple[Word, ...]] = field(default_factory=list)
    """Argument vectors."""
    files: list[File] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Where it moves to, as far as that is written out: its commands may run there."""
    unknown: str = ""
    """Why the list of started commands is incomplete; empty if the code spells all of them."""
    texts: list[str] = field(default_factory=list)
    """Texts that it puts together of known ones: each may be a path, or an address."""
    asked: str = ""
    """Why a person is asked where a rule allows everything; empty: no question."""

    def script(self, text: str | None) -> None:
        if text is None or UNKNOWN in text:
            self.doubt("it starts a command that is put together while it runs")
        else:
            self.scripts.append(Word(text))

    def command(self, words: list[str | None] | None) -> None:
        """The program must be known; an argument that is not is judged as any unknown word."""
        if not words or words[0] is None or UNKNOWN in words[0]:
            self.doubt("it starts a program whose name is put together while it runs")
        else:
            self.commands.append(tuple(Word(UNKNOWN if each is None else each) for each in words))

    def text(self, text: str | None) -> None:
        if text and UNKNOWN not in text and len(self.texts) < MAX_STARTS:
            self.texts.append(text)

    def delete(self, path: str | None, flags: str) -> None:
        if path is not None and path.strip(UNKNOWN):
            self.commands.append((Word("rm"), Word(flags), Word(path)))

    def file(self, access: Access, path: str | None) -> None:
        if path is not None and path.strip(UNKNOWN):
            self.files.append(File(access, Word(path), f"the code {access}s it"))

    def pattern(self, path: str) -> None:
        """Names that match are listed, and may be read."""
        self.files.append(File("read", Word(path, has_glob=True), "the code lists it"))

    def doubt(self, why: str) -> None:
        self.unknown = self.unknown or why

    def ask(self, why: str) -> None:
        self.asked = self.asked or why

    @property
    def is_too_much(self) -> bool:
        return len(self.scripts) + len(self.commands) + len(self.files) > MAX_STARTS
