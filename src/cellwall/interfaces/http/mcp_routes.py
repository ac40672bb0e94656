"""The routes of MCP over HTTP: the endpoint, and the metadata that leads clients to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from cellwall.interfaces.mcp.http_endpoint import McpEndpoint
from cellwall.interfaces.mcp.protected_resource import WELL_KNOWN

if TYPE_CHECKING:
    from starlette.requests import Request

PATH = "/mcp"


def mcp_routes(endpoint: McpEndpoint) -> list[BaseRoute]:
    """The endpoint answers every method itself; the metadata is for everybody (RFC 9728)."""

    async def metadata(_: Request) -> JSONResponse:
        return JSONResponse(endpoint.resource.metadata())

    return [
        Route(PATH, endpoint=endpoint),
        Route(WELL_KNOWN + PATH, endpoint=metadata, methods=["GET"]),
        # Where clients look that find nothing at the address with the path.
        Route(WELL_KNOWN, endpoint=metadata, methods=["GET"]),
    ]
