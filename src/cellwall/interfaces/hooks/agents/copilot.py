"""GitHub Copilot CLI's hook protocol and settings. Pure.

Format: docs.github.com, "GitHub Copilot hooks reference" (github.com/github/docs, content/copilot/
reference/hooks-reference.md, read at commit 60321755, 2026-08), in its camelCase form, whose tool
names are the real ones. It names no event: the command line says which questions are about results.
Before a tool every exit code but 0 denies; a time-out of the host lets the call through, so ours
comes first. After a tool only `modifiedResult` keeps a result away.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cellwall.core.types import Json
from cellwall.interfaces.hooks.agents.agent import Agent, ScannedResult, files_of_patch, with_path
from cellwall.interfaces.hooks.protocol import (
    Malformed,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
    as_text,
    block_reply,
    clip_reason,
    json_field,
    json_line,
    parse_object,
    text_field,
)
from cellwall.interfaces.hooks.settings_text import Layout
from cellwall.interfaces.hooks.withheld_results import NOTE

BEFORE, AFTER = "preToolUse", "postToolUse"
_TIMEOUT_S = 20
_PATHS = ("path",)
_FILE_TOOLS = {"view": "Read", "create": "Write", "edit": "Edit"}
_EDITOR = "str_replace_editor"
_NAMES = {
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


def parse(raw: bytes, after: bool) -> ToolRequest | ToolReport:  # noqa: FBT001  # as `Agent.parse` says
    """Parse a request; raises `Malformed`."""
    event = AFTER if after else BEFORE
    try:
        told = parse_object(raw)
    except Malformed as error:
        raise Malformed(error.message, event) from None
    tool, session = (
        text_field(told, "toolName", event),
        text_field(told, "sessionId", event, default=""),
    )
    cwd = text_field(told, "cwd", event)
    if after != ("toolResult" in told):
        raise Malformed("the request is about another event than the command line says", event)
    if after:
        return ToolReport(_NAMES.get(tool, tool), told["toolResult"], session, "")
    given = json_field(told, "toolArgs", event)
    common: dict[str, Any] = {"event": event, "project": cwd, "given": given}
    if tool == "apply_patch":
        patches = [given[name] for name in ("patch", "input", "command") if name in given]
        first, *others = files_of_patch(patches[0] if len(patches) == 1 else None, cwd, event)
        return ToolRequest(first.tool, first.input, cwd, session, "", also=tuple(others), **common)
    if tool == _EDITOR:
        tool = "view" if given.get("command") == "view" else "edit"
    if tool in _FILE_TOOLS:
        uses = with_path(given, _PATHS, event)
        return ToolRequest(_FILE_TOOLS[tool], uses, cwd, session, "", **common)
    return ToolRequest(_NAMES.get(tool, tool), given, cwd, session, "", **common)


def permit(_asked: ToolRequest, ruling: Ruling) -> Reply:
    """Copilot's `ask` is a denial where nobody watches, but that is not said of every mode."""
    verdict = "allow" if ruling.verdict == "allow" else "deny"
    answer: dict[str, Json] = {
        "permissionDecision": verdict,
        "permissionDecisionReason": clip_reason(ruling.reason),
    }
    if ruling.verdict == "allow" and ruling.updated is not None:
        answer["modifiedArgs"] = ruling.updated
    return Reply(0, json_line(answer))


def report(_told: ToolReport, cleaned: ScannedResult) -> Reply:
    """A text in the place of the result."""
    answer: dict[str, Json] = {}
    if cleaned.is_changed:
        answer["modifiedResult"] = _result(_model_text(cleaned.response))
    if cleaned.findings:
        answer["additionalContext"] = clip_reason(f"Cellwall scanned this result. {cleaned.seen}")
    return Reply(0, json_line(answer))


def _model_text(response: Json) -> str:
    text = response.get("textResultForLlm") if isinstance(response, Mapping) else None
    return text if isinstance(text, str) else as_text(response)


def _result(text: str) -> dict[str, Json]:
    return {"resultType": "success", "textResultForLlm": text}


def refuse(_question: bytes, event: str, reason: str) -> Reply:
    """Exit code 2 denies a call; a result is withheld by a text in its place."""
    said = block_reply(reason)
    if event != AFTER:
        return said
    text = f"{NOTE} {clip_reason(reason)}"
    return Reply(0, json_line({"modifiedResult": _result(text)}), said.stderr)


def _entry(command: str) -> dict[str, Any]:
    return {"type": "command", "bash": command, "timeoutSec": _TIMEOUT_S}


def _places(environ: Mapping[str, str], cwd: str) -> dict[str, str]:
    theirs = environ.get("COPILOT_HOME") or os.path.expanduser("~/.copilot")
    return {
        "project": os.path.join(cwd, ".github", "hooks", "cellwall.json"),
        "user": os.path.join(os.path.abspath(theirs), "hooks", "cellwall.json"),
    }


AGENT = Agent(
    name="copilot",
    title="GitHub Copilot CLI",
    layout=Layout(
        before=(BEFORE,),
        after=(AFTER,),
        entry=_entry,
        key="bash",
        is_grouped=False,
        top={"version": 1},
    ),
    places=_places,
    parse=parse,
    permit=permit,
    report=report,
    refuse=refuse,
    handed_on=("description",),
    own_folders=2,
    names_no_event=True,
    note="Copilot CLI runs the hooks of a repository only in a folder that you have trusted.",
)
