"""Bytes between a client and a server inside a sandbox. All of them are untrusted."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio

from cellwall.core.port_connections import PortTraffic

_CHUNK_BYTES = 65_536
_TCP_INFO_BYTES, _BYTES_ACKED_AT = 192, 120  # of struct tcp_info: tcpi_bytes_acked, _received
_SEND_WITHIN_S = 60.0
"""A server that reads none of the bytes for so long is disconnected."""


class InnerConnection:
    """The connection to the server, read and written on the event loop; nothing is read ahead."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sent_bytes = self._received_bytes = 0

    @property
    def socket(self) -> socket.socket:
        return self._socket

    @property
    def traffic(self) -> PortTraffic:
        return PortTraffic(self._sent_bytes, self._received_bytes)

    async def receive(self) -> bytes:
        """The next bytes; empty once the server has closed the connection."""
        while True:
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            except OSError:
                return b""
            self._received_bytes += len(data)
            return data

    async def send(self, data: bytes) -> None:
        """All of it; raises `OSError` once the server reads no more."""
        rest = memoryview(data)
        while rest:
            try:
                sent = self._socket.send(rest)
            except BlockingIOError:
                with anyio.fail_after(_SEND_WITHIN_S):
                    await anyio.wait_writable(self._socket)
                continue
            self._sent_bytes += sent
            rest = rest[sent:]

    def end_sending(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


def counted_by_kernel(connected: socket.socket) -> PortTraffic:
    """The bytes of a connection that another program has read and written."""
    acknowledged, received = 0, 0
    with suppress(OSError):  # closed by now
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        acknowledged, received = struct.unpack_from("QQ", info, _BYTES_ACKED_AT)
    return PortTraffic(max(acknowledged - 1, 0), received)  # the handshake counts as one byte


async def relay(
    inner: InnerConnection,
    *,
    receive: Callable[[], Awaitable[bytes]],
    send: Callable[[bytes], Awaitable[None]],
) -> None:
    """Pass bytes on in both directions until the server has closed, or the client is gone.

    `receive` of the client returns nothing at its end of file, and both raise `OSError` or an
    exception of anyio once the client is gone.
    """
    gone = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError)

    async def inwards() -> None:
        with suppress(*gone):
            while data := await receive():
                await inner.send(data)
        inner.end_sending()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inwards)
        with suppress(*gone):
            while data := await inner.receive():
                await send(data)
        tasks.cancel_scope.cancel()
