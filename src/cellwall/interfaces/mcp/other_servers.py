"""The tools of other MCP servers, for one client of the gateway (SRV-7)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.to_thread

from cellwall.interfaces.mcp.gateway import GatewayTools
from cellwall.runtime.tool_servers import ToolServers
from cellwall.runtime.wiring import principal

if TYPE_CHECKING:
    from mcp.server.session import ServerSession
    from mcp_types import Tool

    from cellwall.core.types import Action
    from cellwall.runtime.wiring import App


class OtherServers:
    """The servers that the user has configured, and the client that is told of their changes."""

    def __init__(self, app: App, pattern: Action) -> None:
        self._app = app
        self._pattern = pattern
        self._has_changed = anyio.Event()
        self._lister: ServerSession | None = None
        self.gateway: GatewayTools | None = None

    def open(self, tasks: anyio.abc.TaskGroup) -> GatewayTools:
        """Start to look after the servers; they start with the first use."""
        servers = ToolServers(
            self._app, tasks, starter=principal("cli"), on_change=self._note_change
        )
        self.gateway = GatewayTools(self._app, self._pattern, servers)
        tasks.start_soon(self._tell_changes)
        return self.gateway

    async def close(self) -> None:
        """End the servers."""
        if self.gateway is not None:
            await self.gateway.close()

    def has(self, tool: str) -> bool:
        """Whether a server has this tool now, accepted by a person."""
        return self.gateway is not None and self.gateway.find(tool) is not None

    async def tools(self, lister: ServerSession | None) -> list[Tool]:
        """The tools of all servers; `lister` is told when they change."""
        if self.gateway is None:
            return []
        self._lister = lister or self._lister
        return list(await anyio.to_thread.run_sync(self.gateway.tools))

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
