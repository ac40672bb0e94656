"""The tools that rules can name, and which of them are one to a rule. Pure."""

from __future__ import annotations

import re
from typing import Literal

from cellwall.core.verdict import Verdict

Group = Literal["bash", "read", "write", "fetch", "search", "code", "mcp", "other"]

GROUPS: dict[str, Group] = {
    "Bash": "bash",
    "Read": "read",
    "Grep": "read",
    "Glob": "read",
    "LS": "read",
    "NotebookRead": "read",
    "Write": "write",
    "Edit": "write",
    "MultiEdit": "write",
    "NotebookEdit": "write",
    "WebFetch": "fetch",
    "WebSearch": "search",
    "Code": "code",
}
"""A rule for one tool of a group speaks of all: what `Edit` may not change, nor may `Write`."""

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,255}")
MCP = "mcp__"
_MCP_PATTERN = re.compile(r"mcp__(?:\*|[A-Za-z0-9_-]+\*?)")


def group_of(tool: str) -> Group:
    """The group of a tool, or of a rule's tool."""
    return "mcp" if tool.startswith(MCP) else GROUPS.get(tool, "other")


def is_mcp_pattern(text: str) -> bool:
    """`mcp__server`, `mcp__server__tool`, and a `*` at the end of either."""
    return _MCP_PATTERN.fullmatch(text) is not None


def covers(rule_tool: str, tool: str, verdict: Verdict) -> bool:
    """Whether a rule for `rule_tool` speaks of calls of `tool`."""
    group = group_of(tool)
    if group_of(rule_tool) != group:
        return False
    if group == "mcp":
        return _covers_mcp(rule_tool, tool, verdict)
    return group != "other" or rule_tool == tool


def _covers_mcp(rule_tool: str, tool: str, verdict: Verdict) -> bool:
    if rule_tool == tool:
        return True
    # A server alone means all of its tools.
    prefix = rule_tool[:-1] if rule_tool.endswith("*") else rule_tool + "__"
    if not tool.startswith(prefix):
        return False
    # Attack: a server that calls itself `github__x` has tools that look like those of `github`.
    # Where a name can be split in two ways, an allow means neither and a denial both.
    return verdict is not Verdict.ALLOW or "__" not in tool[len(prefix) - 1 :]
