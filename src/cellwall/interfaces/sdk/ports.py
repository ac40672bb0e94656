"""Servers inside a sandbox, for the caller: `sbx.ports`.

`connect` is one connection of this process. `forward` listens on loopback, where every program of
this machine and every page in a browser can connect: so a client must show the token, in a header,
a cookie or, once, in the address. The token never reaches the server inside.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from anyio.from_thread import start_blocking_portal

from cellwall.core.errors import CellwallError
from cellwall.core.port_connections import ConnectPort, PortTraffic
from cellwall.interfaces.http_heads import RequestHead, read_head, refusal, token_cookie
from cellwall.interfaces.port_relay import InnerConnection, counted_by_kernel, relay

if TYPE_CHECKING:
    from cellwall.interfaces.sdk.hosts import Host

LOOPBACK = "127.0.0.1"
TOKEN_HEADER = "X-Cellwall-Token"  # noqa: S105  # a name
_HEAD_WITHIN_S = 10.0
_MAX_CLIENTS = 128


@dataclass(frozen=True, slots=True)
class PortForward:
    """A listener on loopback that leads to a port of a sandbox."""

    inner_port: int
    port: int
    token: str
    host: str
    """A name of loopback for browsers. Not 127.0.0.1: its cookies, those of the dashboard among
    them, are sent to every port."""

    @property
    def url(self) -> str:
        """For a browser: the token becomes a cookie, and leaves the address."""
        return f"http://{self.host}:{self.port}/?cellwall_token={self.token}"

    @property
    def base_url(self) -> str:
        """For programs, with `headers`."""
        return f"http://{LOOPBACK}:{self.port}/"

    @property
    def headers(self) -> dict[str, str]:
        return {TOKEN_HEADER: self.token}


class AsyncPorts:
    """Ports of servers inside a sandbox. What they answer is untrusted."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @asynccontextmanager
    async def connect(self, port: int) -> AsyncIterator[socket.socket]:
        """A connection to a server inside, as a socket that does not block."""
        failures: list[CellwallError] = []
        ready, done = anyio.Event(), anyio.Event()
        held: list[socket.socket] = []

        async def hold(connected: socket.socket) -> PortTraffic:
            held.append(connected)
            ready.set()
            await done.wait()
            return counted_by_kernel(connected)

        async def perform() -> None:
            try:
                await self._perform(ConnectPort(port, hold))
            except CellwallError as error:
                failures.append(error)
            ready.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(perform)
            await ready.wait()
            if held:
                try:
                    yield held[0]
                finally:
                    done.set()
        if failures:
            raise failures[0]

    @asynccontextmanager
    async def forward(self, port: int, *, listen_port: int = 0) -> AsyncIterator[PortForward]:
        """Listen on loopback, on a free port if none is named, for HTTP and WebSocket clients that
        show the token; each request is a connection to the port inside, and recorded."""
        token, name = secrets.token_urlsafe(32), f"{secrets.token_hex(8)}.localhost"
        listener = await anyio.create_tcp_listener(local_host=LOOPBACK, local_port=listen_port)
        async with listener, anyio.create_task_group() as tasks:
            number = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610  # no query
            clients = anyio.CapacityLimiter(_MAX_CLIENTS)

            async def serve(client: anyio.abc.SocketStream) -> None:
                async with client, clients:
                    with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                        await self._serve(client, port, token, name)

            tasks.start_soon(listener.serve, serve)
            try:
                yield PortForward(port, number, token, name)
            finally:
                tasks.cancel_scope.cancel()

    async def _serve(
        self, client: anyio.abc.SocketStream, port: int, token: str, own_host: str
    ) -> None:
        head: RequestHead | None = None
        with anyio.move_on_after(_HEAD_WITHIN_S):
            head = await read_head(client.receive)
        if head is None:
            await client.send(refusal(400, "not an HTTP request"))
            return
        shown = head.shown_tokens(own_host)
        if not any(hmac.compare_digest(each.encode(), token.encode()) for each in shown):
            await client.send(refusal(401, f"send the token in {TOKEN_HEADER}"))
            return
        if head.token_in_address:
            await client.send(token_cookie(head, token))
            return
        first = head.for_server(own_host)

        async def receive() -> bytes:
            try:
                return await client.receive()
            except anyio.EndOfStream:
                return b""

        async def hold(connected: socket.socket) -> PortTraffic:
            inner = InnerConnection(connected)
            await inner.send(first)
            await relay(inner, receive=receive, send=client.send)
            return inner.traffic

        try:
            await self._perform(ConnectPort(port, hold))
        except CellwallError as error:
            await client.send(refusal(502, f"{error.message} [{error.code}]"))

    async def _perform(self, operation: ConnectPort) -> None:
        outcome = await self._host.perform(operation)
        if outcome.error is not None:
            raise outcome.error.to_exception()


class Ports:
    """The same for blocking callers; a thread serves while a block lasts."""

    def __init__(self, ports: AsyncPorts) -> None:
        self._core = ports

    @contextmanager
    def connect(self, port: int) -> Iterator[socket.socket]:
        """A connection to a server inside, as a blocking socket."""
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(self._core.connect(port)) as connected,
        ):
            connected.setblocking(True)
            yield connected

    @contextmanager
    def forward(self, port: int, *, listen_port: int = 0) -> Iterator[PortForward]:
        """See `AsyncPorts.forward`."""
        forwarding = self._core.forward(port, listen_port=listen_port)
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(forwarding) as forward,
        ):
            yield forward
