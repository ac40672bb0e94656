"""Cursor's hook protocol and settings. Pure.

Format: cursor.com/docs/hooks (preToolUse, postToolUse, beforeShellExecution, beforeMCPExecution,
beforeReadFile; hooks.json with `failClosed`), as read in 2026-11 from public copies of that page
and from recorded payloads of other projects. `ask` is left out: in auto-review mode the command
runs without a question (forum.cursor.com, topic 173694).

Only `preToolUse` takes an updated input. `beforeShellExecution` sees the command that is about to
run: there a command that was not rewritten is denied, so that a version that ignores the updated
input runs nothing outside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cellwall.core.types import Json
from cellwall.interfaces.hooks.agents.agent import (
    HOOK_TIMEOUT_S,
    Agent,
    ScannedResult,
    below,
    mcp_tool,
)
from cellwall.interfaces.hooks.protocol import (
    Malformed,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    ToolUse,
    clip_reason,
    json_field,
    json_reply,
    object_field,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout

BEFORE, AFTER = "preToolUse", "postToolUse"
SHELL, MCP, READ = "beforeShellExecution", "beforeMCPExecution", "beforeReadFile"
_HOOK = {"command": "", "timeout": HOOK_TIMEOUT_S, "failClosed": True}
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
_TOOL_NAMES = {
    "AskQuestion": "AskUserQuestion",
    "Await": "TaskOutput",
    "FetchMcpResource": "ReadMcpResourceTool",
    "ListMcpResources": "ListMcpResourcesTool",
    "ReadLints": "LSP",
    "Shell": "Bash",
    "SwitchMode": "EnterPlanMode",
}
_MCP_PREFIX = "MCP:"
_NO_SERVER = "cursor"
"""Cursor names the tool of a server and not the server."""
_PROJECT_FILES = {"project": ".cursor/hooks.json"}
_FILE_FORM = {"version": 1}


class Cursor(Agent):
    """Cursor."""

    name = "cursor"
    title = "Cursor"
    layout = Layout(
        before=(BEFORE, SHELL, MCP, READ),
        after=(AFTER,),
        hook=_HOOK,
        is_grouped=False,
        top=_FILE_FORM,
    )
    project_files = _PROJECT_FILES
    user_file = "hooks.json"
    user_folder = "~/.cursor"
    other_events = frozenset(
        {
            "afterAgentResponse", "afterAgentThought", "afterFileEdit", "afterMCPExecution",
            "afterShellExecution", "afterTabFileEdit", "beforeSubmitPrompt", "beforeTabFileRead",
            "postToolUseFailure", "preCompact", "sessionEnd", "sessionStart", "stop",
            "subagentStart", "subagentStop", "workspaceOpen",
        }
    )  # fmt: skip
    session_field = "conversation_id"
    is_session_optional = True
    result_field = "tool_output"
    tool_names = _TOOL_NAMES
    file_tools = _FILE_TOOLS
    file_fields = ("path", "target_file", "filePath", "target_notebook")
    folder_tools = _FOLDER_TOOLS
    folder_fields = ("target_directory",)
    kept_fields = ("description", "working_directory", "timeout")
    timeout_field = "timeout"
    is_posix_shell = False

    def parse_report(self, message: Mapping[str, Any], event: str) -> ToolReport:
        _workspace_roots(message, event)
        return super().parse_report(message, event)

    def result_tool(self, tool: str, _message: Mapping[str, Any], event: str) -> str:
        return self.use_of(tool, {}, event).tool

    def parse_request(self, message: Mapping[str, Any], event: str) -> ToolRequest:
        roots = _workspace_roots(message, event)
        use, tool_input = self._parse_use(message, event)
        cwd = _directory(message, tool_input, roots, event)
        session, call = self.session_and_call(message, event)
        return ToolRequest(
            use.tool,
            use.input,
            cwd,
            session,
            call,
            event=event,
            project=_root_of(cwd, roots),
            original_input=tool_input,
            is_final=event == SHELL,
        )

    def _parse_use(self, message: Mapping[str, Any], event: str) -> tuple[ToolUse, dict[str, Any]]:
        if event == SHELL:
            tool_input: dict[str, Any] = {"command": text_field(message, "command", event)}
            return ToolUse("Bash", tool_input), tool_input
        if event == READ:
            tool_input = {"file_path": text_field(message, "file_path", event)}
            return ToolUse("Read", tool_input), tool_input
        tool = text_field(message, "tool_name", event)
        if event == MCP:
            tool_input = json_field(message, "tool_input", event)
            name = _MCP_PREFIX + tool.removeprefix(_MCP_PREFIX)
            return self.use_of(name, tool_input, event), tool_input
        tool_input = object_field(message, "tool_input", event)
        return self.use_of(tool, tool_input, event), tool_input

    def use_of(self, tool: str, tool_input: Mapping[str, Any], event: str) -> ToolUse:
        if tool.startswith(_MCP_PREFIX):
            server, colon, name = tool.removeprefix(_MCP_PREFIX).rpartition(":")
            named = mcp_tool(server if colon else _NO_SERVER, name, otherwise=tool)
            return ToolUse(named, tool_input)
        return super().use_of(tool, tool_input, event)

    def permit(self, request: ToolRequest, ruling: Ruling) -> Reply:
        """`agent_message` is for the model, `user_message` for the person."""
        if ruling.verdict == "allow":
            answer: dict[str, Json] = {"permission": "allow"}
            if ruling.updated is not None and request.event == BEFORE:
                answer["updated_input"] = ruling.updated
            return json_reply(answer)
        reason = clip_reason(ruling.reason)
        stop = "Stop here and tell the user. " if ruling.stops else ""
        return json_reply(
            {"permission": "deny", "user_message": reason, "agent_message": stop + reason}
        )

    def report(self, report: ToolReport, scanned: ScannedResult) -> Reply:
        """Cursor replaces only results of MCP tools; other results get a warning."""
        answer: dict[str, Json] = {}
        if scanned.is_changed and report.tool.startswith("mcp__"):
            answer["updated_mcp_tool_output"] = scanned.response
        if scanned.findings:
            answer["additional_context"] = scanned.context
        return json_reply(answer)


def _workspace_roots(message: Mapping[str, Any], event: str) -> list[str]:
    roots = message.get("workspace_roots", [])
    if not isinstance(roots, list) or not all(isinstance(root, str) for root in roots):
        raise Malformed("workspace_roots is not a list of strings", event)
    return roots


def _directory(
    message: Mapping[str, Any], tool_input: Mapping[str, Any], roots: list[str], event: str
) -> str:
    here = text_field(message, "cwd", event, default="") or (roots[0] if roots else "")
    folder = tool_input.get("working_directory") if event == BEFORE else None
    directory = below(here, folder, event)
    if not os.path.isabs(directory):
        raise Malformed("the working directory is missing", event)
    return directory


def _root_of(cwd: str, roots: list[str]) -> str | None:
    """The innermost workspace that contains the directory; else the first, which does not."""
    around = [root for root in roots if cwd == root or cwd.startswith(root.rstrip("/") + "/")]
    return max(around, key=len) if around else next(iter(roots), None)
