"""A simple command of a shell text, as far as the text determines the command. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cellwall.parsing.shell.words import Word

Access = Literal["read", "write"]
Stdin = Literal["given", "pipe", "file", "text"]


@dataclass(frozen=True, slots=True)
class File:
    """A path that a command reads or writes."""

    access: Access
    path: Word
    why: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable that is set for one command, or for the shell."""

    name: str
    value: Word


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. A command without words only sets variables or opens files."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...] = ()
    files: tuple[File, ...] = ()
    stdin: Stdin = "given"
    stdin_text: Word | None = None
    piped: Word | None = None
    """Standard input, where a single command of the text prints known text into the pipe."""
    is_input_shared: bool = False
    """Other commands share the input, so this command may get any part of the text."""
    directories: tuple[str, ...] = ()
    """The possible working directories; `UNKNOWN` stands for an unknown part."""
    place: tuple[str, ...] = ()
    """The constructs around the command, outermost first, for messages."""
    is_feeding: bool = False
    """Its output becomes words, or the input of another command."""
    is_made_up: bool = False
    """The text builds or cuts words out of its own variables."""
    mentioned: tuple[Word, ...] = ()
    """Words of its expansions: candidates for the value of an unknown word."""
    is_function: bool = False
    """The command calls a function of the text; the body is read at its definition."""
