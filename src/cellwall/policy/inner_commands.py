"""Commands that another command, or code, starts: what they inherit. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cellwall.policy.shell.command import Command
from cellwall.policy.shell.opened import Inner
from cellwall.policy.touched import Files

_MAX_FOLDERS: Final = 32


def moved(command: Command, folders: Sequence[str]) -> Command:
    """Code that changes its folder may start its commands in either."""
    moved = [posixpath.join(each, to) for to in folders for each in command.directories]
    places = dict.fromkeys((*command.directories, *moved))
    return replace(command, directories=tuple(places)[:_MAX_FOLDERS])


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
