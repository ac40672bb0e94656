"""Standard input and output as the protocol's streams: bounded and exclusive.

The SDK's own reader accepts lines of any length and silently drops what it cannot parse, so that a
client would wait for ever. Here such a line gets an error response.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError

from cellwall.parsing.jsonrpc import Lines, encode_message, parse_message

Incoming: TypeAlias = "MemoryObjectReceiveStream[SessionMessage | Exception]"
Outgoing: TypeAlias = "MemoryObjectSendStream[SessionMessage]"
Tell: TypeAlias = "Callable[[JSONRPCError], Awaitable[None]]"

_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 4096
"""A pipe reported writable accepts this many bytes without blocking (PIPE_BUF)."""


@asynccontextmanager
async def stdio(max_line_bytes: int) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The streams of this process; while open, nothing else reads or writes the descriptors.

    The incoming stream ends at the end of input, or when the client closes the output.
    """
    into, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, out_of = anyio.create_memory_object_stream[SessionMessage](0)
    source, sink = _claim_descriptors()
    turn = anyio.Lock()

    async def put(line: bytes) -> None:
        async with turn:  # lines must not interleave
            await _write(sink, line)

    async def refuse(error: JSONRPCError) -> None:
        await put(encode_message(SessionMessage(error)))

    async def read() -> None:
        async with into:
            await _read(source, into, refuse, max_line_bytes)

    async def write() -> None:
        async with out_of:
            async for message in out_of:
                await put(encode_message(message))

    async def until_gone(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            into.close()  # the client has disconnected: as at the end of input

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_gone, read)
            tasks.start_soon(until_gone, write)
            yield incoming, outgoing
            tasks.cancel_scope.cancel()
    finally:
        for stream in (into, incoming, outgoing, out_of):
            stream.close()
        _restore_descriptors(source, sink)


def _claim_descriptors() -> tuple[int, int]:
    """Duplicates of 0 and 1, which then lead elsewhere: libraries may print (INT-1)."""
    source = os.dup(0)
    sink = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


def _restore_descriptors(source: int, sink: int) -> None:
    for descriptor, number in ((source, 0), (sink, 1)):
        os.dup2(descriptor, number)
        os.close(descriptor)


async def _read(
    source: int,
    into: MemoryObjectSendStream[SessionMessage | Exception],
    refuse: Tell,
    max_line_bytes: int,
) -> None:
    lines = Lines(max_line_bytes)
    while chunk := await _chunk(source):
        for line in lines.feed(chunk):
            message = line if isinstance(line, JSONRPCError) else parse_message(line)
            if isinstance(message, JSONRPCError):
                await refuse(message)
            elif message is not None:
                await into.send(message)


async def _chunk(source: int) -> bytes:
    try:
        await anyio.wait_readable(source)
    except PermissionError:  # a regular file, which is always readable
        await anyio.lowlevel.checkpoint()
    return os.read(source, _CHUNK_BYTES)


async def _write(sink: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        # Polled first: the event loop and a cancellation must go on while a slow client reads.
        if not select.select([], [sink], [], 0)[1]:
            await anyio.wait_writable(sink)
        try:
            rest = rest[os.write(sink, rest[:_PIPE_BYTES]) :]
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EINTR}:
                raise
