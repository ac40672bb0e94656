"""The action that starts an MCP server: argv, limits, egress and secrets of its settings (SRV-7).

A server with a URL runs elsewhere: a relay in the cell forwards to it, and reaches only its domain.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib import resources

from cellwall.core.limits import Limits
from cellwall.core.tool_servers import RunServer, ServerPipe
from cellwall.core.types import Action, Principal, WorkspaceMode, WorkspaceRequest
from cellwall.egress.destinations.hostnames import domain_of
from cellwall.runtime.server_entries import ServerSettings


def start_action(
    settings: ServerSettings,
    session_id: str,
    hold: Callable[[ServerPipe], Awaitable[None]],
    *,
    starter: Principal,
    limits: Limits,
    policy: tuple[str, ...],
) -> Action:
    """Runs the server for as long as `hold` takes."""
    argv, domains = settings.argv, settings.domains
    if settings.url:
        argv = ("python3", "-I", "-c", _relay(), settings.url, *settings.headers)
        domains = (domain_of(settings.url),)
    if settings.memory_bytes:
        limits = replace(limits, memory_bytes=settings.memory_bytes)
    return Action(
        principal=starter,
        operation=RunServer(settings.name, argv, hold, url=settings.url),
        session_id=session_id,
        limits=limits,
        env=dict(settings.env),
        allow_domains=domains,
        secrets=settings.secrets,
        template=settings.template,
        policy=policy,
    )


def workspace_request(settings: ServerSettings) -> WorkspaceRequest:
    """The directory of the server, or a private workspace."""
    return WorkspaceRequest(WorkspaceMode(settings.mode), settings.directory or None)


async def hold_nothing(_: ServerPipe) -> None:
    """For an action of which only the settings count."""


@functools.cache
def _relay() -> str:
    return resources.files("cellwall.mcp_servers").joinpath("relay.py").read_text("utf-8")
