"""HTTP/2 frames, bounded and counted before their content is parsed (NET-2). Pure.

Nine bytes of a sender can cost the receiver far more: pings, settings, empty frames, streams that
are opened and reset at once (CVE-2023-44487), endless header blocks (CVE-2024-27316). So the header
of each frame is checked first, and only frames that passed are given to h2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cellwall.egress.protocols.http1_framing import bad_request, bad_response

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
MAX_FRAME_BYTES = 16 * 1024
MAX_HEAD_BYTES = {"client": 32 * 1024, "server": 64 * 1024}
"""Of a header block, compressed and decompressed; the same as in HTTP/1.1."""
_MAX_FIELDS = {"client": 128, "server": 256}
"""Fields of a block that is decompressed; the limit of a message is lower."""
_MAX_CONTINUATIONS = 8
_SETTING_BYTES = 6
_MAX_SETTINGS_BYTES = _SETTING_BYTES * 32
_KNOWN_SETTINGS = frozenset({1, 2, 3, 4, 5, 6, 8})
"""From HEADER_TABLE_SIZE to ENABLE_CONNECT_PROTOCOL. h2 keeps every setting that it is sent, and
looks through all of them at each SETTINGS frame."""
_FREE_FRAMES = 4096
_MIN_DATA_BYTES = 4
"""On average, after the free ones; a gRPC message has at least five."""
_FRAMES_PER_TURN = 32
"""Per turn, with one header block at most: thousands of tiny frames must not block the loop."""

_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = (
    range(10)
)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_PRIORITY_BYTES = 5

_MAX_COST = 1000.0
_RECOVERY_PER_S = 50.0
_COSTS = {_PRIORITY: 1.0, _RESET: 1.0, _SETTINGS: 10.0, _PING: 1.0, _WINDOW: 1.0, _GOAWAY: 10.0}
_UNKNOWN_FRAME_COST = 1.0
_EMPTY_DATA_COST = 1.0
RESET_COST = 10.0
"""Of a stream that was opened, sent to a server, and reset by the client."""
REFUSED_COST = 4.0
"""These two have a budget of their own: credit for data frames must not pay for resets, or a few
bytes of data before each reset would."""
DATA_FRAME_CREDIT = 2.0
"""Credit for a data frame: it causes two WINDOW_UPDATE frames, and some peers add a PING."""
RESPONSE_CREDIT = 10.0


class FrameCostBudget:
    """The cost of a peer's control frames; it decreases with time and with useful work."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._level = 0.0
        self._at_s = clock()

    def credit(self, amount: float) -> None:
        self._level = max(self._level - amount, 0.0)

    def charge(self, amount: float) -> bool:
        """Add a cost; False if the budget is exceeded."""
        now_s = self._clock()
        self.credit((now_s - self._at_s) * _RECOVERY_PER_S)
        self._at_s = now_s
        self._level += amount
        return self._level <= _MAX_COST


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer processes streams up to this one only.

    Not given to h2, which would consider the connection closed: open streams still get their
    responses.
    """

    last_stream: int
    error_code: int


class FrameGate:
    """Checks the frames of one peer: `feed` bytes, then `take` the frames that passed."""

    def __init__(
        self, *, is_client: bool, frame_costs: FrameCostBudget, waste: FrameCostBudget
    ) -> None:
        """`is_client`: whether the peer is the client. `waste` counts reset and refused streams."""
        self._bad = bad_request if is_client else bad_response
        peer = "client" if is_client else "server"
        self._max_head_bytes = MAX_HEAD_BYTES[peer]
        self._max_fields = _MAX_FIELDS[peer]
        self._is_client = is_client
        self._frame_costs = frame_costs
        self._waste = waste
        self._buffer = bytearray()
        self._has_preface = not is_client
        self._has_settings = False
        self._data_frames = 0
        self._data_bytes = 0
        self._block: int | None = None
        self._block_bytes = 0
        self._block_data = bytearray()
        self._block_frames = 0

    @property
    def is_in_head(self) -> bool:
        """Whether a header block has begun and not ended."""
        if self._block is not None or not self._has_settings:
            return True
        return len(self._buffer) > 3 and self._buffer[3] == _HEADERS

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> Iterator[bytes | GoAway]:
        """Complete frames, in groups; `BadMessage` for a frame that is refused."""
        if not self._has_preface:
            if not PREFACE.startswith(self._buffer[: len(PREFACE)]):
                raise self._bad("it lacks the HTTP/2 preface")
            if len(self._buffer) < len(PREFACE):
                return
            self._has_preface = True
            yield self._cut(len(PREFACE))
        while group := self._group():
            yield from group

    def _group(self) -> list[bytes | GoAway]:
        """Frames up to the end of a header block, or up to a frame that h2 does not get."""
        end = count = 0
        while count < _FRAMES_PER_TURN and len(self._buffer) - end >= HEAD_BYTES:
            size = int.from_bytes(self._buffer[end : end + 3], "big")
            if size > MAX_FRAME_BYTES:
                raise self._bad("a frame exceeds the maximum frame size")
            if len(self._buffer) - end - HEAD_BYTES < size:
                break
            kind, flags = self._buffer[end + 3], self._buffer[end + 4]
            stream = int.from_bytes(self._buffer[end + 5 : end + 9], "big") & 0x7FFFFFFF
            self._check(kind, flags, stream, end + HEAD_BYTES, size)
            if kind == _SETTINGS:
                size = self._drop_unknown_settings(end, size)
            if kind in (_GOAWAY, _PRIORITY) or kind > _CONTINUATION:
                group: list[bytes | GoAway] = [self._cut(end)] if end else []
                frame = self._cut(HEAD_BYTES + size)
                if kind == _GOAWAY:
                    group.append(self._goaway(stream, frame[HEAD_BYTES:]))
                # The others have no effect here; b"" means: continue.
                return group or [b""]
            end += HEAD_BYTES + size
            count += 1
            if kind in (_HEADERS, _CONTINUATION) and flags & _END_HEADERS:
                break
        return [self._cut(end)] if end else []

    def _check(self, kind: int, flags: int, stream: int, start: int, size: int) -> None:
        """Check a frame whose payload begins at `start` of the buffer."""
        if not self._has_settings:
            if kind != _SETTINGS or flags & _ACK:
                raise self._bad("it does not start with SETTINGS")
            self._has_settings = True
        if (kind == _CONTINUATION) is (self._block is None) or self._block not in (None, stream):
            raise self._bad("its header block is interrupted, or continues after its end")
        if kind in (_HEADERS, _CONTINUATION):
            self._check_block(kind, flags, stream, start, size)
        elif kind == _PUSH:
            raise self._bad("it sends PUSH_PROMISE, which is disabled")
        elif kind == _SETTINGS and size > _MAX_SETTINGS_BYTES:
            raise self._bad("it has too many settings")
        if kind == _DATA and flags & _PADDED and size:
            size -= self._buffer[start] + 1
        cost = self._cost(kind, flags, size)
        if cost and not self._frame_costs.charge(cost):
            raise self._bad("it sends too many frames without a request")
        # A header block is free, but refused while earlier streams have exceeded the budget.
        wasted = RESET_COST if kind == _RESET and self._is_client else 0.0
        if kind in (_HEADERS, _RESET) and not self._waste.charge(wasted):
            raise self._bad("too many of its streams are reset or refused")

    def _check_block(self, kind: int, flags: int, stream: int, start: int, size: int) -> None:
        end = start + size
        if kind == _HEADERS and flags & _PADDED and size:
            end -= self._buffer[start]
            start += 1
        if kind == _HEADERS and flags & _HAS_PRIORITY:
            start += _PRIORITY_BYTES
        self._block_data += self._buffer[start:end]
        self._block_bytes += size
        self._block_frames += 1
        if self._block_bytes > self._max_head_bytes:
            raise self._bad(f"its head is longer than {self._max_head_bytes} bytes")
        if self._block_frames > _MAX_CONTINUATIONS:
            raise self._bad("its head comes in too many pieces")
        self._block = stream
        if flags & _END_HEADERS:
            if count_fields(bytes(self._block_data), self._max_fields) > self._max_fields:
                raise self._bad(f"it has more than {self._max_fields} header lines")
            self._block, self._block_bytes, self._block_frames = None, 0, 0
            self._block_data.clear()

    def _drop_unknown_settings(self, start: int, size: int) -> int:
        """Cut settings without a meaning here out of a frame (RFC 9113, 6.5.2); its new size."""
        body = start + HEAD_BYTES
        settings = [
            bytes(self._buffer[place : place + _SETTING_BYTES])
            for place in range(body, body + size, _SETTING_BYTES)
        ]
        known = b"".join(
            each for each in settings if int.from_bytes(each[:2], "big") in _KNOWN_SETTINGS
        )
        if size % _SETTING_BYTES or len(known) == size:
            return size  # h2 refuses a frame that is cut off
        self._buffer[body : body + size] = known
        self._buffer[start : start + 3] = len(known).to_bytes(3, "big")
        return len(known)

    def _cost(self, kind: int, flags: int, size: int) -> float:
        if kind == _DATA:
            self._data_frames += 1
            self._data_bytes += max(size, 0)
            if self._data_bytes < (self._data_frames - _FREE_FRAMES) * _MIN_DATA_BYTES:
                raise self._bad("its bodies come in too many tiny frames")
            if size > 0:
                self._frame_costs.credit(DATA_FRAME_CREDIT)
            return 0.0 if size > 0 or flags & _END_STREAM else _EMPTY_DATA_COST
        return 0.0 if kind in (_HEADERS, _CONTINUATION) else _COSTS.get(kind, _UNKNOWN_FRAME_COST)

    def _goaway(self, stream: int, body: bytes) -> GoAway:
        if stream or len(body) < 8:
            raise self._bad("its GOAWAY frame is malformed")
        return GoAway(
            int.from_bytes(body[:4], "big") & 0x7FFFFFFF, int.from_bytes(body[4:8], "big")
        )

    def _cut(self, count: int) -> bytes:
        piece = bytes(self._buffer[:count])
        del self._buffer[:count]
        return piece


def goaway(last_stream: int, error_code: int = 0) -> bytes:
    """A GOAWAY frame. Written here, since h2 would consider the connection closed."""
    body = last_stream.to_bytes(4, "big") + error_code.to_bytes(4, "big")
    return len(body).to_bytes(3, "big") + bytes([_GOAWAY, 0]) + bytes(4) + body


def count_fields(block: bytes, limit: int) -> int:
    """The number of fields of an HPACK block (RFC 7541, 6), without decompression, up to `limit`+1.

    A field can be one byte, and costs a thousand times that to decode. Malformed blocks are left
    to the decoder.
    """
    place = count = 0
    while place < len(block) and count <= limit:
        first = block[place]
        count += 1
        if first & 0x80:  # indexed field
            _, place = _number(block, place, 7)
        elif first & 0xE0 == 0x20:  # table size update: no field, but as much work
            _, place = _number(block, place, 5)
        else:
            known, place = _number(block, place, 6 if first & 0x40 else 4)
            for _ in range(1 if known else 2):
                place = _after_text(block, place)
    return count


def _after_text(block: bytes, place: int) -> int:
    if place >= len(block):
        return place
    length, place = _number(block, place, 7)
    return place + length


def _number(block: bytes, place: int, bits: int) -> tuple[int, int]:
    """An integer and the offset behind it."""
    limit = (1 << bits) - 1
    number = block[place] & limit
    place += 1
    if number < limit:
        return number, place
    shift = 0
    while place < len(block):
        byte = block[place]
        place += 1
        # Bounded shift: an endless integer must not become a huge number.
        number += (byte & 0x7F) << min(shift, 32)
        shift += 7
        if not byte & 0x80:
            break
    return number, place
