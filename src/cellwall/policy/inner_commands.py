"""Commands that another command, or code, starts: what they inherit. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.commands.opened import Inner, Opened
from cellwall.policy.touched import Files

_MAX_FOLDERS: Final = 32


def moved(command: Command, folders: Sequence[str]) -> Command:
    """Code that changes its folder may start its commands in either."""
    moved = [
        to if to.startswith(UNKNOWN) else posixpath.join(each, to)
        for to in folders
        for each in command.directories
    ]
    places = dict.fromkeys((*command.directories, *moved))
    if len(places) > _MAX_FOLDERS:  # one that is left out could be where a secret lies
        raise NotUnderstood("it goes to more folders than can be judged in time")
    return replace(command, directories=tuple(places))


def in_own_folders(command: Command, opened: Opened) -> Command:
    """A command that changes its folder by an option, as `env -C` and `make -C` do. Each of several
    options counts from where the one before it led."""
    texts = [UNKNOWN if word.is_split else word.text for word in opened.folders]
    return moved(command, [*texts, posixpath.join("", *texts)]) if texts else command


def started(inner: Inner, command: Command, files: Files) -> Command:
    """The command that stands within another one, with its input and its folders."""
    words = inner.words
    if inner.is_open_ended:
        words = (*words, files.input_word(is_null_separated=inner.is_null_separated))
    return Command(
        words,
        stdin=command.stdin,
        stdin_text=command.stdin_text,
        piped=command.piped,
        is_input_shared=command.is_input_shared,
        directories=command.directories,
        place=(*command.place, inner.why),
    )
