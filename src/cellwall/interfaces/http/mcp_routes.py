"""MCP over HTTP as a part of the service: its routes, and the metadata that leads clients to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from cellwall.admin.accounts import Accounts
from cellwall.core.account_ports import SessionsPort
from cellwall.interfaces.http.service import ServiceSettings
from cellwall.interfaces.mcp.http_endpoint import McpEndpoint
from cellwall.interfaces.mcp.http_records import StoredSandboxes
from cellwall.interfaces.mcp.protected_resource import WELL_KNOWN, ProtectedResource
from cellwall.runtime.app import App

if TYPE_CHECKING:
    from starlette.requests import Request

PATH = "/mcp"


def mcp_endpoint(
    app: App, accounts: Accounts, settings: ServiceSettings, store: SessionsPort
) -> McpEndpoint:
    """The endpoint for one runtime; its sandboxes count like those of the API."""
    return McpEndpoint(
        app,
        accounts,
        ProtectedResource(
            url=settings.mcp_url,
            issuer=settings.public_url,
            with_gateway=app.settings.mcp.gateway == "offer",
        ),
        records_of=lambda owner: StoredSandboxes(
            store, owner, settings.max_sessions_per_user, settings.tenant
        ),
    )


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
