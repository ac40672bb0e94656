"""HTTP connections that cannot be held open for nothing (slowloris, CVE-2007-6750).

uvicorn bounds neither the time nor the size of a request's head, it closes no connection on which
no request ever begins, and waits without end for a client that reads no answer. It takes trailer
fields of a chunked body for header fields, without a bound (RFC 9110, 6.5.1), and waits without end
for the handshake of a WebSocket whose request has a body. The parser is httptools, as everywhere in
Cellwall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cellwall.interfaces.http.joined_writes import JoinedWrites

MAX_HEAD_BYTES = 64 * 1024
MIN_PROGRESS_BYTES = 16 * 1024
"""Of a body or an answer, within the time of a request: a byte now and then is none."""
MIN_BYTES_PER_S = 16 * 1024
"""Of a body that has been coming for `_GRACE` times the time of a request: else a large one could
hold its connection for days."""
_GRACE = 20


def bounded_protocol(*, timeout_s: float) -> Callable[..., BoundedConnection]:
    """A factory for uvicorn."""

    def make(*args: Any, **named: Any) -> BoundedConnection:  # noqa: ANN401  # uvicorn's arguments
        connection = BoundedConnection(*args, **named)
        connection.timeout_s = timeout_s
        return connection

    return make


class BoundedConnection(HttpToolsProtocol):
    """One connection. The head of a request has a deadline, its body must make progress."""

    timeout_s: float
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes: int | None = 0
    """Of the request whose head is incomplete; None behind the head."""
    _body_bytes = 0
    """Of the body, since the deadline was set."""
    _whole_body_bytes = 0
    _body_begun_s = 0.0
    """On the clock of the event loop."""
    _framing_bytes = 0
    """Received behind the head since the last byte of content: chunk extensions and trailers."""
    _write_deadline: asyncio.TimerHandle | None = None
    _unsent_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        joined: Any = JoinedWrites(transport, self.loop)
        super().connection_made(joined)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._disarm_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm_writing()

    def resume_writing(self) -> None:
        self._disarm_writing()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._arm_writing()  # it closes only when everything is sent

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        elif self._deadline is not None:
            self._body_bytes += len(data)
            self._whole_body_bytes += len(data)
            if self._body_bytes >= MIN_PROGRESS_BYTES and not self._is_slow():
                self._arm()
        self._framing_bytes += len(data)
        super().data_received(data)
        if max(self._head_bytes or 0, self._framing_bytes) > MAX_HEAD_BYTES:
            self.transport.abort()
        elif self._is_between_requests():
            self._arm()  # an empty line has ended uvicorn's own wait for the next request

    def _is_slow(self) -> bool:
        taken_s = self.loop.time() - self._body_begun_s
        is_long = taken_s > _GRACE * self.timeout_s
        return is_long and self._whole_body_bytes < MIN_BYTES_PER_S * taken_s

    def _is_between_requests(self) -> bool:
        is_answered = getattr(self.cycle, "response_complete", True)  # None before the first one
        is_http = self.transport.get_protocol() is self  # else a WebSocket has taken over
        return is_answered and is_http and self._deadline is None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_bytes is not None:  # else a trailer, which must not be taken for a header
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._framing_bytes = 0
        self._arm()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        self._whole_body_bytes, self._body_begun_s = 0, self.loop.time()
        self._arm()  # for the body; its end follows at once where there is none
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._disarm()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._disarm()
        if any(name in {b"content-length", b"transfer-encoding"} for name, _ in self.headers):
            self.send_400_response("A WebSocket handshake has no body.")
        else:
            joined: Any = self.transport
            joined.flush()
            self.transport = joined.unjoined
            super().handle_websocket_upgrade()

    def _arm(self) -> None:
        self._disarm()
        self._body_bytes = 0
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

    def _arm_writing(self) -> None:
        self._disarm_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._write_deadline = self.loop.call_later(self.timeout_s, self._expire_writing)

    def _disarm_writing(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _expire_writing(self) -> None:
        sent = self._unsent_bytes - self.transport.get_write_buffer_size()
        if sent < MIN_PROGRESS_BYTES:
            self.transport.abort()
        else:
            self._arm_writing()
