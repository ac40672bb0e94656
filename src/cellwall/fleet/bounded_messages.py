"""Messages of one direction of a call, from the side that sends them to the side that takes them.

Bounded by number and by size: a side that takes nothing must not fill the memory of the other, and
what is taken at once must not take a slow client long to read.
"""

from __future__ import annotations

import asyncio
from collections import deque

from cellwall.fleet.engine import Message

MAX_MESSAGES = 64
MAX_BYTES = 512 * 1024
"""A sender waits from here on; one message may be larger."""


class BoundedMessages:
    """For one event loop, one reader and any number of senders, which wait in turn."""

    def __init__(self) -> None:
        self._messages: deque[tuple[Message, int]] = deque()
        self._bytes = 0
        self._last: Message | None = None
        self._sending = asyncio.Lock()
        self._has_room, self._has_some = asyncio.Event(), asyncio.Event()

    async def put(self, message: Message) -> None:
        """Waits for room; without effect behind the end."""
        async with self._sending:
            while self._is_full and self._last is None:
                self._has_room.clear()
                await self._has_room.wait()
            self.put_now(message)

    def put_now(self, message: Message) -> None:
        """Also without room."""
        if self._last is None:
            size = len(message.get("body") or message.get("bytes") or message.get("text") or b"")
            self._messages.append((message, size))
            self._bytes += size
            self._has_some.set()

    async def take(self) -> Message:
        """The next message; waits for one. Behind the end it is the last one each time."""
        await self._wait()
        if not self._messages:
            assert self._last is not None  # noqa: S101  # waited for
            return dict(self._last)
        message, size = self._messages.popleft()
        self._bytes -= size
        self._has_room.set()
        return message

    async def take_all(self) -> list[Message]:
        """All messages that are there; waits for one."""
        await self._wait()
        found = [message for message, _ in self._messages]
        self._messages.clear()
        self._bytes = 0
        self._has_room.set()
        return found if self._last is None else [*found, dict(self._last)]

    async def _wait(self) -> None:
        while not self._messages and self._last is None:
            self._has_some.clear()
            await self._has_some.wait()

    def end(self, last: Message) -> None:
        """Nothing comes behind this message: senders wait no longer."""
        if self._last is None:
            self._last = last
            self._has_room.set()
            self._has_some.set()

    @property
    def _is_full(self) -> bool:
        return len(self._messages) >= MAX_MESSAGES or self._bytes >= MAX_BYTES
