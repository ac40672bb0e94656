"""A transport that sends what is written in one turn of the event loop at once.

uvicorn writes the head of a response and its body apart: two system calls, and two wake-ups of the
client, for each response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

MAX_JOINED_BYTES = 64 * 1024
"""Then it is sent at once, so that the transport can tell that its reader is slow."""


class JoinedWrites:
    """Stands for a transport; all but writing is that transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.unjoined = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.unjoined, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(bytes(data))
        self._size_bytes += len(data)
        if self._size_bytes > MAX_JOINED_BYTES:
            self.flush()

    def writelines(self, lines: Iterable[bytes]) -> None:
        self.write(b"".join(lines))

    def write_eof(self) -> None:
        self.flush()
        self.unjoined.write_eof()

    def flush(self) -> None:
        """Send what has been written."""
        if self._parts:
            parts, self._parts, self._size_bytes = self._parts, [], 0
            self.unjoined.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self._size_bytes + self.unjoined.get_write_buffer_size()

    def close(self) -> None:
        self.flush()
        self.unjoined.close()

    def abort(self) -> None:
        self._parts, self._size_bytes = [], 0
        self.unjoined.abort()
