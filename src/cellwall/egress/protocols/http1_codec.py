"""The second reader of HTTP/1.1: llhttp, by httptools (NET-2). Pure.

It gets only what `framing` has passed, in its plainest form, and has to understand the same.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from httptools import (
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    HttpResponseParser,
)

from cellwall.egress.protocols.http1_framing import BadMessage, BodyEnd, BodyLength, Fields


class ParserSignal(Enum):
    """What can be read beside heads and bodies."""

    END = "end"
    """Of the message. What stood behind a body in chunks is not shown."""
    NEED_DATA = "need data"
    BEHIND = "behind"
    """More has come than is read at once: others have a turn, and then `read_on`."""
    PAUSED = "paused"
    """Until both sides are done with this message."""
    CLOSED = "closed"
    """The other end has no more messages."""


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
    written: Fields
    """The same as `headers`, with the capitals that names were written with."""


Head = RequestHead | ResponseHead
Event = Head | bytes | ParserSignal
"""Bytes are a piece of a body, and never empty."""


class Unreadable(Exception):
    """It cannot make sense of it."""


class Parser(ABC):
    """Heads and bodies of one direction. What begins with `on_` is called by httptools."""

    def __init__(self) -> None:
        self._parser: HttpRequestParser | HttpResponseParser | None = None
        self._came: list[Head | bytes] = []
        self._first = b""
        self._written: Fields = []
        self._is_in_head = True
        self._keeps = True
        self.is_complete = False
        """Whether it, too, has seen the end of the message."""

    def read(self, data: bytes) -> list[Head | bytes]:
        """What is in these bytes, chunk by chunk."""
        if self._parser is None:
            self._parser = self._made()
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            # Whatever follows is of another protocol; should it not be, it is read anew.
            self._parser = None
        except HttpParserError:
            raise Unreadable from None
        came, self._came = self._came, []
        return came

    def begin(self) -> None:
        """One more message comes."""
        if not self.is_complete or not self._keeps:
            # It waits for a body that was announced, but cannot be: that of an answer to HEAD. Or
            # it takes the connection for closed, by headers that we do not believe.
            self._parser = None
        self.is_complete = False

    def on_message_begin(self) -> None:
        self._first = b""
        self._written = []
        self._is_in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:
            self._written.append((name, value.strip(b" \t")))

    def on_body(self, body: bytes) -> None:
        # Not joined with what came before: how an answer is cut must tell nothing but how it was.
        self._came.append(body)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._keeps = self._parser is not None and self._parser.should_keep_alive()
        self._came.append(self._head([(name.lower(), value) for name, value in self._written]))

    def on_message_complete(self) -> None:
        self.is_complete = True

    @abstractmethod
    def _made(self) -> HttpRequestParser | HttpResponseParser: ...

    @abstractmethod
    def _head(self, headers: Fields) -> Head: ...


class RequestParser(Parser):
    """What clients send."""

    def _made(self) -> HttpRequestParser:
        self._requests = HttpRequestParser(self)
        return self._requests

    def on_url(self, url: bytes) -> None:
        self._first += url

    def _head(self, headers: Fields) -> RequestHead:
        parser = self._requests
        version = parser.get_http_version().encode()
        return RequestHead(parser.get_method(), self._first, version, headers)


class ResponseParser(Parser):
    """What servers send."""

    def _made(self) -> HttpResponseParser:
        self._answers = HttpResponseParser(self)
        return self._answers

    def on_status(self, status: bytes) -> None:
        self._first += status

    def on_message_complete(self) -> None:
        # After an interim answer the real one follows.
        self.is_complete = self._answers.get_status_code() >= 200

    def _head(self, headers: Fields) -> ResponseHead:
        parser = self._answers
        version = parser.get_http_version().encode()
        return ResponseHead(parser.get_status_code(), self._first, version, headers, self._written)


_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TEXT = re.compile(rb"[\x20-\x7e\x80-\xff\t]*")
_TARGET = re.compile(rb"[\x21-\x7e]+")

Refuse = Callable[[str], BadMessage]


def request_head(method: bytes, target: bytes, headers: Fields, *, bad: Refuse) -> bytes:
    """The first line and the headers, with the empty line behind them."""
    if not (_NAME.fullmatch(method) and _TARGET.fullmatch(target)):
        raise bad("its first line cannot be written")
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, _lines(headers, bad))


def response_head(status: int, reason: bytes, headers: Fields, *, bad: Refuse) -> bytes:
    """The same for an answer."""
    if _TEXT.fullmatch(reason) is None:
        raise bad("its first line cannot be written")
    return b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, _lines(headers, bad))


def _lines(headers: Fields, bad: Refuse) -> bytes:
    for name, value in headers:
        # A value that was put in on the way could hold a line break, and so one header more.
        if _NAME.fullmatch(name) is None or _TEXT.fullmatch(value) is None:
            raise bad("a header cannot be written")
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


class Body:
    """The body of one message on its way out: it has to be as long as its head says."""

    def __init__(self, extent: BodyLength, *, bad: Refuse) -> None:
        self._extent = extent
        self._left = extent if isinstance(extent, int) else 0
        self._bad = bad
        self.has_ended = False

    def piece(self, data: bytes) -> bytes:
        """As it is sent."""
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
        """What says that nothing follows."""
        if self._left or self.has_ended:
            raise self._misfit()
        self.has_ended = True
        return b"0\r\n\r\n" if self._extent is BodyEnd.CHUNKED else b""

    def _misfit(self) -> BadMessage:
        return self._bad("its body does not match its headers or the request")
