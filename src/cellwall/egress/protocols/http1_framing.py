"""The end of an HTTP/1.1 message, parsed so strictly that it is unambiguous (NET-2). Pure.

Request smuggling works where a proxy and a server disagree about the end of a message. So every
byte is parsed twice: here, by a grammar without the old leniences, and then by llhttp
(`http1_codec`), which gets only messages that passed. The result of both is written anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from cellwall.core.errors import EgressRefused

_LINE_BREAK_ALONE = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\0")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,17}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})")
_LOOSE_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\x20-\x7e\t]*)?")
_MAX_CHUNK_LINE_BYTES = 256
_MAX_TRAILER_BYTES = 8 * 1024
_FREE_CHUNKS = 4096
_MIN_CHUNK_BYTES = 16
"""On average, after the free ones: tiny chunks cost far more to parse than to send."""
_PIECES_AT_ONCE = 64
_LISTS = frozenset({b"connection", b"proxy-connection", b"upgrade", b"expect"})
_MAX_LISTED = 64
_FRAMING_NAMES = frozenset({b"content-length", b"transfer-encoding", b"host"})

_FOLD = bytes.maketrans(b"!#$%&'*+.^_`|~", b"-" * 14)

HeaderField = tuple[bytes, bytes]
Headers = Sequence[HeaderField]
Fields = list[HeaderField]
"""Names in lower case, values without surrounding space."""


class BadMessage(EgressRefused):
    """A message that is ambiguous, malformed or too large."""

    default_code = "CW-BAD-REQUEST"


ErrorBuilder = Callable[[str], BadMessage]
"""Makes the error for a request or a response, from the reason."""


class BodyEnd(Enum):
    """How a message without a length ends."""

    CHUNKED = "chunked"
    CLOSE = "close"
    INTERIM = "interim"
    """The message is a head only, and the final response follows (1xx)."""


BodyLength = BodyEnd | int
"""The body behind a head: a number of bytes, or how it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLimits:
    """Limits of a head, and its leniency."""

    head_bytes: int
    fields: int
    is_response: bool
    """A server's trailers and chunk extensions are accepted and dropped; a client's are refused."""


class MessageDelimiter:
    """Takes the bytes of one message out of a buffer, piece by piece, each after its check."""

    def __init__(
        self, bounds: HeadLimits, read_head: Callable[[bytes, Fields], BodyLength]
    ) -> None:
        """`read_head` gets the first line and the fields, and returns the body length."""
        self._bounds = bounds
        self._read_head = read_head
        self._step: Callable[[bytearray], bytes] = self._head
        self._left = 0
        self._scanned = 0
        self._chunk_count = 0
        self._chunked_bytes = 0
        self.is_done = False
        self.is_behind = False
        """The buffer may hold more that can be taken."""

    @property
    def is_before_head(self) -> bool:
        """Whether no complete head has arrived yet."""
        return self._step == self._head

    def close(self) -> None:
        """The connection has ended, which ends a message without a length."""
        if self._step is _everything:
            self.is_done = True

    def take(self, buffer: bytearray) -> bytes:
        """The bytes of the buffer that belong to the message and passed the checks.

        At most a few dozen pieces: thousands of tiny chunks would block the loop.
        """
        pieces: list[bytes] = []
        while not self.is_done and len(pieces) < _PIECES_AT_ONCE and (piece := self._step(buffer)):
            pieces.append(piece)
        self.is_behind = len(pieces) == _PIECES_AT_ONCE and not self.is_done and bool(buffer)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def bad(self, why: str) -> BadMessage:
        """The error for this side."""
        return bad_response(why) if self._bounds.is_response else bad_request(why)

    def _head(self, buffer: bytearray) -> bytes:
        max_bytes = self._bounds.head_bytes
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3), max_bytes)
        stop = len(buffer) if end < 0 else end + 4
        if _LINE_BREAK_ALONE.search(buffer, max(0, self._scanned - 1), stop):
            raise self.bad("a line ends in a bare CR or LF, or contains NUL")
        if buffer.startswith((b"\r", b" ", b"\t")):
            raise self.bad("it starts with an empty line or a space")
        if end < 0:
            if len(buffer) >= max_bytes:
                raise self.bad(f"its head is longer than {max_bytes} bytes")
            self._scanned = len(buffer)
            return b""
        head = _cut(buffer, end + 4)
        self._scanned = 0
        first, *lines = head[:-4].split(b"\r\n")
        fields = self._fields(lines)
        self._expect_body(self._read_head(first, fields))
        if not self._bounds.is_response and any(name == b"upgrade" for name, _ in fields):
            # llhttp would take the bytes behind the head for another protocol.
            others = [
                line for line, (name, _) in zip(lines, fields, strict=True) if name != b"upgrade"
            ]
            return b"\r\n".join([first, *others, b"", b""])
        return head

    def _fields(self, lines: list[bytes]) -> Fields:
        if len(lines) > self._bounds.fields:
            raise self.bad(f"it has more than {self._bounds.fields} header lines")
        fields: Fields = []
        for line in lines:
            match = _FIELD.fullmatch(line)
            if match is None:
                # Among them: folded lines, a space before the colon, control characters.
                raise self.bad("a header line is malformed")
            name = match[1].lower()
            check_name(name, bad=self.bad)
            if name in _LISTS and match[2].count(b",") > _MAX_LISTED:
                # Such a list costs more to parse than to send.
                raise self.bad("a list in a header has too many elements")
            fields.append((name, match[2].strip(b" \t")))
        return fields

    def _expect_body(self, extent: BodyLength) -> None:
        match extent:
            case BodyEnd.INTERIM:
                pass
            case BodyEnd.CHUNKED:
                self._step = self._chunk_line
            case BodyEnd.CLOSE:
                self._step = _everything
            case 0:
                self.is_done = True
            case length:
                self._left = length
                self._step = self._counted

    def _counted(self, buffer: bytearray) -> bytes:
        piece = _cut(buffer, self._left)
        self._left -= len(piece)
        self.is_done = self._left == 0
        return piece

    def _chunk_line(self, buffer: bytearray) -> bytes:
        line = self._line(buffer, _MAX_CHUNK_LINE_BYTES)
        if not line:
            return b""
        form = _LOOSE_CHUNK if self._bounds.is_response else _CHUNK
        match = form.fullmatch(line, 0, len(line) - 2)
        if match is None:
            raise self.bad("the length of a chunk is malformed")
        self._left = int(match[1], 16)
        self._chunk_count += 1
        self._chunked_bytes += self._left
        paid_count = self._chunk_count - _FREE_CHUNKS
        if self._chunked_bytes < paid_count * _MIN_CHUNK_BYTES:
            raise self.bad("its body comes in too many tiny chunks")
        self._step = self._chunk if self._left else self._trailer
        plain = b"%x\r\n" % self._left
        if not self._left:
            self._left = _MAX_TRAILER_BYTES
        return plain

    def _chunk(self, buffer: bytearray) -> bytes:
        piece = _cut(buffer, self._left)
        self._left -= len(piece)
        if self._left == 0:
            self._step = self._chunk_end
        return piece

    def _chunk_end(self, buffer: bytearray) -> bytes:
        if not b"\r\n".startswith(buffer[:2]):
            raise self.bad("a chunk is longer than its length")
        if len(buffer) < 2:
            return b""
        self._step = self._chunk_line
        return _cut(buffer, 2)

    def _trailer(self, buffer: bytearray) -> bytes:
        line = self._line(buffer, self._left)
        if line == b"\r\n":
            self.is_done = True
        elif line:
            # Some servers merge trailers into the headers, which were checked without them.
            if not self._bounds.is_response:
                raise self.bad("it has trailers")
            self._fields([line[:-2]])
            self._left -= len(line)
        return line

    def _line(self, buffer: bytearray, max_bytes: int) -> bytes:
        end = buffer.find(b"\r\n", 0, max_bytes)
        stop = min(len(buffer), max_bytes) if end < 0 else end + 2
        if _LINE_BREAK_ALONE.search(buffer, 0, stop) or (end < 0 and stop >= max_bytes):
            raise self.bad("a line of its body is malformed or too long")
        return _cut(buffer, stop) if end >= 0 else b""


def fold_name(name: bytes) -> bytes:
    """A header name as servers behind CGI read it: `Content_Length` is `Content-Length`."""
    return name.translate(_FOLD)


def check_name(name: bytes, *, bad: ErrorBuilder) -> None:
    """Refuse a name that some servers take for a header of routing or framing."""
    if name not in _FRAMING_NAMES and fold_name(name) in _FRAMING_NAMES:
        raise bad("a header name imitates another one")


def list_values(headers: Headers, wanted: bytes) -> list[bytes]:
    """The elements of a list header, in lower case."""
    return [
        word.strip(b" \t").lower()
        for name, value in headers
        if name == wanted
        for word in value.split(b",")
        if word.strip(b" \t")
    ]


def length_of(fields: Fields, *, bad: ErrorBuilder) -> BodyLength | None:
    """The body length that the headers state, if any; two statements are refused."""
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise bad("it states its length more than once (Content-Length, Transfer-Encoding)")
    if codings:
        if codings[0] != b"chunked":
            raise bad("its Transfer-Encoding is not `chunked`")
        return BodyEnd.CHUNKED
    if not lengths:
        return None
    if _LENGTH.fullmatch(lengths[0]) is None:
        raise bad("its Content-Length is not a plain number")
    return int(lengths[0])


def bad_request(why: str) -> BadMessage:
    """The error for a request."""
    return BadMessage(
        f"the HTTP request is refused: {why}",
        hint="Send the request with a common HTTP library.",
    )


def bad_response(why: str) -> BadMessage:
    """The error for a response."""
    return BadMessage(
        f"the HTTP response is refused: {why}",
        hint="The server violates HTTP; no change in the sandbox helps.",
        code="CW-BAD-RESPONSE",
    )


def _everything(buffer: bytearray) -> bytes:
    return _cut(buffer, len(buffer))


def _cut(buffer: bytearray, count: int) -> bytes:
    with memoryview(buffer) as view:
        piece = bytes(view[:count])
    del buffer[:count]
    return piece
