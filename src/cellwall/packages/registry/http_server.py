"""Serves the registries to the egress proxy: HTTP/1.1 on one end of a socket pair.

The proxy in front has already parsed the request strictly, authorized it and counted its bytes;
for the proxy this is a server like any other. Raw asyncio, because the proxy's event loop is one
(ADR 16).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import IO

import httptools

from cellwall.packages.registry.messages import RegistryReply, RegistryRequest

Respond = Callable[[RegistryRequest], Awaitable[RegistryReply]]
_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_CHUNK_BYTES = 256 * 1024
_AT_ONCE_BYTES = 64 * 1024


class _RequestReader:
    """Collects one request; the methods with `on_` are called by the parser."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body_bytes += len(data)

    def on_message_complete(self) -> None:
        self.is_complete = True


async def serve_connection(sock: socket.socket, respond: Respond) -> None:
    """Answer the requests of one connection until the peer closes it. Closes the socket."""
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        with suppress(ConnectionError, httptools.HttpParserError):
            while (request := await _read_request(reader)) is not None:
                reply = await respond(request)
                await _write_reply(writer, reply, has_body=request.method != "HEAD")
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> RegistryRequest | None:
    """The next request; None at the end of the connection, or after a head that is too long."""
    collected = _RequestReader()
    parser = httptools.HttpRequestParser(collected)
    size = 0
    while not collected.is_complete:
        data = await reader.read(_READ_BYTES)
        size += len(data)
        if not data or size - collected.body_bytes > _MAX_HEAD_BYTES:
            return None
        parser.feed_data(data)
    # The proxy in front has compared this header with the host of the connection.
    host = collected.headers.get("host", "").partition(":")[0].rstrip(".").lower()
    return RegistryRequest(
        parser.get_method().decode("ascii"),
        host,
        collected.target.decode("latin-1"),
        collected.headers.get("accept", ""),
        collected.headers.get("range", ""),
        collected.headers.get("if-range", ""),
        collected.headers.get("if-none-match", ""),
    )


async def _write_reply(
    writer: asyncio.StreamWriter, reply: RegistryReply, *, has_body: bool
) -> None:
    status = HTTPStatus(reply.status)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"content-type: {reply.content_type}",
        # Of the answer 304 this would be the size of the client's copy.
        *([] if status is HTTPStatus.NOT_MODIFIED else [f"content-length: {reply.size}"]),
        *(f"{name}: {value}" for name, value in reply.headers),
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    try:
        # Head and body leave together: each write is a wakeup and a TLS record of the proxy.
        if not has_body or reply.stream is None:
            writer.write(head + reply.body if has_body else head)
            await writer.drain()
            return
        left = reply.size
        if left <= _AT_ONCE_BYTES:
            # A thread takes longer than the read of so much from a file that was just hashed.
            writer.write(head + _read_at(reply.stream, reply.start, left))
            await writer.drain()
            return
        writer.write(head)
        while left:
            start = reply.start + reply.size - left
            chunk = await asyncio.to_thread(_read_at, reply.stream, start, min(left, _CHUNK_BYTES))
            left -= len(chunk)
            writer.write(chunk)
            await writer.drain()
    finally:
        if reply.stream is not None:
            reply.stream.close()


def _read_at(stream: IO[bytes], start: int, count: int) -> bytes:
    """Exactly these bytes; `ConnectionError` if the file has been cut, which ends the reply."""
    stream.seek(start)
    data = stream.read(count)
    if len(data) != count:
        raise ConnectionResetError("the file has been cut")
    return data
