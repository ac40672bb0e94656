"""From the tools of other agents to those that rules name. Pure.

A tool that has no counterpart keeps its own name: no rule for another tool speaks of it, and
without a rule of its own it is denied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from cellwall.core.types import Json
from cellwall.interfaces.hooks.protocol import Malformed, ToolUse

FILE = "file_path"
_MAX_FILES = 1000
_PART = re.compile(r"[A-Za-z0-9_-]{1,120}")
_FILE_MARKS = {
    "*** Add File:": "Write",
    "*** Update File:": "Edit",
    "*** Delete File:": "Write",
    "*** Move to:": "Write",
}
_OTHER_MARKS = ("*** Begin Patch", "*** End Patch", "*** End of File", "*** Environment ID:")


def with_path(
    given: Mapping[str, Json], aliases: Sequence[str], event: str, *, name: str = FILE
) -> dict[str, Json]:
    """The input with its path under the name that rules look at.

    Two names with two paths are refused: which of them the tool would use is not known.
    """
    found = {alias: given[alias] for alias in (name, *aliases) if alias in given}
    paths = [value for value in found.values() if value is not None]
    if any(not isinstance(path, str) for path in paths):
        raise Malformed(f"{name} is no text", event)
    if any(path != paths[0] for path in paths):
        raise Malformed("the call names two different paths", event)
    rest = {key: value for key, value in given.items() if key not in found}
    return {**rest, name: paths[0]} if paths else rest


def mcp_tool(server: str, tool: str, *, otherwise: str) -> str:
    """`mcp__server__tool`; `otherwise`, which no rule for MCP speaks of, if the names are odd."""
    if _PART.fullmatch(server) is None or _PART.fullmatch(tool) is None:
        return otherwise
    return f"mcp__{server}__{tool}"


def files_of_patch(text: object, cwd: str, event: str) -> tuple[ToolUse, ...]:
    """Each file that a patch in the form of `apply_patch` would write, as a use of its own.

    Every line that could be a header counts as one, also where the patch's own parser would take it
    for content: too many files are judged, never too few. A header that is not known is refused.
    """
    if not isinstance(text, str):
        raise Malformed("the patch is no text", event)
    found: dict[tuple[str, str], ToolUse] = {}
    for raw in text.split("\n"):
        header = raw.strip()
        if not header.startswith("***"):
            continue
        mark = next((mark for mark in _FILE_MARKS if header.startswith(mark)), None)
        if mark is None:
            if raw.startswith("***") and not header.startswith(_OTHER_MARKS):
                raise Malformed("the patch has a header that is not known", event)
            continue
        path = header.removeprefix(mark).strip()
        if not path or not path.isprintable():
            raise Malformed("the patch names a file that no rule can be about", event)
        tool = _FILE_MARKS[mark]
        found[tool, path] = ToolUse(tool, {FILE: os.path.join(cwd, path)})
        if len(found) > _MAX_FILES:
            raise Malformed(f"the patch names more than {_MAX_FILES} files", event)
    if not found:
        raise Malformed("the patch names no file", event)
    return tuple(found.values())


def below(cwd: str, place: object, event: str) -> str:
    """Where a command begins: a directory that the call names, from the agent's own."""
    if place is None or place == "":
        return cwd
    if not isinstance(place, str):
        raise Malformed("the working directory is no text", event)
    return os.path.join(cwd, place)
