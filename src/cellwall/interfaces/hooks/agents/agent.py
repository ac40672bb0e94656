"""What Cellwall must know of an agent to be its hook. Pure data; one file makes each."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.core.outcomes import Finding
from cellwall.core.types import Json
from cellwall.interfaces.hooks.protocol import (
    Malformed,
    OtherEvent,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    ToolUse,
)
from cellwall.interfaces.hooks.settings_text import Layout


@dataclass(frozen=True, slots=True)
class ScannedResult:
    """A tool's result after the guard has looked at it."""

    findings: Sequence[Finding]
    response: Json
    is_changed: bool

    @property
    def seen(self) -> str:
        return "; ".join(f"{finding.category}: {finding.message}" for finding in self.findings)


def _never(_asked: ToolRequest) -> bool:
    return False


def _all_hooks_off(settings: Mapping[str, Any]) -> str:
    return '"disableAllHooks" is on' if settings.get("disableAllHooks") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent's protocol and settings."""

    name: str
    title: str
    """As its makers write it."""
    layout: Layout
    places: Callable[[Mapping[str, str], str], dict[str, str]]
    """From the environment and the working directory: `project`, `local`, `user` -> file."""
    parse: Callable[[bytes, bool], ToolRequest | ToolReport | OtherEvent]
    """The question, and whether the command line says that it is about a result."""
    permit: Callable[[ToolRequest, Ruling], Reply]
    report: Callable[[ToolReport, ScannedResult], Reply]
    refuse: Callable[[bytes, str, str], Reply]
    """Without a ruling: the question, the event as far as it is known, the reason."""
    can_ask: Callable[[ToolRequest], bool] = _never
    """Whether the host puts our question to a person now, in every mode that it may be in."""
    handed_on: tuple[str, ...] = ()
    """Fields of a shell call that a rewritten call keeps; others could change what is run."""
    timeout_key: str | None = None
    """The field with the time limit of a shell call, in milliseconds."""
    default_timeout_s: float = 3600.0
    is_posix_shell: bool = True
    """Whether the host starts the hook's command with sh or bash, and never with another shell."""
    own_folders: int = 1
    """How many folders above its settings file are its own, and are made where they are missing."""
    names_no_event: bool = False
    """Questions do not say what they are about, so the command line does (`--after`)."""
    switched_off: Callable[[Mapping[str, Any]], str] = _all_hooks_off
    """What in the settings keeps the agent from running our hooks; empty: nothing."""
    note: str = ""
    """What a person still has to do after `hook install`."""


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
