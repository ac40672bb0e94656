"""Reads a descriptor in an asyncio event loop, without asking the kernel to watch it each time."""

from __future__ import annotations

import asyncio
import os

_CHUNK_BYTES = 65_536


class DescriptorReader:
    """A pipe or terminal that one task reads.

    `anyio.wait_readable` begins and ends a watch with each wait: four system calls and their Python
    for a request and its answer. Here the watch goes on while the task handles what it has read.
    The loop's callback reads, since the loop may report a descriptor once more that the task has
    emptied meanwhile. Nothing is read ahead: where more comes than the task waits for, the watch
    ends until its next read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._chunk: bytes | None = None
        self._error: OSError | None = None

    async def read(self) -> bytes:
        """The next bytes; none at the end. A cancelled read loses nothing. Raises `PermissionError`
        for a regular file, which cannot be watched."""
        if self._chunk is None and self._error is None:
            await self._wait()
        return self.take()

    def take(self) -> bytes:
        """What was read for a task that was cancelled then; none if there is nothing."""
        chunk, self._chunk = self._chunk, None
        if self._error is not None:
            raise self._error
        return chunk or b""

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            loop.add_reader(self._descriptor, self._read_now)
            self._loop = loop
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _read_now(self) -> None:
        waiter = self._waiter
        if waiter is None:
            self.close()
            return
        if waiter.done():
            return  # the task has not gone on yet
        try:
            self._chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._error = error
        waiter.set_result(None)

    def wake(self) -> None:
        """A task that waits now reads nothing, as at the end."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """End the watch; before the descriptor is closed."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._descriptor)
