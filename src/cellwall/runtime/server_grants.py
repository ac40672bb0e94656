"""What the approver signs of an MCP server behind the gateway, and what counts by that (POL-13)."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from cellwall.core.standing_grants import GrantKind, GrantsPort, StandingGrant, digest_of
from cellwall.core.types import Json
from cellwall.mcp_servers.pins import AcceptedTool, Pins
from cellwall.runtime.server_entries import ServerEntry


def entry_grants(entry: ServerEntry) -> tuple[StandingGrant, ...]:
    """What the approver signs of an entry: the server as it is run, and each accepted tool."""
    if entry.pins.identity is None:
        return ()
    tools = (_tool_grant(entry, name, each) for name, each in entry.pins.tools.items())
    return (_server_grant(entry), *tools)


def tool_subject(server: str, tool: str) -> str:
    """The subject of one tool, whatever its definition and however the server is run."""
    return f"{server}/{tool}"


def _server_grant(entry: ServerEntry) -> StandingGrant:
    identity = entry.pins.identity
    fields = None if identity is None else dict(identity.fields)
    digest = digest_of("server", _settings_json(entry), fields, entry.pins.together)
    return StandingGrant(GrantKind.MCP, entry.name, digest)


def _tool_grant(entry: ServerEntry, name: str, tool: AcceptedTool) -> StandingGrant:
    accepted: list[Json] = [
        name,
        dict(tool.definition.fields),
        tool.despite_findings,
        tool.offered_as,
    ]
    digest = digest_of("tool", _settings_json(entry), *accepted)
    return StandingGrant(GrantKind.MCP, tool_subject(entry.name, name), digest)


def _settings_json(entry: ServerEntry) -> Json:
    found: Json = json.loads(json.dumps(asdict(entry.settings)))
    return found


def signed_part(entry: ServerEntry, grants: GrantsPort) -> ServerEntry:
    """The entry without what is not signed."""
    pins = entry.pins
    if pins.identity is None or not grants.is_signed(_server_grant(entry)):
        return replace(entry, pins=Pins(rejected=pins.rejected))
    tools = {
        name: each
        for name, each in pins.tools.items()
        if grants.is_signed(_tool_grant(entry, name, each))
    }
    return replace(entry, pins=replace(pins, tools=tools))
