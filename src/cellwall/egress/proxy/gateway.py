"""The proxy for programs outside of any sandbox: listening sockets that clients share (NET-8).

In a cell the socket tells whose connection it is. Here the first request tells it: (1) its head is
parsed strictly and within a deadline, (2) its token names the client, (3) the client's budget has
room. Then the connection is served like one from a cell, by the session of that client, and every
further request on it must present the same client's token.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

from cellwall.core.errors import BadInput, CellwallError, EgressRefused
from cellwall.core.network import EgressContext
from cellwall.egress.protocols.http1_codec import ParserSignal, RequestHead
from cellwall.egress.protocols.http1_connection import Http1ServerCodec
from cellwall.egress.protocols.http1_framing import Fields, bad_request
from cellwall.egress.proxy.audit_events import EgressAudit
from cellwall.egress.proxy.client_connection import (
    ClientConnection,
    http_refusal,
    no_refusal,
)
from cellwall.egress.proxy.client_tokens import (
    read_credentials,
    token_refused,
    without_credentials,
)
from cellwall.egress.proxy.listeners import (
    Serve,
    SocketListener,
    connection_on,
    serve_connection,
    serve_http,
    serve_proxy,
)
from cellwall.egress.proxy.peer_owner import owner_of_peer
from cellwall.egress.proxy.session import EgressSession
from cellwall.egress.proxy.shared_state import SharedEgressState
from cellwall.egress.proxy.streams import PeerClosed

_MAX_UNIDENTIFIED = 128
"""Connections without a token so far. For one more, the oldest is reset: a client sends its token
at once, so slow connections cannot keep it out."""
_VIA = "http"


class GatewayClient:
    """One client of a gateway, from `open` to `close`; used on the loop only."""

    def __init__(
        self, gateway: Gateway, name: str, token_sha256: bytes, session: EgressSession
    ) -> None:
        self._gateway = gateway
        self.name = name
        self._token_sha256 = token_sha256
        self.session = session
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self._gateway.clients[self.name] = self

    async def close(self) -> None:
        """Forget the token, and end all connections of the client."""
        if self._gateway.clients.get(self.name) is self:
            del self._gateway.clients[self.name]
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def presents_token(self, headers: Fields) -> bool:
        credentials = read_credentials(headers)
        return credentials is not None and credentials.belong_to(self.name, self._token_sha256)

    def authenticate(self, headers: Fields) -> Fields:
        """Implements `ClientConnection.authenticate`."""
        if not self.presents_token(headers):
            raise token_refused()
        return without_credentials(headers)

    async def serve(self, connection: ClientConnection, protocol: Serve) -> None:
        """Serve an identified connection, whose slot in the budget is taken."""
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await serve_connection(self.session, connection, protocol)
        finally:
            self.session.budget.leave()


class Gateway:
    """The listening sockets, and the clients by name."""

    def __init__(
        self,
        shared: SharedEgressState,
        context: EgressContext,
        listener: socket.socket,
        *,
        tokenless: Mapping[str, socket.socket],
    ) -> None:
        """`context` is recorded for connections of no client. `tokenless` maps clients that cannot
        send a token to loopback sockets, where the port and the peer's user take its place."""
        self.shared = shared
        self.clients: dict[str, GatewayClient] = {}
        self.audit = EgressAudit(shared.record, context, shared.loop)
        self._listeners: list[_TokenListener] = [
            _TokenListener(self, listener),
            *(_PortListener(self, sock, client) for client, sock in tokenless.items()),
        ]

    def client(self, name: str, token_sha256: bytes, session: EgressSession) -> GatewayClient:
        """A client, not served until it is opened."""
        if name in self.clients:
            raise BadInput(f"there are two clients with the name {name}", code="CW-USAGE")
        return GatewayClient(self, name, token_sha256, session)

    def open(self) -> None:
        for listener in self._listeners:
            listener.open()

    async def close(self) -> None:
        """Stop listening, end all connections, and wait until all events are written."""
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        await self.audit.drain()


class _TokenListener(SocketListener):
    """Connections whose client is named by a token."""

    _protocol: Serve = staticmethod(serve_http)

    def __init__(self, gateway: Gateway, listener: socket.socket) -> None:
        super().__init__(listener, gateway.shared.loop)
        self._gateway = gateway
        self._unidentified: dict[asyncio.Task[None], None] = {}
        """In the order of their arrival."""

    def _admit(self, sock: socket.socket) -> None:
        if len(self._unidentified) >= _MAX_UNIDENTIFIED:
            oldest = next(iter(self._unidentified))
            del self._unidentified[oldest]
            oldest.cancel()
        task = self._start(sock, self._serve_socket(sock))
        self._unidentified[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._unidentified.pop(task, None)

    async def _serve_socket(self, sock: socket.socket) -> None:
        connection = connection_on(sock, via=_VIA, encode_refusal=http_refusal)
        try:
            client = await self._identify(connection, sock)
            if client is None:
                return
            if (task := asyncio.current_task()) is not None:
                self._unidentified.pop(task, None)
            await client.serve(connection, self._protocol)
        finally:
            if not connection.transport.is_closed:
                connection.transport.abort()

    async def _identify(
        self, connection: ClientConnection, sock: socket.socket
    ) -> GatewayClient | None:
        """The client, with a slot of its budget; None if the connection was refused or closed."""
        audit = self._gateway.audit
        try:
            client = await self._client_of(connection, sock)
            audit = client.session.audit
            client.session.budget.enter()
        except PeerClosed:
            return None
        except CellwallError as error:
            # Without the host: an unauthenticated peer must not choose text in the audit log.
            audit.record_refusal(error, host="", port=0, via=_VIA)
            await connection.refuse(error)
            return None
        except Exception as error:  # noqa: BLE001 - an internal error refuses as well
            broken = EgressRefused("the proxy failed", detail=type(error).__name__)
            audit.record_refusal(broken, host="", port=0, via=_VIA)
            return None
        self._bind(connection, client)
        return client

    async def _first_headers(self, connection: ClientConnection) -> Fields:
        """The headers of the first request, whose bytes are put back: the session parses them
        again, with the same parser."""
        until = self._loop.time() + self._gateway.shared.settings.head_timeout_s
        codec, received = Http1ServerCodec(), b""
        while not isinstance(event := codec.next_event(), RequestHead):
            if event is ParserSignal.CLOSED:
                raise PeerClosed
            if codec.is_behind:
                codec.read_on()
                continue
            if event is not ParserSignal.NEED_DATA:
                raise bad_request("it is malformed or incomplete")
            data = await connection.transport.recv(until)
            received += data
            codec.feed(data)
        connection.transport.push_back(received)
        return event.headers

    async def _client_of(self, connection: ClientConnection, sock: socket.socket) -> GatewayClient:
        headers = await self._first_headers(connection)
        # All are compared: the time does not depend on which client's token it is.
        found = [each for each in self._gateway.clients.values() if each.presents_token(headers)]
        if len(found) != 1:
            raise token_refused(_origin(sock))
        return found[0]

    def _bind(self, connection: ClientConnection, client: GatewayClient) -> None:
        connection.authenticate = client.authenticate


def _origin(sock: socket.socket) -> str:
    """For the audit log."""
    try:
        return f"from {sock.getpeername()[0]}"
    except OSError:
        return "from a peer that has left"


class _PortListener(_TokenListener):
    """A loopback port of one client that cannot send a token, for processes of our user only.

    It speaks all that a cell's proxy speaks: no request has to say whose it is.
    """

    _protocol: Serve = staticmethod(serve_proxy)

    def __init__(self, gateway: Gateway, listener: socket.socket, client: str) -> None:
        super().__init__(gateway, listener)
        self._name = client

    async def _client_of(
        self,
        connection: ClientConnection,  # noqa: ARG002  # for the listener above
        sock: socket.socket,
    ) -> GatewayClient:
        if owner_of_peer(sock) != os.geteuid():
            raise EgressRefused(
                "this port serves programs of one user only",
                hint="Use the proxy's main port, with a token.",
                code="CW-PROXY-USER",
                detail=_origin(sock),
            )
        client = self._gateway.clients.get(self._name)
        if client is None:
            raise token_refused()
        return client

    def _bind(self, connection: ClientConnection, client: GatewayClient) -> None:  # noqa: ARG002  # for the listener above
        connection.authenticate = without_credentials
        connection.via, connection.encode_refusal = "proxy", no_refusal  # until its first byte
