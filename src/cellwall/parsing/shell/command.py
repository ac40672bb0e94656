"""One simple command of a shell text, as far as it is known before it runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cellwall.parsing.shell.words import Word

Access = Literal["read", "write"]
Stdin = Literal["given", "pipe", "file", "text"]


@dataclass(frozen=True, slots=True)
class File:
    """A path that is read or written."""

    access: Access
    path: Word
    why: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable that the command's environment, or the shell, gets."""

    name: str
    value: Word


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. Without words it only sets variables or opens files."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    files: tuple[File, ...] = ()
    stdin: Stdin = "given"
    stdin_text: Word | None = None
    piped: Word | None = None
    """What one command alone, which says so itself, writes into its standard input."""
    is_input_shared: bool = False
    """Other commands read from the same input: this one may get any part of the text."""
    directories: tuple[str, ...] = ()
    """Where it may run; with `UNKNOWN` in it where nobody knows."""
    place: tuple[str, ...] = ()
    """In what it stands, from the outside in: for people."""
    is_feeding: bool = False
    """What it prints becomes words or the input of another one."""
    is_made_up: bool = False
    """Its text cuts words, or puts them together, out of what it has set itself."""
    mentioned: tuple[Word, ...] = ()
    """Words that stand in its expansions: what an unknown word of it may be."""
    is_function: bool = False
    """It calls a function of the text, whose body is read where it stands."""
