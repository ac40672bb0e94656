"""Bodies of requests that a front holds until a host has them, bounded each and all together.

A front does not know its callers, and a body may be as large as a file: without a bound on the
sum, strangers could fill the memory of the front. Small bodies are not counted, so that ordinary
requests go on while large ones are refused; the number of connections bounds them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cellwall.core.errors import BadInput, Busy
from cellwall.fleet.engine import Receive, Scope

_UNCOUNTED_BYTES = 64 * 1024


class RequestBodies:
    """The bodies under way in one front."""

    def __init__(self, *, max_bytes: int, max_total_bytes: int) -> None:
        self._max_bytes, self._left_bytes = max_bytes, max_total_bytes

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body of a request, counted until the end of the block; empty for a WebSocket.
        Raises `BadInput` beyond the bound of one body and `Busy` beyond that of all."""
        parts: list[bytes] = []
        size = counted = 0
        try:
            while scope["type"] == "http":
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BadInput("the connection ended before the body")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > self._max_bytes:
                    raise BadInput(
                        "the body is too large", hint="Send less at once.", code="CW-TOO-LARGE"
                    )
                if size > _UNCOUNTED_BYTES:
                    self._take(size - counted)
                    counted = size
                if not message.get("more_body", False):
                    break
            yield b"".join(parts)
        finally:
            self._left_bytes += counted

    def _take(self, count: int) -> None:
        if count > self._left_bytes:
            raise Busy("too many large requests are under way", hint="Try again in a moment.")
        self._left_bytes -= count
