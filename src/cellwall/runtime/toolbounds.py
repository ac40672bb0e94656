"""How large and how deep what an agent's host tells of its tools may be. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cellwall.core.errors import BadInput
from cellwall.core.types import Json, ToolResult, UseTool

MAX_BYTES = 8 * 1024 * 1024
"""Of the text in one input or one response."""
DEEPEST = 64
MAX_VALUES = 200_000
_MAX_NAME = 256
_MAX_PATH = 4095
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_tool(told: UseTool | ToolResult) -> None:
    """Raise `BadInput` for the first thing out of bounds."""
    _check_names(told.tool, told.agent_session, told.call)
    if isinstance(told, ToolResult):
        _check_json(told.response, is_text=False)  # what a tool has read may hold anything
        return
    place = told.cwd
    if not place.startswith("/") or len(place) > _MAX_PATH or "\0" in place:
        raise BadInput("the working directory is no absolute path", code="CW-BAD-DIRECTORY")
    _check_json([told.cwd, told.input], is_text=True)


def _check_names(tool: str, *others: str) -> None:
    # Printable: the name is shown to people and matched by rules, which see no control character.
    if not tool or not all(name.isprintable() for name in (tool, *others)):
        raise BadInput("a tool has a name of printable characters", code="CW-BAD-TOOL")
    if max(map(len, (tool, *others))) > _MAX_NAME:
        raise BadInput("the name of the tool or of its call is too long", code="CW-BAD-TOOL")


def _check_json(value: Json, *, is_text: bool) -> None:
    """Walks without recursion: a deep nest must not overflow whoever comes after."""
    room, count = MAX_BYTES, 0
    level: list[Json] = [value]
    for _depth in range(DEEPEST):
        inner: list[Json] = []
        for item in level:
            count += 1
            match item:
                case str():
                    room -= len(item)
                    if is_text and _SURROGATE.search(item):
                        # The program would see other bytes than the ones that were judged.
                        raise BadInput("the input holds a lone surrogate", code="CW-NOT-TEXT")
                case Mapping():
                    inner += [*item, *item.values()]
                case Sequence():
                    inner += item
        if room < 0 or count + len(inner) > MAX_VALUES:
            raise BadInput("that is too much for one tool", code="CW-TOOL-TOO-LARGE")
        if not inner:
            return
        level = inner
    raise BadInput(f"nested more than {DEEPEST} deep", code="CW-TOOL-TOO-DEEP")
