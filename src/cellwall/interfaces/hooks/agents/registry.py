"""The supported agents by name."""

from __future__ import annotations

from cellwall.core.errors import BadInput
from cellwall.interfaces.hooks.agents.agent import Agent
from cellwall.interfaces.hooks.agents.claude_code import ClaudeCode
from cellwall.interfaces.hooks.agents.codex import Codex
from cellwall.interfaces.hooks.agents.copilot import Copilot
from cellwall.interfaces.hooks.agents.cursor import Cursor
from cellwall.interfaces.hooks.agents.gemini_cli import GeminiCli

AGENTS: dict[str, Agent] = {
    agent.name: agent for agent in (ClaudeCode(), Codex(), Cursor(), GeminiCli(), Copilot())
}
ALIASES = {
    "claude": "claude-code",
    "copilot-cli": "copilot",
    "gemini": "gemini-cli",
    "github-copilot": "copilot",
}


def agent_named(name: str | None) -> Agent:
    """The agent with this name, by default Claude Code; an unknown name is refused."""
    wanted = "claude-code" if name is None else name
    agent = AGENTS.get(ALIASES.get(wanted, wanted))
    if agent is None:
        raise BadInput(
            f"unknown agent {wanted[:40]!r}",
            hint=f"Write one of {', '.join(AGENTS)}.",
            code="CW-HOOK-AGENT",
        )
    return agent
