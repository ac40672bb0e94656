"""The listening sockets of a cell: proxy (HTTP, SOCKS5), transparent connections, DNS (NET-7).

Programs without proxy support resolve names with the cell's DNS, and connect to its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.destinations.cell_dns import answer_query
from cellwall.egress.protocols import socks
from cellwall.egress.proxy.client_connection import (
    ClientConnection,
    RefusalEncoder,
    fixed_refusal,
    http_refusal,
    no_refusal,
    socks_refusal,
)
from cellwall.egress.proxy.http1_exchange import Http1Exchange
from cellwall.egress.proxy.session import EgressSession
from cellwall.egress.proxy.streams import PeerClosed, SocketStream, reset
from cellwall.egress.proxy.tunnel import tunnel

Serve = Callable[[EgressSession, ClientConnection], Awaitable[None]]

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_ACCEPTS_PER_TURN = 64
_ACCEPT_PAUSE_S = 0.2
_MAX_TURNED_AWAY = 64
"""Connections over the limit that get a refusal concurrently; further ones are reset."""


class SocketListener(ABC):
    """One listening socket; owns the socket and a task for each connection."""

    def __init__(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)

    def open(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._on_acceptable)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _on_acceptable(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # Mostly EMFILE. The connection stays in the queue: without a pause this would
                # spin.
                self._loop.remove_reader(self._listener.fileno())
                self._pause = self._loop.call_later(_ACCEPT_PAUSE_S, self.open)
                return
            self._admit(sock)

    def _start(self, sock: socket.socket, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Serve an accepted connection in a task of its own."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_ended, sock=sock))
        return task

    def _on_ended(self, task: asyncio.Task[None], *, sock: socket.socket) -> None:
        self._tasks.discard(task)
        if sock.fileno() >= 0:  # cancelled before its first step, which would have owned it
            reset(sock)

    @abstractmethod
    def _admit(self, sock: socket.socket) -> None:
        """Start a task for the connection, or reset it."""


class CellListener(SocketListener):
    """A listening socket of a cell: all its connections belong to one session."""

    def __init__(
        self, session: EgressSession, listener: socket.socket, serve: Serve, *, via: str
    ) -> None:
        super().__init__(listener, session.shared.loop)
        self._session = session
        self._serve = serve
        self._via = via
        self._turned_away = 0

    def _admit(self, sock: socket.socket) -> None:
        refusal: EgressRefused | None = None
        try:
            self._session.budget.enter()
        except EgressRefused as error:
            if self._turned_away >= _MAX_TURNED_AWAY:
                self._session.record_refusal(error, host="", port=0, via=self._via)
                reset(sock)
                return
            self._turned_away += 1
            refusal = error
        task = self._start(sock, self._serve_connection(sock, refusal))
        task.add_done_callback(partial(self._leave, was_admitted=refusal is None))

    def _leave(self, _task: asyncio.Task[None], *, was_admitted: bool) -> None:
        if was_admitted:
            self._session.budget.leave()
        else:
            self._turned_away -= 1

    async def _serve_connection(self, sock: socket.socket, refusal: EgressRefused | None) -> None:
        connection = connection_on(sock, via=self._via, encode_refusal=no_refusal)
        connection.refusal = refusal
        await serve_connection(self._session, connection, self._serve)


def connection_on(
    sock: socket.socket, *, via: str, encode_refusal: RefusalEncoder
) -> ClientConnection:
    """A connection that was just accepted."""
    with contextlib.suppress(OSError):  # the peer may have reset it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = SocketStream(sock)
    return ClientConnection(
        transport=transport, stream=transport, via=via, encode_refusal=encode_refusal
    )


async def serve_connection(
    session: EgressSession, connection: ClientConnection, serve: Serve
) -> None:
    """Serve a connection to its end; every error is recorded, and sent if possible."""
    try:
        await serve(session, connection)
        await connection.stream.close()
    except PeerClosed:
        pass
    except CellwallError as error:
        session.record_refusal(
            error, host=connection.host, port=connection.port, via=connection.via
        )
        await connection.refuse(error)
    except Exception as error:  # noqa: BLE001 - an internal error refuses as well
        broken = EgressRefused("the proxy failed", detail=type(error).__name__)
        session.record_refusal(
            broken, host=connection.host, port=connection.port, via=connection.via
        )
    finally:
        if not connection.transport.is_closed:
            connection.transport.abort()


async def serve_proxy(session: EgressSession, connection: ClientConnection) -> None:
    """Serve HTTP or SOCKS5; the first byte tells which."""
    until = session.shared.loop.time() + session.settings.head_timeout_s
    first = await connection.transport.recv(until)
    if not first:
        return
    connection.transport.push_back(first)
    if first[0] == socks.VERSION:
        await _serve_socks(session, connection, until)
    else:
        await serve_http(session, connection)


async def serve_http(session: EgressSession, connection: ClientConnection) -> None:
    """Serve HTTP: requests with absolute URLs, and CONNECT."""
    connection.via = "http"
    connection.encode_refusal = http_refusal
    connection.check_admitted()
    connect_request = await Http1Exchange(session, connection, fixed=None, is_tls=False).run()
    if connect_request is None:
        return
    request, rest = connect_request
    connection.via = "connect"
    target = await session.authorize(
        request.host, request.port, via=connection.via, method="CONNECT"
    )
    connection.transport.push_back(rest)
    await tunnel(session, connection, target, accept=_ESTABLISHED)


async def _serve_socks(session: EgressSession, connection: ClientConnection, until: float) -> None:
    connection.via = "socks"
    handshake = socks.Handshake()
    while handshake.target is None:
        if not (data := await connection.transport.recv(until)):
            raise PeerClosed
        try:
            answers = handshake.feed(data)
        except socks.SocksRefused as refusal:
            connection.encode_refusal = fixed_refusal(refusal.answer)
            raise
        for answer in answers:
            await connection.transport.send(answer, until)
    connection.encode_refusal = socks_refusal
    host, port = handshake.target
    connection.set_target(host, port)
    connection.check_admitted()
    target = await session.authorize(host, port, via=connection.via, method="SOCKS")
    connection.transport.push_back(handshake.rest)
    await tunnel(session, connection, target, accept=socks.reply(socks.OK))


_QUERIES_PER_TURN = 64
_QUERIES_PER_S = 200
_MAX_QUERY_BYTES = 4096
_HTTP_PORT = 80


async def serve_transparent(session: EgressSession, connection: ClientConnection) -> None:
    """Serve a connection to an address that stands for one name of this session."""
    address, port = connection.transport.local_address
    connection.port = port
    if port == _HTTP_PORT:
        connection.encode_refusal = http_refusal
    connection.check_admitted()
    name = session.names.name_of(IPv4Address(address))
    if name is None:
        raise EgressRefused(
            "no name was resolved to this address",
            hint="Connect to a host by its name.",
            code="CW-NO-ADDRESS",
        )
    connection.set_target(name, port)
    target = await session.authorize(name, port, via=connection.via, method="TCP")
    await tunnel(session, connection, target, accept=b"")


class CellDnsServer:
    """DNS on one UDP socket of a cell. No query is forwarded: it causes at most an audit event."""

    def __init__(self, session: EgressSession, sock: socket.socket) -> None:
        self._session = session
        self._socket = sock
        self._loop = session.shared.loop
        self._second = 0
        self._query_count = 0
        sock.setblocking(False)

    def open(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._on_query)

    async def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_query(self) -> None:
        for _ in range(_QUERIES_PER_TURN):
            try:
                query, sender = self._socket.recvfrom(_MAX_QUERY_BYTES)
            except OSError:
                return
            if self._is_too_often():
                continue  # a resolver retries; a flood gets no answers
            self._answer(query, sender)

    def _is_too_often(self) -> bool:
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._query_count = second, 0
        self._query_count += 1
        return self._query_count > _QUERIES_PER_S

    def _answer(self, query: bytes, sender: tuple[str, int]) -> None:
        answer = answer_query(
            query,
            is_allowed=self._session.knows,
            table=self._session.names,
            is_exact=self._session.names_exactly,
        )
        if answer.refused is not None:
            refusal = EgressRefused(f"DNS query refused: {answer.refused}", code="CW-NO-NAME")
            self._session.record_refusal(refusal, host=answer.name, port=0, via="dns")
        if answer.reply is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(answer.reply, sender)
