"""`/ui/servers`: MCP servers behind the gateway, their pinned tools, and what waits for a review.

Only shown here: to accept a definition takes the person at the machine of the service, as
`cellwall mcp gateway review` does. A page that a browser shows is no place to trust a server.
"""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response

from cellwall.admin.tool_servers import ServerEntry, ToolServerAdmin, waiting_in
from cellwall.core.errors import CellwallError
from cellwall.core.types import Permission
from cellwall.interfaces.http.callers import require
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser
from cellwall.interfaces.http.dashboard.pages import PageRoute, render

routes = APIRouter(route_class=PageRoute)


@routes.get("/ui/servers")
async def servers_page(request: Request, browser: CurrentBrowser) -> Response:
    """Each server with its tools."""
    require(browser.service, browser.caller, Permission.CONFIG_WRITE)
    servers = await anyio.to_thread.run_sync(_read, browser, limiter=browser.service.readers)
    return render(request, "servers.html", browser=browser, servers=servers)


def _read(browser: BrowserSession) -> list[dict[str, Any]]:
    admin = ToolServerAdmin(browser.service.app)
    return [_describe(admin, each) for each in admin.entries()]


def _describe(admin: ToolServerAdmin, entry: ServerEntry | CellwallError) -> dict[str, Any]:
    if isinstance(entry, CellwallError):
        return {"name": "", "trouble": entry.message, "tools": (), "waiting": 0}
    waiting = waiting_in(entry)
    tools = () if entry.seen is None else admin.review(entry.name).tools
    return {
        "name": entry.name,
        "trouble": "",
        "place": entry.settings.url or " ".join(entry.settings.argv),
        "seen_at": entry.seen_at,
        "pinned": len(entry.pins.tools),
        "waiting": len(waiting),
        "tools": [
            {
                "name": each.change.name or "the server itself",
                "state": each.change.state,
                "diff": each.change.diff(),
                "findings": [finding.message for finding in each.findings],
                "shadows": each.shadows,
            }
            for each in tools
        ],
    }
