"""The second HTTP/1.1 parser, llhttp by httptools, and the writer of messages (NET-2). Pure.

The parser gets only messages that passed `http1_framing`, and both must agree. Messages are written
in their plainest form.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from httptools import (
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    HttpResponseParser,
)

from cellwall.egress.protocols.http1_framing import (
    BadMessage,
    BodyEnd,
    BodyLength,
    ErrorBuilder,
    Fields,
)


class ParserSignal(Enum):
    """Results of the parser other than heads and bodies."""

    END = "end"
    """End of the message. Trailers are dropped."""
    NEED_DATA = "need data"
    BEHIND = "behind"
    """More bytes wait than one step parses: yield to others, then call `read_on`."""
    PAUSED = "paused"
    """Until both sides have completed this message."""
    CLOSED = "closed"
    """The peer has no more messages."""


class RequestHead(NamedTuple):
    """As a client has sent it."""

    method: bytes
    target: bytes
    version: bytes
    """Such as `1.1`."""
    headers: Fields


class ResponseHead(NamedTuple):
    """As a server has sent it; an interim one with a status below 200."""

    status: int
    reason: bytes
    version: bytes
    headers: Fields
    original_headers: Fields
    """As `headers`, with the original case of the names."""


MessageHead = RequestHead | ResponseHead
MessageEvent = MessageHead | bytes | ParserSignal
"""Bytes are a piece of a body, and never empty."""


class Unreadable(Exception):
    """llhttp rejects the bytes."""


class Parser:
    """Heads and bodies of one direction. httptools calls the `on_` methods."""

    def __init__(self, *, is_response: bool) -> None:
        self._is_response = is_response
        self._parser: HttpRequestParser | HttpResponseParser | None = None
        self._events: list[MessageHead | bytes] = []
        self._first = b""
        self._original_headers: Fields = []
        self._is_in_head = True
        self._keeps = True
        self.is_complete = False
        """Whether llhttp has seen the end of the message."""

    def read(self, data: bytes) -> list[MessageHead | bytes]:
        """The heads and body pieces in these bytes."""
        if self._parser is None:
            self._parser = (HttpResponseParser if self._is_response else HttpRequestParser)(self)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            # Bytes of another protocol may follow; otherwise a new parser reads on.
            self._parser = None
        except HttpParserError:
            raise Unreadable from None
        events, self._events = self._events, []
        return events

    def begin(self) -> None:
        """Prepare for the next message."""
        if not self.is_complete or not self._keeps:
            # llhttp waits for the announced body of a response to HEAD, which has none. Or it
            # considers the connection closed, by headers that the strict parser overrides.
            self._parser = None
        self.is_complete = False

    def on_message_begin(self) -> None:
        self._first = b""
        self._original_headers = []
        self._is_in_head = True

    def on_url(self, url: bytes) -> None:
        self._first += url

    on_status = on_url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:
            self._original_headers.append((name, value.strip(b" \t")))

    def on_body(self, body: bytes) -> None:
        # Not joined with earlier pieces: the segmentation must not depend on their content.
        self._events.append(body)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._parser is not None:
            self._keeps = self._parser.should_keep_alive()
            self._events.append(self._head(self._parser))

    def _head(self, parser: HttpRequestParser | HttpResponseParser) -> MessageHead:
        headers = [(name.lower(), value) for name, value in self._original_headers]
        version = parser.get_http_version().encode()
        if isinstance(parser, HttpRequestParser):
            return RequestHead(parser.get_method(), self._first, version, headers)
        return ResponseHead(
            parser.get_status_code(), self._first, version, headers, self._original_headers
        )

    def on_message_complete(self) -> None:
        # After an interim response the final one follows.
        parser = self._parser
        is_interim = isinstance(parser, HttpResponseParser) and parser.get_status_code() < 200
        self.is_complete = not is_interim


_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT = re.compile(rb"[\x20-\x7e\x80-\xff\t]*")
_TARGET = re.compile(rb"[\x21-\x7e]+")


def request_head(method: bytes, target: bytes, headers: Fields, *, bad: ErrorBuilder) -> bytes:
    """The request line and the headers, with the empty line."""
    if not (_NAME.fullmatch(method) and _TARGET.fullmatch(target)):
        raise bad("its first line cannot be written")
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, _lines(headers, bad))


def response_head(status: int, reason: bytes, headers: Fields, *, bad: ErrorBuilder) -> bytes:
    """The status line and the headers, with the empty line."""
    if _TEXT.fullmatch(reason) is None:
        raise bad("its first line cannot be written")
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, _lines(headers, bad))


def _lines(headers: Fields, bad: ErrorBuilder) -> bytes:
    for name, value in headers:
        # An injected value could contain a line break, and so add a header.
        if _NAME.fullmatch(name) is None or _TEXT.fullmatch(value) is None:
            raise bad("a header cannot be written")
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


class Body:
    """The body of one message as it is written; must match the length in its head."""

    def __init__(self, extent: BodyLength, *, bad: ErrorBuilder) -> None:
        self._extent = extent
        self._left = extent if isinstance(extent, int) else 0
        self._bad = bad
        self.has_ended = False

    def piece(self, data: bytes) -> bytes:
        """A piece, encoded."""
        if self.has_ended:
            raise self._misfit()
        if not data:
            return b""
        if self._extent is BodyEnd.CHUNKED:
            return b"%x\r\n%b\r\n" % (len(data), data)
        if self._extent is not BodyEnd.CLOSE:
            if len(data) > self._left:
                raise self._misfit()
            self._left -= len(data)
        return data

    def end(self) -> bytes:
        """The end of the body, encoded."""
        if self._left or self.has_ended:
            raise self._misfit()
        self.has_ended = True
        return b"0\r\n\r\n" if self._extent is BodyEnd.CHUNKED else b""

    def _misfit(self) -> BadMessage:
        return self._bad("its body does not match its headers or the request")
