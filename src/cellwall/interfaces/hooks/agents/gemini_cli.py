"""Gemini CLI's hook protocol and settings. Pure.

Format: github.com/google-gemini/gemini-cli, docs/hooks/reference.md, packages/core/src/hooks/
hookRunner.ts and hookAggregator.ts, read at commit 5411f113 (2026-08). Exit code 2 with an empty
standard output blocks a call and hides a result; JSON on standard output counts even then, so a
refusal has none. `decision: "ask"` is new: older versions take it for an allow, so it is not used.
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
    as_text,
    block_reply,
    clip_reason,
    json_line,
    object_field,
    parse_object,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout

BEFORE, AFTER = "BeforeTool", "AfterTool"
OTHER_EVENTS = frozenset(
    {
        "AfterAgent", "AfterModel", "BeforeAgent", "BeforeModel", "BeforeToolSelection",
        "Notification", "PreCompress", "SessionEnd", "SessionStart",
    }
)  # fmt: skip
_TIMEOUT_MS = 20_000
_SHELL = "run_shell_command"
_PATHS = ("absolute_path", "path")
_FOLDERS = ("dir_path", "directory")
_FILE_TOOLS = {"read_file": "Read", "write_file": "Write", "replace": "Edit"}
_FOLDER_TOOLS = {
    "glob": "Glob",
    "grep_search": "Grep",
    "search_file_content": "Grep",
    "list_directory": "LS",
}
_NAMES = {
    "activate_skill": "Skill",
    "ask_user": "AskUserQuestion",
    "codebase_investigator": "Task",
    "complete_task": "StructuredOutput",
    "enter_plan_mode": "EnterPlanMode",
    "exit_plan_mode": "ExitPlanMode",
    "google_web_search": "WebSearch",
    "invoke_agent": "Task",
    "update_topic": "TodoWrite",
    "write_todos": "TodoWrite",
}


def parse(raw: bytes) -> ToolRequest | ToolReport | OtherEvent:
    """Parse a request; raises `Malformed`."""
    told = parse_object(raw)
    event = text_field(told, "hook_event_name", "")
    if event in OTHER_EVENTS:
        return OtherEvent(event)
    if event not in {BEFORE, AFTER}:
        raise Malformed("unknown hook event")
    tool, session = text_field(told, "tool_name", event), text_field(told, "session_id", event)
    given, cwd = object_field(told, "tool_input", event), text_field(told, "cwd", event)
    first, *others = _uses(tool, given, told.get("mcp_context"), event)
    if event == AFTER:
        if "tool_response" not in told:
            raise Malformed("tool_response is missing", event)
        return ToolReport(first.tool, told["tool_response"], session, "")
    place = cwd
    if tool == _SHELL:
        place = below(
            cwd, with_path(given, _FOLDERS, event, name="dir_path").get("dir_path"), event
        )
    return ToolRequest(
        first.tool,
        first.input,
        place,
        session,
        "",
        event=event,
        project=cwd,
        given=given,
        also=tuple(others),
    )


def _uses(tool: str, given: Mapping[str, Any], server: object, event: str) -> list[ToolUse]:
    if isinstance(server, dict):
        names = text_field(server, "server_name", event), text_field(server, "tool_name", event)
        return [ToolUse(mcp_tool(*names, otherwise=tool), given)]
    if tool == _SHELL:
        return [ToolUse("Bash", given)]
    if tool in _FILE_TOOLS:
        return [ToolUse(_FILE_TOOLS[tool], with_path(given, _PATHS, event))]
    if tool in _FOLDER_TOOLS:
        return [ToolUse(_FOLDER_TOOLS[tool], with_path(given, _FOLDERS, event, name="path"))]
    if tool == "web_fetch":
        # It fetches what its prompt names, so each address is a fetch of its own.
        words = f"{given.get('url', '')} {given.get('prompt', '')}".split()
        found = [ToolUse("WebFetch", {"url": word}) for word in words if "://" in word]
        return found or [ToolUse(tool, given)]
    return [ToolUse(_NAMES.get(tool, tool), given)]


def permit(_asked: ToolRequest, ruling: Ruling) -> Reply:
    """What `tool_input` holds is laid over the model's own arguments."""
    if ruling.verdict == "allow":
        answer: dict[str, Json] = {"decision": "allow"}
        if ruling.updated is not None:
            answer["hookSpecificOutput"] = {"hookEventName": BEFORE, "tool_input": ruling.updated}
        return Reply(0, json_line(answer))
    reason = clip_reason(ruling.reason)
    answer = {"decision": "deny", "reason": reason}
    if ruling.stops:
        answer |= {"continue": False, "stopReason": reason}
    return Reply(0, json_line(answer))


def report(_told: ToolReport, cleaned: ScannedResult) -> Reply:
    """With `deny` the reason takes the place of the result that the model would see."""
    if cleaned.is_changed:
        return Reply(0, json_line({"decision": "deny", "reason": _model_text(cleaned.response)}))
    if cleaned.findings:
        context = clip_reason(f"Cellwall scanned this result. {cleaned.seen}")
        told = {"hookEventName": AFTER, "additionalContext": context}
        return Reply(0, json_line({"hookSpecificOutput": told}))
    return Reply(0, json_line({}))


def _model_text(response: Json) -> str:
    content = response.get("llmContent") if isinstance(response, Mapping) else None
    return content if isinstance(content, str) and content else as_text(response)


def refuse(_question: bytes, _event: str, reason: str) -> Reply:
    """Exit code 2 blocks a call, and hides a result: the reason takes its place."""
    return block_reply(reason)


def _entry(command: str) -> dict[str, Any]:
    told = {"type": "command", "name": "cellwall", "command": command}
    return {**told, "timeout": _TIMEOUT_MS}


def _places(_environ: Mapping[str, str], cwd: str) -> dict[str, str]:
    return {
        "project": os.path.join(cwd, ".gemini", "settings.json"),
        "user": os.path.expanduser("~/.gemini/settings.json"),
    }


def _switched_off(settings: Mapping[str, Any]) -> str:
    """docs/reference/configuration.md: `hooksConfig`."""
    chosen = settings.get("hooksConfig")
    if not isinstance(chosen, Mapping):
        return ""
    if chosen.get("enabled") is False:
        return '"hooksConfig.enabled" is off'
    disabled = chosen.get("disabled")
    is_ours = isinstance(disabled, list) and "cellwall" in disabled
    return '"hooksConfig.disabled" names our hook' if is_ours else ""


AGENT = Agent(
    name="gemini-cli",
    title="Gemini CLI",
    layout=Layout(before=(BEFORE,), after=(AFTER,), entry=_entry),
    places=_places,
    parse=lambda raw, _after: parse(raw),
    permit=permit,
    report=report,
    refuse=refuse,
    switched_off=_switched_off,
    note="Gemini CLI runs the hooks of a project only in a folder that you have trusted.",
)
