"""One request on its way to a host and its answer on the way back, as plain messages.

The front reads the body (`request_bodies`) and sends it with the request. A WebSocket,
and the end of the client's connection, follow as messages of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cellwall.fleet.bounded_messages import BoundedMessages
from cellwall.fleet.engine import Application, Message, Scope

Plain = dict[str, Any]
_FRAME = "websocket.receive"
_log = logging.getLogger("cellwall.fleet")
_KEPT = (
    "type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path",
    "headers", "client", "server", "subprotocols",
)  # fmt: skip
_GONE: dict[str, Message] = {
    "http": {"type": "http.disconnect"},
    "websocket": {"type": "websocket.disconnect", "code": 1006},
}
_ANSWERED = "cellwall.answered"
"""The last of all messages of an application, which has returned."""
_SILENT_S = 30.0
"""Then the front gets a part without messages, and asks again: a host learns by this that a front
is there, also while the application waits."""
_ASKED_WITHIN_S = 600.0
"""A front asks for the next part once its client has taken the one before."""

_ENDING: set[asyncio.Future[None]] = set()
"""Applications of answers that have ended, which still clean up: asyncio itself keeps no task
alive."""


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
    # 2.4 would promise that `send` fails without a client, and a stream would not listen for the
    # end of its connection.
    found["asgi"] = {"version": "3.0", "spec_version": "2.3"}
    found["headers"] = [(name, value) for name, value in scope["headers"]]
    for name in ("client", "server"):
        found[name] = tuple(found[name]) if found.get(name) else None
    return found


class HostExchange:
    """One request at the host, until the application has answered it."""

    def __init__(
        self, application: Application, scope: Plain, body: bytes, on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called when nothing more is asked for."""
        self._application, self._scope, self._on_end = application, asgi_scope(scope), on_end
        self._gone = _GONE[scope["type"]]
        self._incoming, self._outgoing = BoundedMessages(), BoundedMessages()
        self._task: asyncio.Future[None] | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._given, self._is_abandoned = 0, False
        if scope["type"] == "http":
            self._incoming.put_now({"type": "http.request", "body": body, "more_body": False})

    async def feed(self, message: Message) -> None:
        """A message of the client, in order. A frame waits for room: a client that sends faster
        than a server inside reads must not fill the memory of the host."""
        if message["type"] == _FRAME:
            await self._incoming.put(message)
        else:
            self.feed_now(message)

    def feed_now(self, message: Message) -> None:
        """The same without waiting for room, which no application makes before it has begun."""
        if message["type"] == self._gone["type"]:
            self._incoming.end(message)
        else:
            self._incoming.put_now(message)

    async def next_part(self, number: int) -> Plain:
        """The next messages of the answer: `{"messages": […], "is_last": …}`, all that are ready at
        a time; none where the application failed or has nothing to say for a while. Parts are
        counted from 0: one that was asked for twice would be missing in the answer."""
        if number != self._given:
            raise RuntimeError("a part of an answer was asked for twice")
        self._given += 1
        if self._is_abandoned:
            raise RuntimeError("the front has left")
        if self._overdue is not None:
            self._overdue.cancel()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        ready = await self._take()
        if is_last := bool(ready) and _is_end(ready[-1]):
            self._end()
        else:
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(_ASKED_WITHIN_S, self._expire)
        return {
            "messages": [dict(each) for each in ready if each["type"] != _ANSWERED],
            "is_last": is_last,
        }

    async def _take(self) -> list[Message]:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SILENT_S):
                return await self._outgoing.take_all()
        return []

    def _expire(self) -> None:
        _log.warning("an answer was abandoned: its front has ended, or its client takes nothing")
        self.abandon()

    def abandon(self) -> None:
        """No front takes the rest of the answer."""
        self._is_abandoned = True
        if self._overdue is not None:
            self._overdue.cancel()
        self._end()
        if self._task is not None:
            self._task.cancel()

    def _end(self) -> None:
        """As a server does: behind its answer an application is told that the client is gone, and
        what it still sends has no effect."""
        self._incoming.end(self._gone)
        self._outgoing.end({"type": _ANSWERED})
        if self._task is not None:
            _ENDING.add(self._task)
            self._task.add_done_callback(_ENDING.discard)
        self._on_end()

    async def _run(self) -> None:
        try:
            await self._application(self._scope, self._incoming.take, self._outgoing.put)
        except Exception as error:  # noqa: BLE001  # an answer without a beginning tells the front
            _log.error("the application failed on a request: %s", type(error).__name__)
        finally:
            self._outgoing.end({"type": _ANSWERED})


def _is_end(message: Message) -> bool:
    """What the application does behind the last message is not waited for."""
    return message["type"] == _ANSWERED or (
        message["type"] == "http.response.body" and not message.get("more_body", False)
    )
