"""Files on their way between a client and a workspace.

A file waits here until it is complete: an upload that breaks off changes nothing, a slow client
holds no thread and no lock, and a reader gets one state of a file that code may be writing. Small
ones stay in memory, larger ones lie in a file without a name in the state folder.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import anyio
from starlette.responses import StreamingResponse

from cellwall.core.errors import Busy

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

IN_MEMORY_BYTES = 1024 * 1024
CHUNK_BYTES = 256 * 1024
STALLED_S = 60.0
"""A client that takes none of the bytes for so long is cut off."""
_MAX_TOTAL_BYTES = 4 * 1024 * 1024 * 1024


class Spool:
    """One file. Implements `ByteSink` and `ByteSource`; used by one thread at a time."""

    def __init__(self, room: Spools) -> None:
        self._room = room
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES, dir=room.folder)  # noqa: SIM115  # `close` closes it
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def is_small(self) -> bool:
        return self.size_bytes <= IN_MEMORY_BYTES

    def write(self, data: bytes, /) -> int:
        self._room.take(len(data))
        self.size_bytes += len(data)
        self._digest.update(data)
        return self._file.write(data)

    def rewind(self, to: int = 0) -> None:
        self._file.seek(to)

    def read(self, size: int, /) -> bytes:
        return self._file.read(size)

    async def fill(self, chunks: AsyncIterator[bytes]) -> None:
        """Take all that a client sends, in pieces; then `read` begins at the start."""
        waiting = bytearray()
        async for chunk in chunks:
            waiting += chunk
            if len(waiting) >= CHUNK_BYTES:
                await anyio.to_thread.run_sync(self.write, bytes(waiting))
                waiting.clear()
        self.write(bytes(waiting))
        self.rewind()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """A second call has no effect."""
        if not self._file.closed:
            self._file.close()
            self._room.give_back(self.size_bytes)


class Spools:
    """The files under way of one service, and the room that they may take together."""

    def __init__(self, folder: str, *, max_file_bytes: int) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._left_bytes = max(_MAX_TOTAL_BYTES, 2 * max_file_bytes)

    def take(self, count: int) -> None:
        """Raises `Busy` where no room is left."""
        with self._lock:
            if count > self._left_bytes:
                raise Busy("too many files are under way", hint="Try again in a moment.")
            self._left_bytes -= count

    def give_back(self, count: int) -> None:
        with self._lock:
            self._left_bytes += count

    @property
    def left_bytes(self) -> int:
        return self._left_bytes

    def spool(self) -> Spool:
        """A new one; close it."""
        return Spool(self)


class SpoolResponse(StreamingResponse):
    """Sends a part of a spool in pieces, as fast as the client takes them, and closes it."""

    def __init__(
        self, spool: Spool, *, start: int, end: int, status: int, headers: dict[str, str]
    ) -> None:
        self._spool = spool
        self.held = ExitStack()
        """Closed at the end of the response."""
        self.held.callback(spool.close)
        spool.rewind(start)
        super().__init__(
            self._pieces(end - start),
            status_code=status,
            media_type="application/octet-stream",
            headers={**headers, "Content-Length": str(end - start)},
        )

    async def _pieces(self, left: int) -> AsyncIterator[bytes]:
        while left > 0:
            piece = await anyio.to_thread.run_sync(self._spool.read, min(left, CHUNK_BYTES))
            if not piece:
                raise EOFError("the spool is shorter than it was")
            left -= len(piece)
            yield piece

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with anyio.fail_after(STALLED_S):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except* TimeoutError:
            pass  # uvicorn closes a connection whose response is incomplete
        finally:
            self.held.close()
