"""Calls under way, each of which ends when its host is lost, also where the engine would wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class HostGone(Exception):
    """The host of a call was lost while the call was under way."""


class OpenCalls:
    """The calls of one front, in its event loop."""

    def __init__(self) -> None:
        self._calls: dict[str, set[asyncio.Timeout]] = {}

    @asynccontextmanager
    async def breakable(self, host_id: str) -> AsyncIterator[None]:
        """A block that raises `HostGone` when its host is lost."""
        call = asyncio.timeout(None)
        try:
            async with call:
                # Known only while the block runs: asyncio refuses to end a timeout that has ended.
                calls = self._calls.setdefault(host_id, set())
                calls.add(call)
                try:
                    yield
                finally:
                    calls.discard(call)
        except TimeoutError:
            if call.expired():
                raise HostGone from None
            raise

    def end(self, host_id: str) -> None:
        """The host is lost."""
        for call in self._calls.pop(host_id, ()):
            call.reschedule(asyncio.get_running_loop().time())
