"""One session's part of what all sessions use together: the loop's time, memory to unpack in."""

from __future__ import annotations

import asyncio
from collections import deque

from cellwall.egress.inspection.decompression import Room
from cellwall.egress.settings import EgressSettings

_INFLATED_MOST = 16
"""Times the upload's own bound; beyond that bodies are made to unpack, not to be sent."""


class Share:
    """Used on the loop alone."""

    def __init__(self, settings: EgressSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.up = Room(_INFLATED_MOST * settings.max_upload_bytes)
        """For bodies on their way out, in all of the session's connections."""
        self.down = Room(settings.max_download_bytes)
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def turn(self) -> None:
        """Before each piece of work: a session does one in each round of the loop.

        However many connections and streams it has, its neighbours wait for one piece of it.
        """
        if not self._is_taken:
            self._is_taken = True
            self._loop.call_soon(self._next)
            return
        mine: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(mine)
        await mine

    def _next(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # whoever was cancelled wants none any more
                waiting.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._is_taken = False
