"""Both ends of an HTTP/1.1 exchange on h11, with h11's leniences taken out (NET-2). Pure."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

import h11

from holdfast.egress.protocols.framing import (
    BadMessage,
    Bounds,
    Delimiter,
    End,
    Extent,
    Fields,
    bad_request,
    bad_response,
    length_of,
)

Read = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]

_REQUEST = Bounds(head_bytes=32 * 1024, fields=100, is_response=False)
_RESPONSE = Bounds(head_bytes=64 * 1024, fields=200, is_response=True)
_MOST_INTERIM = 16
_MOST_AHEAD_BYTES = 256 * 1024
_REQUEST_LINE = re.compile(rb"([A-Z][A-Z0-9-]{0,31}) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\x20-\x7e\x80-\xff\t]*)?")


class _Side(ABC):
    """One end of the exchange: bytes to events and back, one message at a time."""

    def __init__(self, role: type[h11.CLIENT] | type[h11.SERVER], bounds: Bounds) -> None:
        self._connection = h11.Connection(role, max_incomplete_event_size=bounds.head_bytes)
        self._bounds = bounds
        self._buffer = bytearray()
        self._is_closed = False
        self._refusal: BadMessage | None = None
        self._delimiter = Delimiter(bounds, self._read_head)

    @property
    def rest(self) -> bytes:
        """What came behind the message: the first bytes of another protocol after a switch."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> None:
        """Bytes as they came; none at all: the other end has closed."""
        if self._is_closed and data:
            raise self._refused("bytes follow its end")
        self._is_closed = not data
        self._buffer += data
        self._pump()

    def next_event(self) -> Read:
        """What came, without trailers; NEED_DATA, or PAUSED until the other side is done."""
        if self._refusal is not None:
            raise self._refusal
        try:
            event = self._connection.next_event()
        except h11.RemoteProtocolError:
            raise self._refused("it cannot be read, or ends too early") from None
        if isinstance(event, h11.Data):
            return h11.Data(data=bytes(event.data))
        if isinstance(event, h11.EndOfMessage):
            if not self._delimiter.is_done and not self._is_closed:
                raise self._refused("two readers understand it differently")
            return h11.EndOfMessage()
        # What was sent ahead waits here, where h11 does not see it.
        is_held = event is h11.NEED_DATA and self._delimiter.is_done and self._buffer
        return h11.PAUSED if is_held else event

    def next_cycle(self) -> bool:
        """Ready for one more exchange; False if the connection has to end.

        `BadMessage` if what was sent ahead already shows that the next message is bad.
        """
        is_over = self._is_closed and not self._buffer
        if self._refusal is not None or is_over:
            return False
        try:
            self._connection.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        self._delimiter = Delimiter(self._bounds, self._read_head)
        self._pump()
        return True

    def _pump(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        try:
            taken = self._delimiter.take(self._buffer)
        except BadMessage as refusal:
            self._refusal = refusal
            raise
        if taken:
            self._connection.receive_data(taken)
        if self._delimiter.is_done and len(self._buffer) > _MOST_AHEAD_BYTES:
            raise self._refused("too much was sent ahead")
        if self._is_closed and not self._buffer:
            self._connection.receive_data(b"")
        elif self._is_closed and not self._delimiter.is_done:
            raise self._refused("it ends in the middle")

    def _refused(self, why: str) -> BadMessage:
        self._refusal = self._delimiter.bad(why)
        return self._refusal

    @abstractmethod
    def _read_head(self, first: bytes, fields: Fields) -> Extent: ...


class ClientSide(_Side):
    """Towards the client: requests come in, answers go out."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _REQUEST)
        self._strict: tuple[bytes, bytes, Fields] | None = None

    @property
    def is_waiting_to_send(self) -> bool:
        """The client holds its body back until it is told `100 Continue`."""
        return self._connection.they_are_waiting_for_100_continue

    def next_event(self) -> Read:
        event = super().next_event()
        if isinstance(event, h11.Request):
            read = event.method, event.target, list(event.headers)
            if read != self._strict:
                raise self._refused("two readers understand it differently")
        return event

    def send(
        self, event: h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage
    ) -> bytes:
        try:
            return self._connection.send(event)
        except h11.LocalProtocolError:
            raise bad_response("it does not fit its own headers, or what was asked for") from None

    def _read_head(self, first: bytes, fields: Fields) -> Extent:
        found = _REQUEST_LINE.fullmatch(first)
        if found is None:
            raise bad_request("its first line is malformed, or not HTTP/1.1")
        extent = length_of(fields, bad=bad_request)
        if found[3] == b"0" and extent is End.CHUNKED:
            raise bad_request("HTTP/1.0 knows no Transfer-Encoding")
        if sum(name == b"host" for name, _ in fields) > 1:
            raise bad_request("it has more than one Host header")
        self._strict = found[1], found[2], fields
        return 0 if extent is None else extent


class ServerSide(_Side):
    """Towards the server: requests go out, answers come in."""

    def __init__(self) -> None:
        super().__init__(h11.CLIENT, _RESPONSE)
        self._method = b""
        self._interim_count = 0

    def feed(self, data: bytes) -> None:
        # An answer that comes before its question would be given to the next one who asks.
        if data and not self._method:
            raise self._refused("it comes before the request")
        super().feed(data)

    def send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> bytes:
        try:
            sent = self._connection.send(event)
        except h11.LocalProtocolError:
            raise bad_request("its body does not fit its headers") from None
        if isinstance(event, h11.Request):
            self._method = event.method
            self._interim_count = 0
        return sent

    def next_cycle(self) -> bool:
        # What is left over is part of no answer: the connection is not used for another one.
        if self._buffer or not super().next_cycle():
            return False
        self._method = b""
        return True

    def _read_head(self, first: bytes, fields: Fields) -> Extent:
        found = _STATUS_LINE.fullmatch(first)
        if found is None:
            raise bad_response("its first line is malformed, or not HTTP/1.1")
        status = int(found[2])
        extent = length_of([(name, value.lower()) for name, value in fields], bad=bad_response)
        if found[1] == b"0" and extent is End.CHUNKED:
            raise bad_response("HTTP/1.0 knows no Transfer-Encoding")
        if status == 101:
            return 0
        if status < 200:
            self._interim_count += 1
            if self._interim_count > _MOST_INTERIM:
                raise bad_response("it sends one interim answer after the other")
            return End.INTERIM
        if self._method == b"HEAD" or status in (204, 304):
            return 0
        return End.CLOSE if extent is None else extent
