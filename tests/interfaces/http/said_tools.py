"""What an MCP server behind the gateway said when it was looked at."""

from __future__ import annotations

from cellwall.core.types import Json
from cellwall.mcp_servers.definitions import tool_set
from cellwall.runtime.server_catalog import ServerCatalog
from cellwall.runtime.server_entries import ServerSettings
from interfaces.http.running_service import RunningService

NAME = "notes"


def say(service: RunningService, *tools: tuple[str, str]) -> None:
    """The server is looked at, and has these tools."""
    identity: dict[str, Json] = {"name": NAME, "version": "1", "instructions": "Notes."}
    schema: Json = {"type": "object", "properties": {}}
    listed: list[dict[str, Json]] = [
        {"name": name, "description": text, "inputSchema": schema} for name, text in tools
    ]
    catalog = ServerCatalog(service.app.store.home, None)
    if NAME not in catalog.names():
        catalog.add(ServerSettings(name=NAME, argv=("notes-server",)))
    catalog.note_seen(NAME, tool_set(identity, listed))


def accepted(service: RunningService) -> set[str]:
    return set(ServerCatalog(service.app.store.home, None).read(NAME).pins.tools)
