"""GitHub Copilot CLI's hook protocol and settings. Pure.

Format: docs.github.com, "GitHub Copilot hooks reference" (github.com/github/docs, content/copilot/
reference/hooks-reference.md, read at commit 60321755, 2026-08), in its camelCase form, whose tool
names are the real ones. A request names no event: the command line says which are about results.
Before a tool every exit code but 0 denies; a time-out of the host lets the call through, so ours
comes first. After a tool only `modifiedResult` keeps a result away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cellwall.core.types import Json
from cellwall.interfaces.hooks.agents.agent import (
    HOOK_TIMEOUT_S,
    Agent,
    ScannedResult,
    files_of_patch,
)
from cellwall.interfaces.hooks.protocol import (
    Malformed,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    ToolUse,
    block_reply,
    clip_reason,
    json_line,
    json_reply,
    parse_object,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout
from cellwall.interfaces.hooks.withheld_results import NOTE

BEFORE, AFTER = "preToolUse", "postToolUse"
_HOOK = {"type": "command", "bash": "", "timeoutSec": HOOK_TIMEOUT_S}
_FILE_TOOLS = {"view": "Read", "create": "Write", "edit": "Edit"}
_EDITOR = "str_replace_editor"
_TOOL_NAMES = {
    "ask_user": "AskUserQuestion",
    "bash": "Bash",
    "exit_plan_mode": "ExitPlanMode",
    "glob": "Glob",
    "grep": "Grep",
    "list_agents": "TaskList",
    "powershell": "PowerShell",
    "lsp": "LSP",
    "read_agent": "TaskOutput",
    "rg": "Grep",
    "skill": "Skill",
    "task": "Task",
    "task_complete": "StructuredOutput",
    "update_todo": "TodoWrite",
    "web_fetch": "WebFetch",
    "web_search": "WebSearch",
    "write_agent": "Task",
}
_PROJECT_FILES = {"project": ".github/hooks/cellwall.json"}
_FILE_FORM = {"version": 1}


class Copilot(Agent):
    """GitHub Copilot CLI."""

    name = "copilot"
    title = "GitHub Copilot CLI"
    layout = Layout(
        before=(BEFORE,),
        after=(AFTER,),
        hook=_HOOK,
        key="bash",
        is_grouped=False,
        top=_FILE_FORM,
    )
    project_files = _PROJECT_FILES
    user_file = "hooks/cellwall.json"
    user_folder = "~/.copilot"
    user_folder_variable = "COPILOT_HOME"
    session_field = "sessionId"
    is_session_optional = True
    call_field = ""
    tool_field = "toolName"
    input_field = "toolArgs"
    is_input_text = True
    result_field = "toolResult"
    tool_names = _TOOL_NAMES
    file_tools = _FILE_TOOLS
    kept_fields = ("description",)
    own_folders = 2
    names_no_event = True
    note = "Copilot CLI runs the hooks of a repository only in a folder that you have trusted."

    def parse(self, raw: bytes, after: bool) -> ToolRequest | ToolReport:  # noqa: FBT001  # as the base class
        event = AFTER if after else BEFORE
        try:
            message = parse_object(raw)
        except Malformed as error:
            raise Malformed(error.message, event) from None
        if after != (self.result_field in message):
            raise Malformed("the request is about another event than the command line says", event)
        return self.parse_report(message, event) if after else self.parse_request(message, event)

    def uses_of(
        self, tool: str, tool_input: Mapping[str, Any], message: Mapping[str, Any], event: str
    ) -> Sequence[ToolUse]:
        if tool == "apply_patch":
            names = ("patch", "input", "command")
            patches = [tool_input[name] for name in names if name in tool_input]
            patch = patches[0] if len(patches) == 1 else None
            return files_of_patch(patch, text_field(message, "cwd", event), event)
        if tool == _EDITOR:
            tool = "view" if tool_input.get("command") == "view" else "edit"
        return super().uses_of(tool, tool_input, message, event)

    def permit(self, _request: ToolRequest, ruling: Ruling) -> Reply:
        """No `ask`: it is a denial in unattended modes, but not documented as one in every mode."""
        is_allowed = ruling.verdict == "allow"
        answer: dict[str, Json] = {
            "permissionDecision": "allow" if is_allowed else "deny",
            "permissionDecisionReason": clip_reason(ruling.reason),
        }
        if is_allowed and ruling.updated is not None:
            answer["modifiedArgs"] = ruling.updated
        return json_reply(answer)

    def report(self, _report: ToolReport, scanned: ScannedResult) -> Reply:
        """A text replaces the result."""
        answer: dict[str, Json] = {}
        if scanned.is_changed:
            answer["modifiedResult"] = _result(self.model_text(scanned.response))
        if scanned.findings:
            answer["additionalContext"] = scanned.context
        return json_reply(answer)

    def model_text(self, response: Json) -> str:
        text = response.get("textResultForLlm") if isinstance(response, Mapping) else None
        return text if isinstance(text, str) else super().model_text(response)

    def refuse(self, _request: bytes, event: str, reason: str) -> Reply:
        """Exit code 2 denies a call; a result is withheld by a text that replaces it."""
        blocked = block_reply(reason)
        if event != AFTER:
            return blocked
        text = f"{NOTE} {clip_reason(reason)}"
        return Reply(0, json_line({"modifiedResult": _result(text)}), blocked.stderr)


def _result(text: str) -> dict[str, Json]:
    return {"resultType": "success", "textResultForLlm": text}
