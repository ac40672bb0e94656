"""The section of MCP over HTTP."""

from __future__ import annotations

from typing import Annotated

from cellwall.config.fields import Section, number, one_of, word


class McpSection(Section):
    """MCP over HTTP (SRV-1)."""

    idle_s: int = number(
        1800, "a session without a call for this time ends with its sandboxes", least=1, most=86_400
    )
    max_sessions_per_user: int = number(
        32, "open MCP sessions of one user; beyond it, unused ones end", least=1, most=10_000
    )
    gateway: Annotated[str, one_of("off", "offer")] = word(
        "whether users of the service get the accepted tools of `cellwall mcp gateway`, each with "
        "servers and secrets of their own",
        "off",
        "offer",
    )
    max_servers_per_user: int = number(
        8, "running MCP servers of the gateway for one user", least=1, most=64
    )
    max_sessions: int = number(1024, "open MCP sessions of all users", least=1, most=100_000)
