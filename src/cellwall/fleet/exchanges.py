"""One request on its way to a host and its answer on the way back, as plain messages.

The front reads the body (`request_bodies`) and sends it with the request. A WebSocket,
and the end of the client's connection, follow as messages of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from cellwall.fleet.engine import Application, Message, Scope

Plain = dict[str, Any]
_FRAME = "websocket.receive"
_log = logging.getLogger("cellwall.fleet")
_KEPT = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path",
    "headers", "client", "server", "subprotocols",
)  # fmt: skip
_MAX_WAITING = 64
"""Messages of an answer that the front has not taken yet; then the application waits. Also frames
of a WebSocket that the application has not taken yet; then the front reads no more of them."""


def plain_scope(scope: Scope) -> Plain:
    """The part of a scope that may cross: no state, no extension, no object."""
    found = {name: scope[name] for name in _KEPT if name in scope}
    found["headers"] = [[bytes(name), bytes(value)] for name, value in scope["headers"]]
    for name in ("client", "server"):
        found[name] = list(found[name]) if found.get(name) else None
    return found


def asgi_scope(scope: Plain) -> Scope:
    """As the application expects it."""
    found: Scope = dict(scope)
    found["asgi"] = {"version": "3.0", "spec_version": "2.4"}
    found["headers"] = [(name, value) for name, value in scope["headers"]]
    for name in ("client", "server"):
        found[name] = tuple(found[name]) if found.get(name) else None
    return found


class HostExchange:
    """One request at the host, until the application has answered it."""

    def __init__(self, application: Application, scope: Plain, body: bytes) -> None:
        self._application, self._scope = application, asgi_scope(scope)
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._room = asyncio.Semaphore(_MAX_WAITING)
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue(_MAX_WAITING)
        if scope["type"] == "http":
            request = {"type": "http.request", "body": body, "more_body": False}
            self._incoming.put_nowait(request)

    async def feed(self, message: Message) -> None:
        """A message of the client, in order. A frame waits for room: a client that sends faster
        than a server inside reads must not fill the memory of the host."""
        if message["type"] == _FRAME:
            await self._room.acquire()
        self._incoming.put_nowait(message)

    async def _receive(self) -> Message:
        message = await self._incoming.get()
        if message["type"] == _FRAME:
            self._room.release()
        return message

    async def answer(self) -> AsyncGenerator[Plain, None]:
        """The messages of the answer: `{"messages": […], "is_last": …}`, all that are ready at a
        time; none where the application failed. It is cancelled when they are not taken."""
        task = asyncio.ensure_future(self._run())
        is_last = False
        try:
            while not is_last:
                ready = [await self._outgoing.get()]
                while not self._outgoing.empty():
                    ready.append(self._outgoing.get_nowait())
                is_last = ready[-1] is None
                yield {
                    "messages": [dict(each) for each in ready if each is not None],
                    "is_last": is_last,
                }
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        try:
            await self._application(self._scope, self._receive, self._outgoing.put)
        except Exception as error:  # noqa: BLE001  # an answer without a beginning tells the front
            _log.error("the application failed on a request: %s", type(error).__name__)
        await self._outgoing.put(None)  # not behind a cancellation: it would not be taken
