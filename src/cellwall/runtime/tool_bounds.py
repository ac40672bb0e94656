"""Step 1 for the tools of agents: names, directory, and the size and depth of their data. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cellwall.core.errors import BadInput
from cellwall.core.types import Json, ToolResult, UseTool

MAX_PATH = 4095
MAX_TOOL_BYTES = 8 * 1024 * 1024
"""Text in one input or one response of an agent's tool."""
MAX_TOOL_DEPTH = 64
MAX_TOOL_VALUES = 200_000
_MAX_TOOL_NAME = 256
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_tool(use: UseTool | ToolResult) -> None:
    """Raise `BadInput` for the first part that is out of bounds."""
    _check_names(use.tool, use.agent_session, use.call)
    if isinstance(use, ToolResult):
        check_json(use.response, is_text=False)  # a tool may return any bytes
        return
    place = use.cwd
    if not place.startswith("/") or len(place) > MAX_PATH or "\0" in place:
        raise BadInput("the working directory is not an absolute path", code="CW-BAD-DIRECTORY")
    check_json([use.cwd, use.input], is_text=True)


def _check_names(tool: str, *others: str) -> None:
    # Printable: the name is shown to people and matched by rules, which see no control character.
    if not tool or not all(name.isprintable() for name in (tool, *others)):
        raise BadInput("a tool name must be printable characters", code="CW-BAD-TOOL")
    if max(map(len, (tool, *others))) > _MAX_TOOL_NAME:
        raise BadInput("the name of the tool or of its call is too long", code="CW-BAD-TOOL")


def check_json(value: Json, *, is_text: bool) -> None:
    """Raise `BadInput` for data that is too large, too deep or, if `is_text`, not text.

    Walks without recursion: deep nesting must not overflow the stack of a later reader.
    """
    room, count = MAX_TOOL_BYTES, 0
    level: list[Json] = [value]
    for _depth in range(MAX_TOOL_DEPTH):
        inner: list[Json] = []
        for item in level:
            count += 1
            match item:
                case str():
                    room -= len(item)
                    if is_text and _SURROGATE.search(item):
                        # The program would get other bytes than the policy has judged.
                        raise BadInput("the input holds a lone surrogate", code="CW-NOT-TEXT")
                case Mapping():
                    inner += [*item, *item.values()]
                case Sequence():
                    inner += item
        if room < 0 or count + len(inner) > MAX_TOOL_VALUES:
            raise BadInput("the data of one tool call is too large", code="CW-TOOL-TOO-LARGE")
        if not inner:
            return
        level = inner
    raise BadInput(f"the data is nested more than {MAX_TOOL_DEPTH} deep", code="CW-TOOL-TOO-DEEP")
