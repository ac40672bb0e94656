"""Gemini CLI's hook protocol and settings. Pure.

Format: github.com/google-gemini/gemini-cli, docs/hooks/reference.md, packages/core/src/hooks/
hookRunner.ts and hookAggregator.ts, read at commit 5411f113 (2026-08). Exit code 2 with an empty
standard output blocks a call and hides a result; JSON on standard output counts even then, so a
refusal has none. `decision: "ask"` is new: older versions take it for an allow, so it is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cellwall.core.types import Json
from cellwall.interfaces.hooks.agents.agent import (
    HOOK_TIMEOUT_S,
    Agent,
    below,
    mcp_tool,
    with_path,
)
from cellwall.interfaces.hooks.protocol import (
    Reply,
    Ruling,
    ToolRequest,
    ToolUse,
    clip_reason,
    json_reply,
    object_field,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout

BEFORE, AFTER = "BeforeTool", "AfterTool"
_HOOK_NAME = "cellwall"
_HOOK = {"type": "command", "name": _HOOK_NAME, "command": "", "timeout": HOOK_TIMEOUT_S * 1000}
_SHELL = "run_shell_command"
_FILE_TOOLS = {"read_file": "Read", "write_file": "Write", "replace": "Edit"}
_FOLDER_TOOLS = {
    "glob": "Glob",
    "grep_search": "Grep",
    "search_file_content": "Grep",
    "list_directory": "LS",
}
_TOOL_NAMES = {
    "activate_skill": "Skill",
    "ask_user": "AskUserQuestion",
    "codebase_investigator": "Task",
    "complete_task": "StructuredOutput",
    "enter_plan_mode": "EnterPlanMode",
    "exit_plan_mode": "ExitPlanMode",
    "google_web_search": "WebSearch",
    "invoke_agent": "Task",
    _SHELL: "Bash",
    "update_topic": "TodoWrite",
    "write_todos": "TodoWrite",
}
_PROJECT_FILES = {"project": ".gemini/settings.json"}


class GeminiCli(Agent):
    """Gemini CLI."""

    name = "gemini-cli"
    title = "Gemini CLI"
    layout = Layout(before=(BEFORE,), after=(AFTER,), hook=_HOOK)
    project_files = _PROJECT_FILES
    user_file = "settings.json"
    user_folder = "~/.gemini"
    other_events = frozenset(
        {
            "AfterAgent", "AfterModel", "BeforeAgent", "BeforeModel", "BeforeToolSelection",
            "Notification", "PreCompress", "SessionEnd", "SessionStart",
        }
    )  # fmt: skip
    call_field = ""
    replacing_decision = "deny"
    tool_names = _TOOL_NAMES
    file_tools = _FILE_TOOLS
    file_fields = ("absolute_path", "path")
    folder_tools = _FOLDER_TOOLS
    folder_fields = ("dir_path", "directory")
    note = "Gemini CLI runs the hooks of a project only in a folder that you have trusted."

    def result_tool(self, tool: str, message: Mapping[str, Any], event: str) -> str:
        tool_input = object_field(message, "tool_input", event)
        return self.uses_of(tool, tool_input, message, event)[0].tool

    def uses_of(
        self, tool: str, tool_input: Mapping[str, Any], message: Mapping[str, Any], event: str
    ) -> Sequence[ToolUse]:
        server = message.get("mcp_context")
        if isinstance(server, dict):
            names = text_field(server, "server_name", event), text_field(server, "tool_name", event)
            return (ToolUse(mcp_tool(*names, otherwise=tool), tool_input),)
        if tool == "web_fetch":
            # The tool fetches the URLs in its prompt, so each URL is a fetch of its own.
            words = f"{tool_input.get('url', '')} {tool_input.get('prompt', '')}".split()
            fetches = [ToolUse("WebFetch", {"url": word}) for word in words if "://" in word]
            return fetches or (ToolUse(tool, tool_input),)
        return super().uses_of(tool, tool_input, message, event)

    def command_folder(self, tool: str, tool_input: Mapping[str, Any], cwd: str, event: str) -> str:
        if tool != _SHELL:
            return cwd
        folder = with_path(tool_input, self.folder_fields, event, name="dir_path").get("dir_path")
        return below(cwd, folder, event)

    def permit(self, _request: ToolRequest, ruling: Ruling) -> Reply:
        """The fields of `tool_input` replace those of the model's arguments."""
        if ruling.verdict == "allow":
            answer: dict[str, Json] = {"decision": "allow"}
            if ruling.updated is not None:
                updated: dict[str, Json] = {"hookEventName": BEFORE, "tool_input": ruling.updated}
                answer["hookSpecificOutput"] = updated
            return json_reply(answer)
        reason = clip_reason(ruling.reason)
        stop: dict[str, Json] = {"continue": False, "stopReason": reason} if ruling.stops else {}
        return json_reply({"decision": "deny", "reason": reason, **stop})

    def model_text(self, response: Json) -> str:
        content = response.get("llmContent") if isinstance(response, Mapping) else None
        return content if isinstance(content, str) and content else super().model_text(response)

    def disabled_by(self, settings: Mapping[str, Any]) -> str:
        """docs/reference/configuration.md: `hooksConfig`."""
        chosen = settings.get("hooksConfig")
        if not isinstance(chosen, Mapping):
            return ""
        if chosen.get("enabled") is False:
            return '"hooksConfig.enabled" is off'
        disabled = chosen.get("disabled")
        is_ours = isinstance(disabled, list) and _HOOK_NAME in disabled
        return '"hooksConfig.disabled" names our hook' if is_ours else ""
