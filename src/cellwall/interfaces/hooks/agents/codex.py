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

from collections.abc import Mapping, Sequence
from typing import Any

from cellwall.core.types import Json
from cellwall.interfaces.hooks.agents.agent import (
    HOOK_TIMEOUT_S,
    Agent,
    files_of_patch,
)
from cellwall.interfaces.hooks.protocol import (
    EMPTY_REPLY,
    Reply,
    Ruling,
    ToolRequest,
    ToolUse,
    clip_reason,
    json_reply,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout

BEFORE, AFTER = "PreToolUse", "PostToolUse"
_HOOK = {"type": "command", "command": "", "timeout": HOOK_TIMEOUT_S}
_TOOL_NAMES = {
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
_FILE_TOOLS = {"read_file": "Read", "view_image": "Read"}
_FOLDER_TOOLS = {"grep_files": "Grep", "list_dir": "LS"}
_PROJECT_FILES = {"project": ".codex/hooks.json"}


class Codex(Agent):
    """OpenAI Codex."""

    name = "codex"
    title = "Codex"
    layout = Layout(before=(BEFORE,), after=(AFTER,), hook=_HOOK)
    project_files = _PROJECT_FILES
    user_file = "hooks.json"
    user_folder = "~/.codex"
    user_folder_variable = "CODEX_HOME"
    other_events = frozenset(
        {
            "Notification", "PermissionRequest", "PostCompact", "PreCompact", "SessionEnd",
            "SessionStart", "Stop", "SubagentStart", "SubagentStop", "UserPromptSubmit",
        }
    )  # fmt: skip
    tool_names = _TOOL_NAMES
    file_tools = _FILE_TOOLS
    folder_tools = _FOLDER_TOOLS
    folder_fields = ("dir_path",)
    replacing_decision = "block"
    is_posix_shell = False
    note = "Codex runs a new hook only after you trust it: open /hooks in Codex and approve it."

    def uses_of(
        self, tool: str, tool_input: Mapping[str, Any], message: Mapping[str, Any], event: str
    ) -> Sequence[ToolUse]:
        if tool == "apply_patch":
            cwd = text_field(message, "cwd", event)
            return files_of_patch(tool_input.get("command"), cwd, event)
        return super().uses_of(tool, tool_input, message, event)

    def permit(self, _request: ToolRequest, ruling: Ruling) -> Reply:
        """An empty answer leaves the call to Codex's own approvals: Codex has no plain allow."""
        if ruling.verdict == "allow" and ruling.updated is None:
            return EMPTY_REPLY
        answer: dict[str, Json] = {"hookEventName": BEFORE}
        if ruling.verdict == "allow":
            answer |= {"permissionDecision": "allow", "updatedInput": ruling.updated}
            return json_reply({"hookSpecificOutput": answer})
        reason = clip_reason(ruling.reason)
        answer |= {"permissionDecision": "deny", "permissionDecisionReason": reason}
        # Codex cannot be stopped before a tool; the person gets a message instead.
        message = clip_reason(f"Cellwall asks to stop here: {ruling.reason}")
        stop = {"systemMessage": message} if ruling.stops else {}
        return json_reply({"hookSpecificOutput": answer, **stop})

    def model_text(self, response: Json) -> str:
        text = super().model_text(response)
        return text if text.strip() else "(empty)"  # an empty reason counts as none
