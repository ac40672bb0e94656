"""The tools of other MCP servers, for one client of the gateway (SRV-7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.abc
import anyio.to_thread

from cellwall.interfaces.mcp.gateway import GatewayTools
from cellwall.runtime.home import local_principal
from cellwall.runtime.tool_servers import ToolServers

if TYPE_CHECKING:
    from mcp.server.session import ServerSession
    from mcp_types import Tool

    from cellwall.core.types import Principal
    from cellwall.runtime.app import App


class ServerLender(Protocol):
    """Has the running servers that a client may use."""

    async def borrow(self, tasks: anyio.abc.TaskGroup) -> ToolServers:
        """The servers; they start with their first use. `tasks` are those of the client."""

    async def give_back(self, servers: ToolServers) -> None:
        """The client has ended."""


class OwnServers:
    """Implements `ServerLender` for the one client on standard input and output: the servers are
    started by the person who has configured them, and end with the client."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def borrow(self, tasks: anyio.abc.TaskGroup) -> ToolServers:
        return ToolServers(self._app, tasks, starter=local_principal("cli"))

    async def give_back(self, servers: ToolServers) -> None:
        await servers.close()


class OtherServers:
    """The servers that are configured, and the client that is told of their changes."""

    def __init__(
        self,
        app: App,
        lender: ServerLender,
        *,
        who: Callable[[], Principal],
        policy: tuple[str, ...],
        context: str,
    ) -> None:
        self._app, self._lender = app, lender
        self._who, self._policy, self._context = who, policy, context
        self._has_changed = anyio.Event()
        self._lister: ServerSession | None = None
        self._servers: ToolServers | None = None
        self._gateway: GatewayTools | None = None

    async def open(self, tasks: anyio.abc.TaskGroup) -> GatewayTools:
        """Start to look after the servers; they start with the first use."""
        servers = self._servers = await self._lender.borrow(tasks)
        servers.listeners.add(self._note_change)
        self._gateway = GatewayTools(
            self._app, servers, who=self._who, policy=self._policy, context=self._context
        )
        tasks.start_soon(self._tell_changes)
        return self._gateway

    async def close(self) -> None:
        """The client needs the servers no more."""
        servers, self._servers = self._servers, None
        if servers is not None:
            servers.listeners.discard(self._note_change)
            await self._lender.give_back(servers)

    def act_as(self, who: Principal) -> None:
        """Further servers are started by this principal."""
        if self._servers is not None:
            self._servers.act_as(who)

    async def find(self, tool: str) -> tuple[str, str] | None:
        """Server and tool of a name; see `GatewayTools.find`."""
        return None if self._gateway is None else await self._gateway.find(tool)

    async def tools(self, lister: ServerSession | None) -> list[Tool]:
        """The tools of all servers; `lister` is told when they change."""
        if self._gateway is None:
            return []
        self._lister = lister or self._lister
        return list(await anyio.to_thread.run_sync(self._gateway.tools))

    def _note_change(self) -> None:
        self._has_changed.set()

    async def _tell_changes(self) -> None:
        """Announce other tools to a client that has listed them."""
        while True:
            await self._has_changed.wait()
            self._has_changed = anyio.Event()
            if self._lister is not None:
                # Such a message of a client that has gone is nobody's loss.
                with suppress(Exception):
                    await self._lister.send_tool_list_changed()
