"""Standard input and output as the protocol's streams: bounded and exclusive.

The SDK's own reader accepts lines of any length and silently drops what it cannot parse, so that a
client would wait for ever. Here such a line gets an error response.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.lowlevel
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError

from cellwall.core.descriptor_reader import DescriptorReader
from cellwall.parsing.jsonrpc import Lines, parse_message
from cellwall.parsing.message_streams import MessageReader, Messages, MessageWriter

_CHUNK_BYTES = 1 << 16
_PIPE_BYTES = 4096
"""A pipe reported writable accepts this many bytes without blocking (PIPE_BUF)."""


@asynccontextmanager
async def stdio(max_line_bytes: int) -> AsyncIterator[tuple[MessageReader, MessageWriter]]:
    """The streams of this process; while open, nothing else reads or writes the descriptors.

    The incoming stream ends at the end of input, or when the client closes the output.
    """
    source, sink = _claim_descriptors()
    client = _ClientLines(source, max_line_bytes)
    outgoing = MessageWriter(partial(_write_now, sink), partial(_write, sink), client.leave)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outgoing.run)
            yield MessageReader(client.messages(outgoing)), outgoing
            tasks.cancel_scope.cancel()
    finally:
        client.close()
        outgoing.close()
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


class _ClientLines:
    """The lines of the client."""

    def __init__(self, source: int, max_line_bytes: int) -> None:
        self._source, self._reader = source, DescriptorReader(source)
        self._lines = Lines(max_line_bytes)
        self._is_gone = False

    async def messages(self, outgoing: MessageWriter) -> Messages:
        """Until the client has disconnected; a line that is no message is answered."""
        try:
            while chunk := await self._chunk():
                for line in self._lines.feed(chunk):
                    message = line if isinstance(line, JSONRPCError) else parse_message(line)
                    if isinstance(message, JSONRPCError):
                        await outgoing.send(SessionMessage(message))
                    elif message is not None:
                        yield message
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    def leave(self, _: OSError) -> None:
        """The client reads no more: as at the end of input."""
        self._is_gone = True
        self._reader.wake()

    def close(self) -> None:
        """Before the descriptor is closed."""
        self._reader.close()

    async def _chunk(self) -> bytes:
        if self._is_gone:  # noticed while a message was handled
            return b""
        try:
            return await self._reader.read()
        except PermissionError:  # a regular file, which is always readable
            await anyio.lowlevel.checkpoint()
            return self._file_chunk()

    def _file_chunk(self) -> bytes:
        return b"" if self._is_gone else os.read(self._source, _CHUNK_BYTES)


def _write_now(sink: int, data: bytes) -> int:
    """Write a short line if that does not block; returns how many bytes were written."""
    if len(data) > _PIPE_BYTES or not select.select([], [sink], [], 0)[1]:
        return 0
    try:
        return os.write(sink, data)
    except (BlockingIOError, InterruptedError):
        return 0


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
