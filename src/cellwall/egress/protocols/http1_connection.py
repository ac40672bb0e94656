"""HTTP/1.1 codecs for both sides: bytes are parsed twice, and written anew (NET-2). Pure."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque

from cellwall.egress.protocols.http1_codec import (
    Body,
    MessageEvent,
    MessageHead,
    Parser,
    ParserSignal,
    RequestHead,
    ResponseHead,
    Unreadable,
    request_head,
    response_head,
)
from cellwall.egress.protocols.http1_framing import (
    BadMessage,
    BodyEnd,
    BodyLength,
    Fields,
    HeadLimits,
    MessageDelimiter,
    bad_request,
    bad_response,
    length_of,
    list_values,
)

_REQUEST = HeadLimits(head_bytes=32 * 1024, fields=100, is_response=False)
_RESPONSE = HeadLimits(head_bytes=64 * 1024, fields=200, is_response=True)
_MAX_INTERIM = 16
_MAX_AHEAD_BYTES = 256 * 1024
_REQUEST_LINE = re.compile(rb"([A-Z][A-Z0-9-]{0,31}) ([\x21-\x7e]+) HTTP/(1\.[01])")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-5][0-9][0-9])(?: ([\x20-\x7e\x80-\xff\t]*))?")
_CODING = b"transfer-encoding"
_NO_BODY = frozenset({204, 304})


class _Http1Codec(ABC):
    """One side of an exchange: bytes to events and back, one message at a time."""

    def __init__(self, bounds: HeadLimits) -> None:
        self._parser = Parser(is_response=bounds.is_response)
        self._bounds = bounds
        self._buffer = bytearray()
        self._is_closed = False
        self._refusal: BadMessage | None = None
        self._events: deque[MessageEvent] = deque()
        self._begin()

    def _begin(self) -> None:
        self._delimiter = MessageDelimiter(self._bounds, self._read_head)
        self._is_bodiless = False
        """The message has no body whatever its head states, which llhttp cannot know."""
        self._is_switched = False
        self._has_given_end = False
        self._keeps = True
        self._body: Body | None = None
        """The body that is being written."""

    @property
    def rest(self) -> bytes:
        """The bytes behind the message: of another protocol after a switch."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add received bytes; empty: the peer has closed."""
        if self._is_closed and data:
            raise self._refuse("bytes follow its end")
        self._is_closed = not data
        self._buffer += data
        self._pump()

    @property
    def is_behind(self) -> bool:
        """Whether received bytes wait to be parsed."""
        return self._delimiter.is_behind and not self._events

    def read_on(self) -> None:
        """Continue to parse received bytes, after BEHIND."""
        self._pump()

    def next_event(self) -> MessageEvent:
        """The next event, without trailers, or a signal what the caller has to do."""
        if self._refusal is not None:
            raise self._refusal
        if self._events:
            event = self._events.popleft()
            self._has_given_end = event is ParserSignal.END
            return event
        if self._delimiter.is_done:
            return ParserSignal.PAUSED
        if self._delimiter.is_behind:
            return ParserSignal.BEHIND
        if not self._is_closed:
            return ParserSignal.NEED_DATA
        if self._may_close():
            return ParserSignal.CLOSED
        raise self._refuse("it is malformed or incomplete")

    def next_cycle(self) -> bool:
        """Prepare for the next exchange; False if the connection has to end.

        `BadMessage` if pipelined bytes already show that the next message is bad.
        """
        is_over = self._is_closed and not self._buffer
        if self._refusal is not None or is_over or not self._keeps or self._is_switched:
            return False
        if not self._has_given_end or self._body is None or not self._body.has_ended:
            return False
        self._parser.begin()
        self._begin()
        self._pump()
        return True

    def send_data(self, data: bytes) -> bytes:
        """A piece of the body, encoded."""
        return self._writing().piece(data)

    def send_end(self) -> bytes:
        """The end of the body, encoded."""
        return self._writing().end()

    def _writing(self) -> Body:
        if self._body is None:
            raise self._delimiter.bad("a body comes before its head")
        return self._body

    def _pump(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        was_done = self._delimiter.is_done
        try:
            data = self._delimiter.take(self._buffer) if self._buffer else b""
        except BadMessage as refusal:
            self._refusal = refusal
            raise
        if data:
            self._read(data)
        if self._is_closed and not self._buffer:
            self._delimiter.close()
        is_done = self._delimiter.is_done
        if is_done and not was_done and not self._is_switched:
            self._events.append(ParserSignal.END)
        if is_done and len(self._buffer) > _MAX_AHEAD_BYTES:
            raise self._refuse("too much was sent ahead")
        if self._is_closed and self._buffer and not (is_done or self._delimiter.is_behind):
            raise self._refuse("it is incomplete")

    def _read(self, data: bytes) -> None:
        try:
            events = self._parser.read(data)
        except Unreadable:
            raise self._refuse("it is malformed or incomplete") from None
        for event in events:
            self._events.append(event if isinstance(event, bytes) else self._reconcile(event))
        is_done = self._delimiter.is_done
        if self._parser.is_complete is not is_done and not (is_done and self._is_bodiless):
            raise self._refuse("two parsers disagree about it")

    def _reconcile(self, head: MessageHead) -> MessageHead:
        """The head, if both parsers agree."""
        agreed = self._compare(head)
        if agreed is None:
            raise self._refuse("two parsers disagree about it")
        return agreed

    def _refuse(self, why: str) -> BadMessage:
        self._refusal = self._delimiter.bad(why)
        return self._refusal

    @abstractmethod
    def _may_close(self) -> bool:
        """Whether the peer may close now."""

    @abstractmethod
    def _read_head(self, first: bytes, fields: Fields) -> BodyLength: ...

    @abstractmethod
    def _compare(self, head: MessageHead) -> MessageHead | None:
        """The head, if the strict parser has parsed the same; else None."""


class Http1ServerCodec(_Http1Codec):
    """Towards the client: parses requests, writes responses."""

    def __init__(self) -> None:
        self._head: RequestHead | None = None
        self.is_waiting_to_send = False
        """The client waits for `100 Continue`."""
        super().__init__(_REQUEST)

    def next_event(self) -> MessageEvent:
        event = super().next_event()
        if isinstance(event, bytes):
            self.is_waiting_to_send = False
        return event

    def send_interim(self, status: int, headers: Fields, reason: bytes = b"") -> bytes:
        """An interim response: `100 Continue`, or the switch to another protocol."""
        self.is_waiting_to_send = False
        self._is_switched = status == 101
        return response_head(status, reason, headers, bad=bad_response)

    def send_head(self, status: int, headers: Fields, reason: bytes = b"") -> bytes:
        """The head of the response, with the framing headers of its body."""
        request = self._head
        if request is None or self._body is not None:
            raise bad_response("nothing has asked for it")
        self.is_waiting_to_send = False
        self._is_switched = request.method == b"CONNECT" and 200 <= status < 300
        # Servers may write `Chunked` (RFC 9112, section 7); clients get the usual spelling.
        headers = [(name, value.lower() if name == _CODING else value) for name, value in headers]
        extent = length_of(headers, bad=bad_response)
        has_body = not (request.method == b"HEAD" or status in _NO_BODY or self._is_switched)
        if extent is None and (has_body or request.method == b"HEAD"):
            extent = BodyEnd.CHUNKED if request.version == b"1.1" else BodyEnd.CLOSE
            if extent is BodyEnd.CHUNKED:
                headers.append((_CODING, b"chunked"))
        if has_body and extent is BodyEnd.CLOSE:
            self._keeps = False
        if not self._keeps:
            headers.append((b"connection", b"close"))
        self._body = Body(extent if has_body and extent is not None else 0, bad=bad_response)
        return response_head(status, reason, headers, bad=bad_response)

    def _may_close(self) -> bool:
        return self._delimiter.is_before_head

    def _read_head(self, first: bytes, fields: Fields) -> BodyLength:
        match = _REQUEST_LINE.fullmatch(first)
        if match is None:
            raise bad_request("its first line is malformed, or not HTTP/1.1")
        method, target, version = match.groups()
        extent = length_of(fields, bad=bad_request)
        if version == b"1.0" and extent is BodyEnd.CHUNKED:
            raise bad_request("HTTP/1.0 knows no Transfer-Encoding")
        if method == b"CONNECT" and extent not in (None, 0):
            # Readers differ: the first bytes of the tunnel, or a body (RFC 9110: it has none).
            raise bad_request("CONNECT has no body")
        host_count = sum(name == b"host" for name, _ in fields)
        if host_count > 1 or (host_count == 0 and version == b"1.1"):
            raise bad_request("it has no Host header, or more than one")
        self._head = RequestHead(method, target, version, fields)
        self._keeps = version == b"1.1" and b"close" not in list_values(fields, b"connection")
        self.is_waiting_to_send = version == b"1.1" and b"100-continue" in list_values(
            fields, b"expect"
        )
        return 0 if extent is None else extent

    def _compare(self, head: MessageHead) -> MessageHead | None:
        strict = self._head
        if strict is None or not isinstance(head, RequestHead) or head[:3] != strict[:3]:
            return None
        headers = strict.headers
        if head.headers == headers:
            return strict
        # llhttp does not get the header that would make it stop parsing.
        left = [pair for pair in headers if pair[0] != b"upgrade"]
        return strict if head.headers == left else None


class Http1ClientCodec(_Http1Codec):
    """Towards the server: writes requests, parses responses."""

    def __init__(self) -> None:
        self._method = b""
        self._asks_to_switch = False
        self._interim_count = 0
        self._heads: deque[tuple[int, bytes, bytes, Fields]] = deque()
        super().__init__(_RESPONSE)

    def feed(self, data: bytes) -> None:
        # A response before its request would be given to the next request.
        if data and not self._method:
            raise self._refuse("it comes before the request")
        super().feed(data)

    def send_head(self, method: bytes, target: bytes, headers: Fields) -> bytes:
        """The head of a request; its headers state the framing of its body."""
        if self._body is not None:
            raise bad_request("another one is on its way")
        extent = length_of(headers, bad=bad_request)
        sent = request_head(method, target, headers, bad=bad_request)
        self._body = Body(0 if extent is None else extent, bad=bad_request)
        self._method = method
        self._asks_to_switch = any(name == b"upgrade" for name, _ in headers)
        self._interim_count = 0
        return sent

    def next_cycle(self) -> bool:
        # Leftover bytes belong to no response: the connection is not reused.
        if self._buffer or not super().next_cycle():
            return False
        self._method = b""
        return True

    def _may_close(self) -> bool:
        return not self._method

    def _read_head(self, first: bytes, fields: Fields) -> BodyLength:
        match = _STATUS_LINE.fullmatch(first)
        if match is None:
            raise bad_response("its first line is malformed, or not HTTP/1.1")
        version, status = match[1], int(match[2])
        self._heads.append((status, match[3] or b"", version, fields))
        extent = length_of([(name, value.lower()) for name, value in fields], bad=bad_response)
        if version == b"1.0" and extent is BodyEnd.CHUNKED:
            raise bad_response("HTTP/1.0 knows no Transfer-Encoding")
        if status == 101:
            if not self._asks_to_switch:
                raise bad_response("it switches to a protocol that was not requested")
            self._is_switched = self._is_bodiless = True
            return 0
        if status < 200:
            self._interim_count += 1
            if self._interim_count > _MAX_INTERIM:
                raise bad_response("it sends too many interim responses")
            return BodyEnd.INTERIM
        self._keeps = version == b"1.1" and b"close" not in list_values(fields, b"connection")
        if self._method == b"HEAD" or status in _NO_BODY:
            self._is_bodiless = True
            return 0
        if extent is None:
            self._keeps = False
            return BodyEnd.CLOSE
        return extent

    def _compare(self, head: MessageHead) -> MessageHead | None:
        strict = self._heads.popleft() if self._heads else None
        return head if isinstance(head, ResponseHead) and head[:4] == strict else None
