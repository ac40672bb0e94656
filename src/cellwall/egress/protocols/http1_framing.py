"""Where an HTTP/1.1 message ends, read so strictly that there is one answer (NET-2). Pure.

A proxy is smuggled past where it and the server behind it disagree about where a message ends.
So every byte is read twice: here, by a grammar without any of the old leniences, and then by llhttp
(`parsing`), which gets only what passed. What both have read is written anew for the other side.
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
"""On average, after the free ones: tiny chunks cost far more to read than to send."""
_PIECES_AT_ONCE = 64
_LISTS = frozenset({b"connection", b"proxy-connection", b"upgrade", b"expect"})
_MAX_LISTED = 64
_FRAMING_NAMES = frozenset({b"content-length", b"transfer-encoding", b"host"})

_FOLD = bytes.maketrans(b"!#$%&'*+.^_`|~", b"-" * 14)

Fields = list[tuple[bytes, bytes]]
"""Names in small letters, values without the space around them."""


class BadMessage(EgressRefused):
    """A message that can be read in more than one way, or that is too large."""

    default_code = "CW-BAD-REQUEST"


class BodyEnd(Enum):
    """How a message ends that has no length."""

    CHUNKED = "chunked"
    CLOSE = "close"
    INTERIM = "interim"
    """The head was all of it, and the real answer follows (1xx)."""


BodyLength = BodyEnd | int
"""What follows a head; a number of bytes, or how it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large and how loose a head may be."""

    head_bytes: int
    fields: int
    is_response: bool
    """A server's trailers and chunk extensions are let in, and end here; a client's are refused."""


class MessageDelimiter:
    """Moves one message's bytes out of a buffer, piece by piece, each once it is known good."""

    def __init__(self, bounds: Bounds, read_head: Callable[[bytes, Fields], BodyLength]) -> None:
        """`read_head` gets the first line and the fields, and tells what follows."""
        self._bounds = bounds
        self._read_head = read_head
        self._step: Callable[[bytearray], bytes] = self._head
        self._left = 0
        self._scanned = 0
        self._chunk_count = 0
        self._chunked_bytes = 0
        self.is_done = False
        self.is_behind = False
        """There may be more in the buffer that can be taken."""

    @property
    def is_before_head(self) -> bool:
        """Whether no head has come yet."""
        return self._step == self._head

    def close(self) -> None:
        """No more bytes come, which is the end of a message that has no other."""
        if self._step is _everything:
            self.is_done = True

    def take(self, buffer: bytearray) -> bytes:
        """What of the buffer belongs to the message and can be handed on.

        Not more than a few dozens of pieces: thousands of tiny chunks would stop everybody else.
        """
        taken: list[bytes] = []
        while not self.is_done and len(taken) < _PIECES_AT_ONCE and (piece := self._step(buffer)):
            taken.append(piece)
        self.is_behind = len(taken) == _PIECES_AT_ONCE and not self.is_done and bool(buffer)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def bad(self, why: str) -> BadMessage:
        """The error for this side."""
        return bad_response(why) if self._bounds.is_response else bad_request(why)

    def _head(self, buffer: bytearray) -> bytes:
        most = self._bounds.head_bytes
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3), most)
        stop = len(buffer) if end < 0 else end + 4
        if _LINE_BREAK_ALONE.search(buffer, max(0, self._scanned - 1), stop):
            raise self.bad("a line ends in a bare CR or LF, or contains NUL")
        if buffer.startswith((b"\r", b" ", b"\t")):
            raise self.bad("it starts with an empty line or a space")
        if end < 0:
            if len(buffer) >= most:
                raise self.bad(f"its head is longer than {most} bytes")
            self._scanned = len(buffer)
            return b""
        head = _cut(buffer, end + 4)
        self._scanned = 0
        first, *lines = head[:-4].split(b"\r\n")
        fields = self._fields(lines)
        self._go_on(self._read_head(first, fields))
        if not self._bounds.is_response and any(name == b"upgrade" for name, _ in fields):
            # The next reader would take what follows for another protocol, whatever its length is.
            kept = [
                line for line, (name, _) in zip(lines, fields, strict=True) if name != b"upgrade"
            ]
            return b"\r\n".join([first, *kept, b"", b""])
        return head

    def _fields(self, lines: list[bytes]) -> Fields:
        if len(lines) > self._bounds.fields:
            raise self.bad(f"it has more than {self._bounds.fields} header lines")
        fields: Fields = []
        for line in lines:
            found = _FIELD.fullmatch(line)
            if found is None:
                # Among them: folded lines, a space before the colon, control characters.
                raise self.bad("a header line is malformed")
            name = found[1].lower()
            check_name(name, bad=self.bad)
            if name in _LISTS and found[2].count(b",") > _MAX_LISTED:
                # It costs more to take apart than to send.
                raise self.bad("a list in a header has too many elements")
            fields.append((name, found[2].strip(b" \t")))
        return fields

    def _go_on(self, extent: BodyLength) -> None:
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
        found = form.fullmatch(line, 0, len(line) - 2)
        if found is None:
            raise self.bad("the length of a chunk is malformed")
        self._left = int(found[1], 16)
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
            # Some servers take a trailer for a header, after we have judged the headers.
            if not self._bounds.is_response:
                raise self.bad("it has trailers")
            self._fields([line[:-2]])
            self._left -= len(line)
        return line

    def _line(self, buffer: bytearray, most: int) -> bytes:
        end = buffer.find(b"\r\n", 0, most)
        stop = min(len(buffer), most) if end < 0 else end + 2
        if _LINE_BREAK_ALONE.search(buffer, 0, stop) or (end < 0 and stop >= most):
            raise self.bad("a line of its body is malformed or too long")
        return _cut(buffer, stop) if end >= 0 else b""


def fold_name(name: bytes) -> bytes:
    """A header's name as servers behind CGI read it: `Content_Length` is `Content-Length`."""
    return name.translate(_FOLD)


def check_name(name: bytes, *, bad: Callable[[str], BadMessage]) -> None:
    """Refuses one that some servers take for a header which says where a message goes or ends."""
    if name not in _FRAMING_NAMES and fold_name(name) in _FRAMING_NAMES:
        raise bad("a header name imitates another one")


def list_values(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    """The words of a header that is a list, in small letters."""
    return [
        word.strip(b" \t").lower()
        for name, value in headers
        if name == wanted
        for word in value.split(b",")
        if word.strip(b" \t")
    ]


def length_of(fields: Fields, *, bad: Callable[[str], BadMessage]) -> BodyLength | None:
    """What the headers say about the body's end, if anything, and only if they say it once."""
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
    """What to say of a client's message."""
    return BadMessage(
        f"the HTTP request is refused: {why}",
        hint="Send the request with a common HTTP library.",
    )


def bad_response(why: str) -> BadMessage:
    """What to say of a server's message."""
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
