"""Cursor's hook protocol and settings. Pure.

Format: cursor.com/docs/hooks (preToolUse, postToolUse, beforeShellExecution, beforeMCPExecution,
beforeReadFile; hooks.json with `failClosed`), as read in 2026-11 from public copies of that page
and from recorded payloads of other projects. `ask` is left out: in auto-review mode the command
runs without a question (forum.cursor.com, topic 173694).

Only `preToolUse` takes another input. `beforeShellExecution` sees the command that is about to run:
there a command that was not rewritten is denied, so that a version that ignores the new input runs
nothing outside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cellwall.core.types import Json
from cellwall.interfaces.hooks.agents.agent import Agent, ScannedResult, below, mcp_tool, with_path
from cellwall.interfaces.hooks.protocol import (
    Malformed,
    OtherEvent,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    ToolUse,
    block_reply,
    clip_reason,
    json_field,
    json_line,
    object_field,
    parse_object,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout

BEFORE, AFTER = "preToolUse", "postToolUse"
SHELL, MCP, READ = "beforeShellExecution", "beforeMCPExecution", "beforeReadFile"
OTHER_EVENTS = frozenset(
    {
        "afterAgentResponse", "afterAgentThought", "afterFileEdit", "afterMCPExecution",
        "afterShellExecution", "afterTabFileEdit", "beforeSubmitPrompt", "beforeTabFileRead",
        "postToolUseFailure", "preCompact", "sessionEnd", "sessionStart", "stop",
        "subagentStart", "subagentStop", "workspaceOpen",
    }
)  # fmt: skip
_TIMEOUT_S = 20
_PATHS = ("path", "target_file", "filePath", "target_notebook")
_FILE_TOOLS = {
    "Read": "Read",
    "Write": "Write",
    "Edit": "Edit",
    "StrReplace": "Edit",
    "EditNotebook": "Edit",
    "TabWrite": "Write",
    "TabRead": "Read",
    "Delete": "Write",
}
_FOLDER_TOOLS = {"Grep": "Grep", "Glob": "Glob", "LS": "LS", "SemanticSearch": "Grep"}
_NAMES = {
    "AskQuestion": "AskUserQuestion",
    "Await": "TaskOutput",
    "FetchMcpResource": "ReadMcpResourceTool",
    "ListMcpResources": "ListMcpResourcesTool",
    "ReadLints": "LSP",
    "SwitchMode": "EnterPlanMode",
}
_MCP_PREFIX = "MCP:"
_NO_SERVER = "cursor"
"""Cursor names the tool of a server and not the server."""


def parse(raw: bytes) -> ToolRequest | ToolReport | OtherEvent:
    """Parse a request; raises `Malformed`."""
    told = parse_object(raw)
    event = text_field(told, "hook_event_name", "")
    if event in OTHER_EVENTS:
        return OtherEvent(event)
    if event not in {BEFORE, AFTER, SHELL, MCP, READ}:
        raise Malformed("unknown hook event")
    session = text_field(told, "conversation_id", event, default="")
    call = text_field(told, "tool_use_id", event, default="")
    roots = told.get("workspace_roots", [])
    if not isinstance(roots, list) or not all(isinstance(root, str) for root in roots):
        raise Malformed("workspace_roots is not a list of strings", event)
    if event == AFTER:
        tool = text_field(told, "tool_name", event)
        if "tool_output" not in told:
            raise Malformed("tool_output is missing", event)
        return ToolReport(_use(tool, {}, event).tool, told["tool_output"], session, call)
    use, given = _parse_use(told, event)
    cwd = _directory(told, given, roots, event)
    return ToolRequest(
        use.tool,
        use.input,
        cwd,
        session,
        call,
        event=event,
        project=_root_of(cwd, roots),
        given=given,
        is_final=event == SHELL,
    )


def _parse_use(told: Mapping[str, Any], event: str) -> tuple[ToolUse, dict[str, Any]]:
    if event == SHELL:
        given: dict[str, Any] = {"command": text_field(told, "command", event)}
        return ToolUse("Bash", given), given
    if event == READ:
        given = {"file_path": text_field(told, "file_path", event)}
        return ToolUse("Read", given), given
    tool = text_field(told, "tool_name", event)
    if event == MCP:
        given = json_field(told, "tool_input", event)
        return _use(_MCP_PREFIX + tool.removeprefix(_MCP_PREFIX), given, event), given
    given = object_field(told, "tool_input", event)
    return _use(tool, given, event), given


def _use(tool: str, given: Mapping[str, Any], event: str) -> ToolUse:
    if tool.startswith(_MCP_PREFIX):
        server, colon, name = tool.removeprefix(_MCP_PREFIX).rpartition(":")
        return ToolUse(mcp_tool(server if colon else _NO_SERVER, name, otherwise=tool), given)
    if tool == "Shell":
        return ToolUse("Bash", given)
    if tool in _FILE_TOOLS:
        return ToolUse(_FILE_TOOLS[tool], with_path(given, _PATHS, event))
    if tool in _FOLDER_TOOLS:
        return ToolUse(
            _FOLDER_TOOLS[tool], with_path(given, ("target_directory",), event, name="path")
        )
    return ToolUse(_NAMES.get(tool, tool), given)


def _directory(
    told: Mapping[str, Any], given: Mapping[str, Any], roots: list[str], event: str
) -> str:
    here = text_field(told, "cwd", event, default="") or (roots[0] if roots else "")
    place = below(here, given.get("working_directory") if event == BEFORE else None, event)
    if not os.path.isabs(place):
        raise Malformed("the working directory is missing", event)
    return place


def _root_of(cwd: str, roots: list[str]) -> str | None:
    """The innermost workspace that the directory is in; else the first, which it is outside of."""
    around = [root for root in roots if cwd == root or cwd.startswith(root.rstrip("/") + "/")]
    return max(around, key=len) if around else next(iter(roots), None)


def permit(asked: ToolRequest, ruling: Ruling) -> Reply:
    """`agent_message` is for the model, `user_message` for the person."""
    if ruling.verdict == "allow":
        answer: dict[str, Json] = {"permission": "allow"}
        if ruling.updated is not None and asked.event == BEFORE:
            answer["updated_input"] = ruling.updated
        return Reply(0, json_line(answer))
    reason = clip_reason(ruling.reason)
    stop = "Stop here and tell the user. " if ruling.stops else ""
    said = {"permission": "deny", "user_message": reason, "agent_message": stop + reason}
    return Reply(0, json_line(said))


def report(told: ToolReport, cleaned: ScannedResult) -> Reply:
    """Only what an MCP tool brought can be replaced; of other results the model is warned."""
    answer: dict[str, Json] = {}
    if cleaned.is_changed and told.tool.startswith("mcp__"):
        answer["updated_mcp_tool_output"] = cleaned.response
    if cleaned.findings:
        answer["additional_context"] = clip_reason(f"Cellwall scanned this result. {cleaned.seen}")
    return Reply(0, json_line(answer))


def refuse(_question: bytes, _event: str, reason: str) -> Reply:
    """Exit code 2 is a denial of whatever has not run yet."""
    return block_reply(reason)


def _entry(command: str) -> dict[str, Any]:
    return {"command": command, "timeout": _TIMEOUT_S, "failClosed": True}


def _places(_environ: Mapping[str, str], cwd: str) -> dict[str, str]:
    return {
        "project": os.path.join(cwd, ".cursor", "hooks.json"),
        "user": os.path.expanduser("~/.cursor/hooks.json"),
    }


AGENT = Agent(
    name="cursor",
    title="Cursor",
    layout=Layout(
        before=(BEFORE, SHELL, MCP, READ),
        after=(AFTER,),
        entry=_entry,
        is_grouped=False,
        top={"version": 1},
    ),
    places=_places,
    parse=lambda raw, _after: parse(raw),
    permit=permit,
    report=report,
    refuse=refuse,
    handed_on=("description", "working_directory", "timeout"),
    timeout_key="timeout",
    is_posix_shell=False,
)
