"""HTTP/1.1 messages as they are written for the other side: always in the plainest form. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from cellwall.egress.protocols.http1_framing import BadMessage, End, Extent, Fields

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

    def __init__(self, extent: Extent, *, bad: Refuse) -> None:
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
        if self._extent is End.CHUNKED:
            return b"%x\r\n%b\r\n" % (len(data), data)
        if self._extent is not End.CLOSE:
            if len(data) > self._left:
                raise self._misfit()
            self._left -= len(data)
        return data

    def end(self) -> bytes:
        """What says that nothing follows."""
        if self._left or self.has_ended:
            raise self._misfit()
        self.has_ended = True
        return b"0\r\n\r\n" if self._extent is End.CHUNKED else b""

    def _misfit(self) -> BadMessage:
        return self._bad("its body does not fit its own headers, or what was asked for")
