"""The tools of each agent under the policy of `cellwall policy init`: what is harmless passes, what
writes is judged as a write, and all else is asked about."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from cellwall.core.verdict import Verdict, strictest
from cellwall.interfaces.hooks.agents.registry import agent_named
from cellwall.interfaces.hooks.protocol import ToolRequest
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from cellwall.policy.starter import ProjectFiles, start

pytestmark = pytest.mark.requirement("POL-1", "POL-14")

CWD, HOME = "/w/project", "/home/ann"
CELLWALL_TOOLS = (
    *("run_code", "run_command", "read_file", "write_file", "list_files", "fetch_url"),
    *("new_session", "end_session"),
)
KEY = f"{HOME}/.ssh/id_rsa"
PATCH = "*** Begin Patch\n*** Update File: {}\n@@\n-a\n+b\n*** End Patch"


def question(agent: str, tool: str, given: dict[str, Any]) -> bytes:
    told: dict[str, Any] = {"session_id": "s", "cwd": CWD, "tool_name": tool, "tool_input": given}
    match agent:
        case "cursor":
            told |= {"hook_event_name": "preToolUse", "conversation_id": "s"}
            told["workspace_roots"] = [CWD]
        case "gemini-cli":
            told["hook_event_name"] = "BeforeTool"
        case "copilot":
            told = {"sessionId": "s", "cwd": CWD, "toolName": tool, "toolArgs": json.dumps(given)}
        case _:
            told["hook_event_name"] = "PreToolUse"
    return json.dumps(told).encode()


@cache
def starter() -> Policy:
    text = start(ProjectFiles()).text
    return Policy.of(parse_policy(text, file="p", name="p", layer=Layer.PROJECT, folder=CWD).rules)


def judged(agent: str, tool: str, given: dict[str, Any]) -> str:
    asked = agent_named(agent).parse(question(agent, tool, given), False)
    assert isinstance(asked, ToolRequest)
    calls = [ToolCall(use.tool, use.input, asked.cwd, HOME) for use in asked.uses]
    return strictest(*(starter().check(call) for call in calls)).verdict.word


ALLOWED = [
    *(("claude-code", tool, {}) for tool in (
        "TodoWrite", "Task", "Agent", "AskUserQuestion", "EnterPlanMode", "ExitPlanMode",
        "BashOutput", "KillShell", "TaskOutput", "TaskStop", "TaskList", "Skill", "SlashCommand",
        "SendMessage", "TeamCreate", "CronList", "CronDelete", "ReportFindings",
        "ToolSearch", "ListMcpResourcesTool", "ReadMcpResourceTool", "Grep", "LS",
        *(f"mcp__cellwall__{name}" for name in CELLWALL_TOOLS),
    )),
    ("claude-code", "Glob", {"pattern": "**/*.py"}),
    ("claude-code", "Grep", {"pattern": "x", "glob": "*.py"}),
    ("claude-code", "NotebookRead", {"notebook_path": f"{CWD}/a.ipynb"}),
    ("claude-code", "NotebookEdit", {"notebook_path": f"{CWD}/a.ipynb"}),
    ("codex", "update_plan", {"plan": []}),
    ("codex", "view_image", {"path": "a.png"}),
    ("codex", "read_file", {"file_path": f"{CWD}/a.py"}),
    ("codex", "list_dir", {"dir_path": CWD}),
    ("codex", "grep_files", {"pattern": "x"}),
    ("codex", "apply_patch", {"command": PATCH.format("src/a.py")}),
    ("codex", "request_user_input", {}),
    ("codex", "list_mcp_resources", {}),
    *(("codex", tool, {}) for tool in (
        "spawn_agent", "send_input", "send_message", "resume_agent", "wait_agent", "close_agent",
        "list_agents", "followup_task",
    )),
    ("cursor", "Read", {"path": f"{CWD}/a.py"}),
    ("cursor", "StrReplace", {"path": f"{CWD}/a.py"}),
    ("cursor", "EditNotebook", {"target_notebook": f"{CWD}/a.ipynb"}),
    ("cursor", "SemanticSearch", {"query": "x"}),
    ("cursor", "ReadLints", {"paths": []}),
    ("cursor", "TodoWrite", {}),
    ("cursor", "AskQuestion", {}),
    ("gemini-cli", "read_file", {"absolute_path": f"{CWD}/a.py"}),
    ("gemini-cli", "list_directory", {"path": CWD}),
    ("gemini-cli", "glob", {"pattern": "**/*.py"}),
    ("gemini-cli", "search_file_content", {"pattern": "x"}),
    ("gemini-cli", "write_todos", {}),
    ("gemini-cli", "enter_plan_mode", {}),
    ("gemini-cli", "update_topic", {}),
    ("gemini-cli", "complete_task", {}),
    ("gemini-cli", "get_internal_docs", {}),
    ("copilot", "view", {"path": f"{CWD}/a.py"}),
    ("copilot", "report_intent", {"intent": "x"}),
    ("copilot", "update_todo", {}),
    ("copilot", "skill", {}),
    ("copilot", "exit_plan_mode", {}),
    ("copilot", "list_agents", {}),
    ("copilot", "task_complete", {}),
    ("copilot", "fetch_copilot_cli_documentation", {}),
]  # fmt: skip
ASKED = [
    ("claude-code", "WebSearch", {"query": "x"}),
    ("claude-code", "WebFetch", {"url": "https://example.com"}),
    ("claude-code", "CronCreate", {}),
    ("claude-code", "mcp__github__create_issue", {}),
    ("codex", "web_search", {"query": "x"}),
    ("codex", "write_stdin", {"session_id": 1, "chars": "x"}),
    ("gemini-cli", "save_memory", {"fact": "x"}),
    ("gemini-cli", "google_web_search", {"query": "x"}),
    ("copilot", "write_bash", {"input": "x"}),
    ("copilot", "store_memory", {"fact": "x"}),
]
DENIED = [
    ("claude-code", "Read", {"file_path": KEY}),
    ("claude-code", "Grep", {"pattern": "x", "glob": ".env"}),
    ("claude-code", "NotebookRead", {"notebook_path": f"{CWD}/.env"}),
    ("claude-code", "MultiEdit", {"file_path": f"{CWD}/CLAUDE.md"}),
    ("codex", "read_file", {"file_path": KEY}),
    ("codex", "view_image", {"path": KEY}),
    ("codex", "grep_files", {"pattern": "x", "path": f"{HOME}/.ssh"}),
    ("codex", "apply_patch", {"command": PATCH.format("AGENTS.md")}),
    ("cursor", "StrReplace", {"path": f"{CWD}/.cursorrules"}),
    ("cursor", "Delete", {"path": f"{HOME}/.bashrc"}),
    ("cursor", "EditNotebook", {"target_notebook": f"{HOME}/.bashrc"}),
    ("gemini-cli", "write_file", {"file_path": f"{CWD}/GEMINI.md"}),
    ("gemini-cli", "replace", {"file_path": f"{HOME}/.bashrc"}),
    ("copilot", "create", {"path": f"{CWD}/.github/copilot-instructions.md"}),
    ("copilot", "apply_patch", {"patch": PATCH.format(".git/config")}),
]


@pytest.mark.parametrize(
    ("agent", "tool", "given", "verdict"),
    [
        *((*each, Verdict.ALLOW.word) for each in ALLOWED),
        *((*each, Verdict.ASK.word) for each in ASKED),
        *((*each, Verdict.DENY.word) for each in DENIED),
    ],
)
def test_each_tool_is_judged_by_what_it_does(agent, tool, given, verdict):
    assert judged(agent, tool, given) == verdict
