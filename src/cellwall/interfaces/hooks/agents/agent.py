"""The base class of all hook adapters: one agent's protocol and settings, and its tools. Pure.

An adapter holds its differences as class attributes and overrides a method only where the protocol
has a form of its own. A tool without a counterpart keeps its own name: no rule for another tool
matches it, and without a rule of its own it is denied.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cellwall.core.outcomes import Finding
from cellwall.core.types import Json
from cellwall.interfaces.hooks.protocol import (
    EMPTY_REPLY,
    Malformed,
    OtherEvent,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    ToolUse,
    as_text,
    block_reply,
    clip_reason,
    json_field,
    json_reply,
    object_field,
    parse_object,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout

HOOK_TIMEOUT_S = 20
"""The hook answers within 10; the rest is for a busy host to start it."""


@dataclass(frozen=True, slots=True)
class ScannedResult:
    """A tool's result after the guard has scanned it."""

    findings: Sequence[Finding]
    response: Json
    is_changed: bool

    @property
    def context(self) -> str:
        """The findings as one sentence for the model; empty without findings."""
        texts = [f"{finding.category}: {finding.message}" for finding in self.findings]
        return clip_reason(f"Cellwall scanned this result. {'; '.join(texts)}") if texts else ""


class Agent(ABC):
    """One agent's protocol and settings."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The product's name."""
    layout: ClassVar[Layout]
    project_files: ClassVar[Mapping[str, str]]
    """The settings files of a project, by the option that chooses one: `project`, `local`."""
    user_file: ClassVar[str]
    """The user's settings file, below `user_folder`."""
    user_folder: ClassVar[str]
    user_folder_variable: ClassVar[str] = ""
    """The variable that replaces `user_folder`."""
    other_events: ClassVar[frozenset[str]] = frozenset()
    """Events that are answered with an empty object; an unknown event is refused."""
    session_field: ClassVar[str] = "session_id"
    is_session_optional: ClassVar[bool] = False
    call_field: ClassVar[str] = "tool_use_id"
    tool_field: ClassVar[str] = "tool_name"
    input_field: ClassVar[str] = "tool_input"
    is_input_text: ClassVar[bool] = False
    """Whether the input may be a string of JSON, as the model wrote it."""
    result_field: ClassVar[str] = "tool_response"
    replacing_decision: ClassVar[str] = ""
    """The decision with which a reason replaces the result, as the model would see it."""
    tool_names: ClassVar[Mapping[str, str]] = {}
    """The agent's tools and their counterparts in policy rules."""
    file_tools: ClassVar[Mapping[str, str]] = {}
    """Tools that take the path of a file, under one of `file_fields`."""
    file_fields: ClassVar[tuple[str, ...]] = ("path",)
    folder_tools: ClassVar[Mapping[str, str]] = {}
    """Tools that take the path of a folder, under one of `folder_fields`."""
    folder_fields: ClassVar[tuple[str, ...]] = ()
    kept_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a shell call that a rewritten call keeps; others could change what runs."""
    timeout_field: ClassVar[str | None] = None
    """The field with the time limit of a shell call, in milliseconds."""
    default_timeout_s: ClassVar[float] = 3600.0
    is_posix_shell: ClassVar[bool] = True
    """Whether the host always starts the hook with sh or bash."""
    own_folders: ClassVar[int] = 1
    """How many parent folders of its settings file are its own; created where missing."""
    names_no_event: ClassVar[bool] = False
    """Requests do not name their event, so the command line does (`--after`)."""
    note: ClassVar[str] = ""
    """What a person must do after `hook install`."""

    def settings_files(self, environ: Mapping[str, str], cwd: str) -> dict[str, str]:
        """`project`, `local` and `user`, where the agent has them, with their paths."""
        chosen = environ.get(self.user_folder_variable) or os.path.expanduser(self.user_folder)
        files = {name: os.path.join(cwd, file) for name, file in self.project_files.items()}
        return {**files, "user": os.path.join(os.path.abspath(chosen), self.user_file)}

    def parse(self, raw: bytes, after: bool) -> ToolRequest | ToolReport | OtherEvent:  # noqa: FBT001, ARG002  # see `names_no_event`
        """Parse a request; raises `Malformed`. `after`: the command line says it is a result."""
        message = parse_object(raw)
        event = text_field(message, "hook_event_name", "")
        if event in self.other_events:
            return OtherEvent(event)
        if event in self.layout.after:
            return self.parse_report(message, event)
        if event in self.layout.before:
            return self.parse_request(message, event)
        raise Malformed("unknown hook event")

    def session_and_call(self, message: Mapping[str, Any], event: str) -> tuple[str, str]:
        default = "" if self.is_session_optional else None
        call = text_field(message, self.call_field, event, default="") if self.call_field else ""
        return text_field(message, self.session_field, event, default=default), call

    def parse_report(self, message: Mapping[str, Any], event: str) -> ToolReport:
        tool = text_field(message, self.tool_field, event)
        if self.result_field not in message:
            raise Malformed(f"{self.result_field} is missing", event)
        session, call = self.session_and_call(message, event)
        return ToolReport(
            self.result_tool(tool, message, event), message[self.result_field], session, call
        )

    def result_tool(self, tool: str, _message: Mapping[str, Any], _event: str) -> str:
        return self.tool_names.get(tool, tool)

    def parse_request(self, message: Mapping[str, Any], event: str) -> ToolRequest:
        tool, cwd = text_field(message, self.tool_field, event), text_field(message, "cwd", event)
        read_input = json_field if self.is_input_text else object_field
        tool_input = read_input(message, self.input_field, event)
        first, *others = self.uses_of(tool, tool_input, message, event)
        session, call = self.session_and_call(message, event)
        return ToolRequest(
            first.tool,
            first.input,
            self.command_folder(tool, tool_input, cwd, event),
            session,
            call,
            event=event,
            project=cwd,
            original_input=tool_input,
            also=tuple(others),
        )

    def uses_of(
        self, tool: str, tool_input: Mapping[str, Any], _message: Mapping[str, Any], event: str
    ) -> Sequence[ToolUse]:
        """The uses that one call contains, at least one."""
        return (self.use_of(tool, tool_input, event),)

    def use_of(self, tool: str, tool_input: Mapping[str, Any], event: str) -> ToolUse:
        """The call in the terms of policy rules."""
        if tool in self.file_tools:
            return ToolUse(self.file_tools[tool], with_path(tool_input, self.file_fields, event))
        if tool in self.folder_tools:
            folder = with_path(tool_input, self.folder_fields, event, name="path")
            return ToolUse(self.folder_tools[tool], folder)
        return ToolUse(self.tool_names.get(tool, tool), tool_input)

    def command_folder(
        self, _tool: str, _tool_input: Mapping[str, Any], cwd: str, _event: str
    ) -> str:
        """The directory that a shell command runs in."""
        return cwd

    @abstractmethod
    def permit(self, request: ToolRequest, ruling: Ruling) -> Reply:
        """The reply to a request before a tool."""

    def report(self, report: ToolReport, scanned: ScannedResult) -> Reply:
        """The reply after a tool, with the cleaned result where the protocol takes one."""
        del report
        if scanned.is_changed:
            reason = self.model_text(scanned.response)
            return json_reply({"decision": self.replacing_decision, "reason": reason})
        if scanned.findings:
            event = self.layout.after[0]
            answer = {"hookEventName": event, "additionalContext": scanned.context}
            return json_reply({"hookSpecificOutput": answer})
        return EMPTY_REPLY

    def model_text(self, response: Json) -> str:
        """The result as text, for hosts that accept only text."""
        return as_text(response)

    def refuse(self, _request: bytes, _event: str, reason: str) -> Reply:
        """The reply without a ruling: exit code 2 blocks a call, and where possible a result."""
        return block_reply(reason)

    def can_ask(self, _request: ToolRequest) -> bool:
        """Whether the host asks a person in its present mode."""
        return False

    def disabled_by(self, settings: Mapping[str, Any]) -> str:
        """The setting that disables our hooks; empty: none."""
        return '"disableAllHooks" is on' if settings.get("disableAllHooks") else ""


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
    tool_input: Mapping[str, Json], aliases: Sequence[str], event: str, *, name: str = FILE
) -> dict[str, Json]:
    """The input with its path under the field name that rules use.

    Two fields with different paths are refused: it is unknown which one the tool would use.
    """
    fields = {alias: tool_input[alias] for alias in (name, *aliases) if alias in tool_input}
    paths = [value for value in fields.values() if value is not None]
    if any(not isinstance(path, str) for path in paths):
        raise Malformed(f"{name} is not a string", event)
    if any(path != paths[0] for path in paths):
        raise Malformed("the call names two different paths", event)
    rest = {key: value for key, value in tool_input.items() if key not in fields}
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
    uses: dict[tuple[str, str], ToolUse] = {}
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
        uses[tool, path] = ToolUse(tool, {FILE: os.path.join(cwd, path)})
        if len(uses) > _MAX_FILES:
            raise Malformed(f"the patch names more than {_MAX_FILES} files", event)
    if not uses:
        raise Malformed("the patch names no file", event)
    return tuple(uses.values())


def below(cwd: str, folder: object, event: str) -> str:
    """The working directory of a command, relative to the agent's own."""
    if folder is None or folder == "":
        return cwd
    if not isinstance(folder, str):
        raise Malformed("the working directory is not a string", event)
    return os.path.join(cwd, folder)
