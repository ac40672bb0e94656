"""Texts that show what code is about, in any language: paths, URLs, commands, hidden code. Pure.

The patterns are in `signs.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cellwall.packages.inspection.behaviours import Behaviour

_TABLES = tomllib.loads(Path(__file__).with_name("signs.toml").read_text("utf-8"))


def _compiled(table: str) -> tuple[tuple[re.Pattern[str], Behaviour], ...]:
    return tuple((re.compile(text), Behaviour[name]) for name, text in _TABLES[table].items())


_OF_TEXT, _OF_COMMAND = _compiled("text"), _compiled("command")
_START_FILE = re.compile(_TABLES["path"]["start_file"])
_BEHIND_BLANKS, _INVISIBLE = (
    re.compile(_TABLES["hidden"][name].encode("ascii"))
    for name in ("HIDE_BY_BLANKS", "HIDE_BY_INVISIBLE")
)
_BLANKS = (b" " * 150, b"\t" * 150)
_FIRST_BYTES = (
    b"\xf3\xa0",
    b"\xef\xb8",
    b"\xe2\x80\x8b",
    b"\xe2\x80\x8c",
    b"\xe2\x81",
    b"\xef\xbe\xa0",
    b"\xe3\x85\xa4",
)
_MAX_TEXT = 4096
"""Of a text only the beginning: paths, URLs and commands are short."""


def signs_of_text(text: str) -> Iterator[Behaviour]:
    """What a text in code names."""
    shown = text[:_MAX_TEXT]
    return (behaviour for pattern, behaviour in _OF_TEXT if pattern.search(shown))


def signs_of_command(command: str) -> Iterator[Behaviour]:
    """What a command does that code starts, or that runs at installation."""
    shown = command[:_MAX_TEXT]
    return (behaviour for pattern, behaviour in _OF_COMMAND if pattern.search(shown))


def is_start_file(path: str) -> bool:
    """Whether programs run the content of a file at this path by themselves."""
    return _START_FILE.search(path[:_MAX_TEXT]) is not None


def hidden_in(data: bytes) -> Iterator[tuple[Behaviour, int]]:
    """Code and data that a reader of the file does not see, with the line."""
    if any(each in data for each in _BLANKS) and (found := _BEHIND_BLANKS.search(data)):
        yield Behaviour.HIDE_BY_BLANKS, line_of(data, found.start())
    has_invisible = not data.isascii() and any(each in data for each in _FIRST_BYTES)
    if has_invisible and (found := _INVISIBLE.search(data)):
        yield Behaviour.HIDE_BY_INVISIBLE, line_of(data, found.start())


def line_of(data: bytes, place: int) -> int:
    """The number of the line at a place, from 1."""
    return data.count(b"\n", 0, place) + 1
