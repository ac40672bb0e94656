"""The type that describes an agent's hook protocol, and the mapping of its tools. Pure.

A tool without a counterpart keeps its own name: no rule for another tool matches it, and without a
rule of its own it is denied.
"""

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
    """A tool's result after the guard has scanned it."""

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
    """The product's name."""
    layout: Layout
    places: Callable[[Mapping[str, str], str], dict[str, str]]
    """From the environment and the working directory: `project`, `local`, `user` -> file."""
    parse: Callable[[bytes, bool], ToolRequest | ToolReport | OtherEvent]
    """The request, and whether the command line marks it as a result."""
    permit: Callable[[ToolRequest, Ruling], Reply]
    report: Callable[[ToolReport, ScannedResult], Reply]
    refuse: Callable[[bytes, str, str], Reply]
    """Without a ruling: the request, the event if known, the reason."""
    can_ask: Callable[[ToolRequest], bool] = _never
    """Whether the host asks a person in its present mode."""
    handed_on: tuple[str, ...] = ()
    """Fields of a shell call that a rewritten call keeps; others could change what runs."""
    timeout_key: str | None = None
    """The field with the time limit of a shell call, in milliseconds."""
    default_timeout_s: float = 3600.0
    is_posix_shell: bool = True
    """Whether the host always starts the hook with sh or bash."""
    own_folders: int = 1
    """How many parent folders of its settings file are its own; created where missing."""
    names_no_event: bool = False
    """Requests do not name their event, so the command line does (`--after`)."""
    switched_off: Callable[[Mapping[str, Any]], str] = _all_hooks_off
    """The setting that disables our hooks; empty: none."""
    note: str = ""
    """What a person must do after `hook install`."""


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
    """The input with its path under the field name that rules use.

    Two fields with different paths are refused: it is unknown which one the tool would use.
    """
    found = {alias: given[alias] for alias in (name, *aliases) if alias in given}
    paths = [value for value in found.values() if value is not None]
    if any(not isinstance(path, str) for path in paths):
        raise Malformed(f"{name} is not a string", event)
    if any(path != paths[0] for path in paths):
        raise Malformed("the call names two different paths", event)
    rest = {key: value for key, value in given.items() if key not in found}
    return {**rest, name: paths[0]} if paths else rest


def mcp_tool(server: str, tool: str, *, otherwise: str) -> str:
    """`mcp__server__tool`; for invalid names `otherwise`, which no MCP rule matches."""
    if _PART.fullmatch(server) is None or _PART.fullmatch(tool) is None:
        return otherwise
    return f"mcp__{server}__{tool}"


def files_of_patch(text: object, cwd: str, event: str) -> tuple[ToolUse, ...]:
    """Each file that an `apply_patch` patch would write, as a use of its own.

    Every line that could be a header counts as one, also where the patch parser would treat it as
    content: too many files are judged, never too few. Unknown headers are refused.
    """
    if not isinstance(text, str):
        raise Malformed("the patch is not a string", event)
    found: dict[tuple[str, str], ToolUse] = {}
    for raw in text.split("\n"):
        header = raw.strip()
        if not header.startswith("***"):
            continue
        mark = next((mark for mark in _FILE_MARKS if header.startswith(mark)), None)
        if mark is None:
            if raw.startswith("***") and not header.startswith(_OTHER_MARKS):
                raise Malformed("the patch has an unknown header", event)
            continue
        path = header.removeprefix(mark).strip()
        if not path or not path.isprintable():
            raise Malformed("the patch has an empty or unprintable file name", event)
        tool = _FILE_MARKS[mark]
        found[tool, path] = ToolUse(tool, {FILE: os.path.join(cwd, path)})
        if len(found) > _MAX_FILES:
            raise Malformed(f"the patch names more than {_MAX_FILES} files", event)
    if not found:
        raise Malformed("the patch names no file", event)
    return tuple(found.values())


def below(cwd: str, place: object, event: str) -> str:
    """The working directory of a command, relative to the agent's own."""
    if place is None or place == "":
        return cwd
    if not isinstance(place, str):
        raise Malformed("the working directory is not a string", event)
    return os.path.join(cwd, place)
