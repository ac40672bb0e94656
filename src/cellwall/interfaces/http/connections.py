"""HTTP connections that cannot be held open for nothing (slowloris, CVE-2007-6750).

uvicorn bounds neither the time nor the size of a request's head, and it closes no connection on
which no request ever begins. The parser is httptools, as everywhere in Cellwall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
_MAX_SHARE = 0.5
"""Of all connections, for one address; addresses of loopback may be a proxy for everybody."""


def bounded_protocol(*, max_connections: int, timeout_s: float) -> Callable[..., BoundedConnection]:
    """A factory for uvicorn."""

    def make(*args: Any, **named: Any) -> BoundedConnection:  # noqa: ANN401  # uvicorn's arguments
        connection = BoundedConnection(*args, **named)
        connection.max_connections, connection.timeout_s = max_connections, timeout_s
        return connection

    return make


class BoundedConnection(HttpToolsProtocol):
    """One connection. The head of a request has a deadline, its body must make progress."""

    max_connections: int
    timeout_s: float
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes: int | None = 0
    """Of the request whose head is incomplete; None behind the head."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self._has_room():
            self._arm()
        else:
            transport.abort()

    def _has_room(self) -> bool:
        if len(self.connections) > self.max_connections:
            return False
        address = self.client[0] if self.client else ""
        if address in {"", "127.0.0.1", "::1"}:
            return True
        peers = [getattr(each, "client", None) for each in self.connections]
        same = [peer for peer in peers if peer and peer[0] == address]
        return len(same) <= max(1, self.max_connections * _MAX_SHARE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        elif self._deadline is not None:
            self._arm()  # the body makes progress
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._arm()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._arm()  # for the body; its end follows at once where there is none
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._disarm()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        super().handle_websocket_upgrade()

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.timeout_s, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        if self.flow.read_paused:
            self._arm()  # it is the service that does not read
        else:
            self.transport.abort()
