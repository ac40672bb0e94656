"""A real service with MCP over HTTP: uvicorn, accounts in SQLite, the SDK's client against it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
import uvicorn
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cellwall.accounts.service import Accounts
from cellwall.admin.accounts import open_accounts
from cellwall.core.types import Principal
from cellwall.interfaces.http.gate import Gate
from cellwall.interfaces.http.mcp_routes import PATH, mcp_routes
from cellwall.interfaces.mcp.http_clients import ClientBounds
from cellwall.interfaces.mcp.http_endpoint import McpEndpoint
from cellwall.interfaces.mcp.protected_resource import ProtectedResource
from cellwall.runtime.wiring import App, open_app
from cellwall.storage.engine import StorageSettings
from cellwall.storage.schema import migrate
from interfaces.mcp_agent import DEADLINE_S, Agent, Person, environment

ROOT = Principal("root", "cli")


@dataclass
class McpService:
    """A running service."""

    home: Path
    app: App
    accounts: Accounts
    endpoint: McpEndpoint
    api: Starlette
    portal: BlockingPortal
    url: str
    _users: dict[str, str] = field(default_factory=dict)

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            with anyio.fail_after(DEADLINE_S):
                return await work()

        return self.portal.call(within)

    def user(self, name: str, role: str = "power-user") -> str:
        """The id of a user, who is created at the first call."""
        if name not in self._users:
            made = self.run(lambda: self.accounts.directory.add_user(name, role=role, by=ROOT))
            self._users[name] = made.id
        return self._users[name]

    def token(
        self, name: str, role: str = "power-user", *, scopes: tuple[str, ...] = ()
    ) -> tuple[str, str]:
        """A new service token, and its id."""
        user_id = self.user(name, role)
        make = self.accounts.directory.create_token
        secret, token = self.run(
            lambda: make(user_id, name="agent", scopes=scopes, lives_s=3600.0, by=ROOT)
        )
        return secret, token.id

    def http(self, token: str | None = None, **headers: str) -> httpx2.Client:
        """For requests by hand."""
        own = {"authorization": f"Bearer {token}"} if token else {}
        accept = {"accept": "application/json, text/event-stream"}
        return httpx2.Client(headers={**accept, **own, **headers}, timeout=DEADLINE_S)

    @contextmanager
    def signed_in(self, token: str) -> Iterator[str]:
        """An address at which every request bears the token, for programs that cannot send it."""
        bearer = (b"authorization", f"Bearer {token}".encode())

        async def api(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await self.api({**scope, "headers": [*scope["headers"], bearer]}, receive, send)

        with socket.create_server(("127.0.0.1", 0)) as listening:
            opened = listened(api, listening)
            with self.portal.wrap_async_context_manager(opened) as origin:
                yield origin + PATH

    @contextmanager
    def connected(self, token: str, *, mode: str = "auto") -> Iterator[Agent]:
        """The SDK's client."""
        person = Person()

        @asynccontextmanager
        async def opened() -> AsyncIterator[Client]:
            headers = {"authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=DEADLINE_S) as http:
                transport = streamable_http_client(self.url, http_client=http)
                async with Client(transport, mode=mode, elicitation_callback=person.ask) as client:
                    yield client

        with self.portal.wrap_async_context_manager(opened()) as client:
            yield Agent(client, self.portal, person)


@contextmanager
def serving(home: Path, *, config: str | None = None, **bounds: Any) -> Iterator[McpService]:
    """A service on a port of its own."""
    os.makedirs(home, mode=0o700, exist_ok=True)
    app = open_app(config=config, environ=environment(home))
    migrate(StorageSettings(home=str(home)))
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening, start_blocking_portal() as portal:
            opened = _opened(home, app, listening, ClientBounds(**bounds))
            with portal.wrap_async_context_manager(opened) as made:
                yield McpService(home, app, *made, portal, _origin(listening) + PATH)
    finally:
        app.close()


@asynccontextmanager
async def _opened(
    home: Path, app: App, listening: socket.socket, bounds: ClientBounds
) -> AsyncIterator[tuple[Accounts, McpEndpoint, Starlette]]:
    origin = _origin(listening)
    async with open_accounts(str(home), app.settings, issuer=origin, audit=app.audit) as (
        accounts,
        _,
    ):
        resource = ProtectedResource(url=origin + PATH, issuer=origin)
        endpoint = McpEndpoint(app, accounts, resource, bounds)

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with endpoint.running():
                yield

        gate = Middleware(Gate, hosts=("127.0.0.1",), origins=(), max_body_bytes=1 << 26)
        api = Starlette(routes=mcp_routes(endpoint), lifespan=lifespan, middleware=[gate])
        async with listened(api, listening):
            yield accounts, endpoint, api


@asynccontextmanager
async def listened(api: ASGIApp, listening: socket.socket) -> AsyncIterator[str]:
    """Serves until the end of the block."""
    config = uvicorn.Config(api, log_level="error", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listening])
        with anyio.fail_after(DEADLINE_S):
            while not server.started:
                await anyio.sleep(0.01)
        yield _origin(listening)
        server.should_exit = True


def _origin(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"
