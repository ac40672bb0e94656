"""A real service with MCP over HTTP: uvicorn, accounts in SQLite, the SDK's client against it."""

from __future__ import annotations

import json
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
from starlette.types import ASGIApp, Receive, Scope, Send

from cellwall.accounts.service import Accounts
from cellwall.admin.accounts import open_accounts
from cellwall.core.types import Principal
from cellwall.interfaces.http.application import ServiceSettings, make_application
from cellwall.interfaces.http.mcp_routes import PATH
from cellwall.interfaces.mcp.http_endpoint import McpEndpoint
from cellwall.runtime.app import App
from cellwall.runtime.wiring import open_app
from cellwall.storage.engine import StorageSettings
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store
from interfaces.mcp_agent import DEADLINE_S, Agent, Person, environment
from plain_http import NO_AUTHORITIES

BOSS = Principal("root", "cli")
_PASSWORD = "correct horse battery"
# A hash in a millisecond, and bad tokens without consequence: most tests are not about them.
_ACCOUNTS = """
[accounts]
argon2_memory_kib = 64
argon2_passes = 1
free_guesses_per_address = 1000
"""


@dataclass
class McpService:
    """A running service."""

    home: Path
    app: App
    accounts: Accounts
    store: Store
    endpoint: McpEndpoint
    api: ASGIApp
    portal: BlockingPortal
    url: str
    user_ids: dict[str, str] = field(default_factory=dict)
    with_password: set[str] = field(default_factory=set)
    opened: list[httpx2.Client] = field(default_factory=list)

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            with anyio.fail_after(DEADLINE_S):
                return await work()

        return self.portal.call(within)

    def user(self, name: str, role: str = "power-user") -> str:
        """The id of a user, who is created at the first call."""
        if name not in self.user_ids:
            made = self.run(lambda: self.accounts.directory.add_user(name, role=role, by=BOSS))
            self.user_ids[name] = made.id
        return self.user_ids[name]

    def token(
        self, name: str, role: str = "power-user", *, scopes: tuple[str, ...] = ()
    ) -> tuple[str, str]:
        """A new service token, and its id."""
        user_id = self.user(name, role)
        make = self.accounts.directory.create_token
        secret, token = self.run(
            lambda: make(user_id, name="agent", scopes=scopes, lives_s=3600.0, by=BOSS)
        )
        return secret, token.id

    def access_token(self, name: str, *, audience: str) -> str:
        """Of a person who signs in."""
        user_id = self.user(name)
        signs_in = self.accounts.sign_in

        async def sign_in() -> str:
            own = {"address": "127.0.0.1", "audience": audience}
            if name not in self.with_password:
                self.with_password.add(name)
                link = await signs_in.make_link(user_id, by=BOSS)
                await signs_in.by_link(link, _PASSWORD, **own)
            return (await signs_in.by_password(name, _PASSWORD, **own)).access

        return self.run(sign_in)

    def set_role(self, name: str, role: str) -> None:
        self.run(lambda: self.accounts.directory.set_role(self.user_ids[name], role, by=BOSS))

    def count_sandboxes(self, name: str) -> int:
        async def count() -> int:
            live = self.endpoint._clients._live.values()
            own = [each for each in live if each.identity.name == name]
            return sum(len(each._session.sandboxes._live) for each in own)

        return self.run(count)

    def http(self, token: str | None = None, **headers: str) -> httpx2.Client:
        """For requests by hand."""
        own = {"authorization": f"Bearer {token}"} if token else {}
        accept = {"accept": "application/json, text/event-stream"}
        known = {**accept, **own, **headers}
        options = {"timeout": DEADLINE_S, "verify": NO_AUTHORITIES, "trust_env": False}
        made = httpx2.Client(headers=known, **options)
        self.opened.append(made)
        return made

    def disconnect(self) -> None:
        """Close all connections of requests by hand."""
        while self.opened:
            self.opened.pop().close()

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
        with mcp_client(self.portal, self.url, token, self.home, mode=mode) as agent:
            yield agent


@contextmanager
def mcp_client(
    portal: BlockingPortal, url: str, token: str, home: Path, *, mode: str = "auto"
) -> Iterator[Agent]:
    """The SDK's client of a service at this address."""
    person = Person()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Client]:
        headers = {"authorization": f"Bearer {token}"}
        options = {"timeout": DEADLINE_S, "verify": NO_AUTHORITIES}
        async with httpx2.AsyncClient(headers=headers, **options) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, mode=mode, elicitation_callback=person.ask) as client:
                yield client

    with portal.wrap_async_context_manager(opened()) as client:
        yield Agent(client, portal, person, home)


HANDSHAKE = "2025-11-25"
MODERN = "2026-07-28"
_INFO = {"name": "raw", "version": "1"}
_CAPABILITIES: dict[str, Any] = {"elicitation": {"form": {}}}
_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": _INFO,
    "io.modelcontextprotocol/clientCapabilities": _CAPABILITIES,
}


class RawClient:
    """A client that writes its requests itself."""

    def __init__(
        self, service: McpService, token: str, version: str = MODERN, *, session_id: str = ""
    ) -> None:
        self.http = service.http(token)
        self.url = service.url
        self.version = version
        self.session_id = session_id
        self.last_event_id = ""
        self._number = 0

    def headers(self, message: dict[str, Any] | None = None) -> dict[str, str]:
        found = {"mcp-protocol-version": self.version}
        if self.version == MODERN and message is not None:
            found["mcp-method"] = message["method"]
            if "name" in message["params"]:
                found["mcp-name"] = message["params"]["name"]
        if self.session_id:
            found["mcp-session-id"] = self.session_id
        return found

    def message(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        if self.version == MODERN:
            params = {**params, "_meta": {**_META, **params.get("_meta", {})}}
        return {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}

    def send(
        self, method: str = "POST", message: dict[str, Any] | None = None, **headers: str
    ) -> httpx2.Response:
        message = message or self.message("tools/list")
        body = {"json": message} if method == "POST" else {}
        known = {**self.headers(message), **headers}
        return self.http.request(method, self.url, headers=known, **body)

    def open(self) -> None:
        """The handshake, where the protocol has one."""
        if self.version == MODERN or self.session_id:
            return
        hello = {"protocolVersion": self.version, "capabilities": _CAPABILITIES}
        opened = self.send(message=self.message("initialize", **hello, clientInfo=_INFO))
        opened.raise_for_status()
        self.session_id = opened.headers["mcp-session-id"]
        said = {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}
        assert self.send(message=said).status_code == 202

    def ask(self, method: str, **params: Any) -> httpx2.Response:
        self.open()
        return self.send(message=self.message(method, **params))

    def result(self, method: str, **params: Any) -> dict[str, Any]:
        answer = self.ask(method, **params)
        answer.raise_for_status()
        if answer.headers["content-type"] == "application/json":
            return answer.json()["result"]
        return next(each for each in map(_event, answer.iter_lines()) if each)["result"]

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The structured result."""
        found = self.result("tools/call", name=tool, arguments=arguments)
        return found["structuredContent"]

    @contextmanager
    def stream(self, method: str, **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """A request with progress, and its events."""
        self.open()
        message = self.message(method, **params, _meta={"progressToken": 1})
        with self.http.stream("POST", self.url, json=message, headers=self.headers(message)) as got:
            yield self._events(got)

    def replayed(self, last_event_id: str) -> Iterator[dict[str, Any]]:
        """What followed an event, until its result."""
        headers = {**self.headers(), "last-event-id": last_event_id}
        with self.http.stream("GET", self.url, headers=headers) as got:
            for event in self._events(got):
                yield event
                if "result" in event:
                    return

    def _events(self, got: httpx2.Response) -> Iterator[dict[str, Any]]:
        for line in got.iter_lines():
            if line.startswith("id:"):
                self.last_event_id = line.removeprefix("id:").strip()
            if found := _event(line):
                yield found


def _event(line: str) -> dict[str, Any]:
    """The message of a line of an event stream; empty for every other line."""
    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
    return json.loads(data) if data else {}


@contextmanager
def serving(home: Path, config: str = "", *, accounts: str = _ACCOUNTS) -> Iterator[McpService]:
    """A service on a port of its own."""
    home.chmod(0o700)
    file = home / "cellwall.toml"
    file.write_text(accounts + config)
    app = open_app(config=str(file), environ=environment(home))
    migrate(StorageSettings(home=str(home)))
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening, start_blocking_portal() as portal:
            opened = _opened(home, app, listening)
            with portal.wrap_async_context_manager(opened) as made:
                service = McpService(home, app, *made, portal, _origin(listening) + PATH)
                service.user("boss", "owner")  # the last owner cannot lose the role
                yield service
                service.disconnect()
    finally:
        app.close()


@asynccontextmanager
async def _opened(
    home: Path, app: App, listening: socket.socket
) -> AsyncIterator[tuple[Accounts, Store, McpEndpoint, ASGIApp]]:
    origin = _origin(listening)
    opened = open_accounts(str(home), app.settings, issuer=origin, audit=app.audit)
    async with opened as (accounts, store):
        settings = ServiceSettings(hosts=("127.0.0.1",), public_url=origin)
        api = make_application(app, accounts, settings, store=store)
        endpoint = next(r.endpoint for r in api.routes if getattr(r, "path", "") == PATH)
        async with listened(api, listening):
            yield accounts, store, endpoint, api


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
