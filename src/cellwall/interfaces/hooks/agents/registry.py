"""The supported agents by name."""

from __future__ import annotations

from cellwall.core.errors import BadInput
from cellwall.interfaces.hooks.agents import claude_code, codex, copilot, cursor, gemini_cli
from cellwall.interfaces.hooks.agents.agent import Agent

AGENTS: dict[str, Agent] = {
    module.AGENT.name: module.AGENT for module in (claude_code, codex, cursor, gemini_cli, copilot)
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
    found = AGENTS.get(ALIASES.get(wanted, wanted))
    if found is None:
        raise BadInput(
            f"unknown agent {wanted[:40]!r}",
            hint=f"Write one of {', '.join(AGENTS)}.",
            code="CW-HOOK-AGENT",
        )
    return found
