"""OpenAI Codex's hook protocol and settings. Pure.

Format: github.com/openai/codex, codex-rs/hooks/schema/generated/{pre,post}-tool-use.command.*.json,
codex-rs/hooks/src/engine/output_parser.rs and codex-rs/core/src/tools/hook_names.rs, read at commit
343074d4 (2026-08). It looks like Claude Code's and differs where it matters:
  - an output with a field or a value that Codex does not support counts as a failed hook, and the
    tool runs: so no `ask`, no `allow` without `updatedInput`, no `continue: false` before a tool;
  - exit code 2 blocks only with a reason on standard error;
  - the command is started by the user's own login shell, whichever that is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cellwall.core.types import Json
from cellwall.interfaces.hooks.agents.agent import Agent, ScannedResult, files_of_patch, with_path
from cellwall.interfaces.hooks.protocol import (
    Malformed,
    OtherEvent,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    as_text,
    block_reply,
    clip_reason,
    json_line,
    object_field,
    parse_object,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout

BEFORE, AFTER = "PreToolUse", "PostToolUse"
OTHER_EVENTS = frozenset(
    {
        "Notification", "PermissionRequest", "PostCompact", "PreCompact", "SessionEnd",
        "SessionStart", "Stop", "SubagentStart", "SubagentStop", "UserPromptSubmit",
    }
)  # fmt: skip
_TIMEOUT_S = 20
_NAMES = {
    "close_agent": "TaskStop",
    "followup_task": "Task",
    "list_agents": "TaskList",
    "list_mcp_resource_templates": "ListMcpResourcesTool",
    "list_mcp_resources": "ListMcpResourcesTool",
    "read_mcp_resource": "ReadMcpResourceTool",
    "request_user_input": "AskUserQuestion",
    "resume_agent": "Task",
    "send_input": "Task",
    "send_message": "Task",
    "spawn_agent": "Task",
    "tool_search": "ToolSearch",
    "update_plan": "TodoWrite",
    "wait_agent": "TaskOutput",
    "web_search": "WebSearch",
}
_FOLDER_TOOLS = {"grep_files": "Grep", "list_dir": "LS"}
_PATCH = "apply_patch"


def parse(raw: bytes) -> ToolRequest | ToolReport | OtherEvent:
    """Parse a request; raises `Malformed`."""
    told = parse_object(raw)
    event = text_field(told, "hook_event_name", "")
    if event in OTHER_EVENTS:
        return OtherEvent(event)
    if event not in {BEFORE, AFTER}:
        raise Malformed("unknown hook event")
    tool, session = text_field(told, "tool_name", event), text_field(told, "session_id", event)
    call = text_field(told, "tool_use_id", event, default="")
    if event == AFTER:
        if "tool_response" not in told:
            raise Malformed("tool_response is missing", event)
        return ToolReport(_NAMES.get(tool, tool), told["tool_response"], session, call)
    given, cwd = object_field(told, "tool_input", event), text_field(told, "cwd", event)
    common: dict[str, Any] = {"event": event, "project": cwd, "given": given}
    if tool == _PATCH:
        first, *others = files_of_patch(given.get("command"), cwd, event)
        return ToolRequest(
            first.tool, first.input, cwd, session, call, also=tuple(others), **common
        )
    if tool in {"view_image", "read_file"}:
        tool, given = "Read", with_path(given, ("path",), event)
    elif tool in _FOLDER_TOOLS:
        tool, given = _FOLDER_TOOLS[tool], with_path(given, ("dir_path",), event, name="path")
    return ToolRequest(_NAMES.get(tool, tool), given, cwd, session, call, **common)


def permit(_asked: ToolRequest, ruling: Ruling) -> Reply:
    """An empty answer leaves the call to Codex's own approvals: it has no other plain allow."""
    if ruling.verdict == "allow" and ruling.updated is None:
        return Reply(0, json_line({}))
    told: dict[str, Json] = {"hookEventName": BEFORE}
    if ruling.verdict == "allow":
        told |= {"permissionDecision": "allow", "updatedInput": ruling.updated}
        return Reply(0, json_line({"hookSpecificOutput": told}))
    reason = clip_reason(ruling.reason)
    told |= {"permissionDecision": "deny", "permissionDecisionReason": reason}
    answer: dict[str, Json] = {"hookSpecificOutput": told}
    if ruling.stops:  # the nearest that there is: a person is told
        answer["systemMessage"] = clip_reason(f"Cellwall asks to stop here: {ruling.reason}")
    return Reply(0, json_line(answer))


def report(_told: ToolReport, cleaned: ScannedResult) -> Reply:
    """`decision: block` puts the reason in the place of the result that the model would see."""
    if cleaned.is_changed:
        text = as_text(cleaned.response)
        return Reply(
            0, json_line({"decision": "block", "reason": text if text.strip() else "(empty)"})
        )
    if cleaned.findings:
        told = {
            "hookEventName": AFTER,
            "additionalContext": clip_reason(f"Cellwall scanned this result. {cleaned.seen}"),
        }
        return Reply(0, json_line({"hookSpecificOutput": told}))
    return Reply(0, json_line({}))


def refuse(_question: bytes, _event: str, reason: str) -> Reply:
    """Exit code 2 blocks a call, and withholds a result: the reason takes its place."""
    return block_reply(reason)


def _entry(command: str) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": _TIMEOUT_S}


def _places(environ: Mapping[str, str], cwd: str) -> dict[str, str]:
    theirs = environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")
    return {
        "project": os.path.join(cwd, ".codex", "hooks.json"),
        "user": os.path.join(os.path.abspath(theirs), "hooks.json"),
    }


AGENT = Agent(
    name="codex",
    title="Codex",
    layout=Layout(before=(BEFORE,), after=(AFTER,), entry=_entry),
    places=_places,
    parse=lambda raw, _after: parse(raw),
    permit=permit,
    report=report,
    refuse=refuse,
    is_posix_shell=False,
    note="Codex runs a new hook only after you trust it: open /hooks in Codex and approve it.",
)
