"""Bodies in a content coding, opened piece by piece and never beyond a bound.

What unpacks keeps what it has unpacked before: kilobytes for gzip, for zstd as many megabytes as
the sender likes. So bodies that are open at the same time share a room, and all they become.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from cellwall.core.errors import EgressRefused

_PIECE_BYTES = 64 * 1024
_MEMBERS_MAX = 1000
"""Gzip members or zstd frames in one body: empty ones cost time and give nothing."""
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""What RFC 9659 lets a sender ask of a receiver over HTTP."""
_ZSTD_HEAD_BYTES = 18
_ZSTD_SLICE_BYTES = 64
"""Four bytes of zstd can become 128 KiB, and the library gives all it has: so little at a time."""
_ZSTD_BYTES = 5 * 1024 * 1024 // 2
"""Of memory beside the window: what a slice becomes, and two blocks."""
_ZLIB_BYTES = 128 * 1024
_OPEN_BYTES = 32 * 1024 * 1024
"""Some zstd bodies at a time, or a few hundred of gzip."""
_GZIP_WBITS = 31
_ZLIB_WBITS = 15
_RAW_WBITS = -15


class DecompressionBudget:
    """Shared by bodies: the memory of those that are open now, and the bytes that all become."""

    def __init__(self, max_bytes: int, *, open_bytes: int = _OPEN_BYTES) -> None:
        self._left_bytes = max_bytes
        self._open_bytes = open_bytes

    def unpacked(self, count: int) -> None:
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise _refused("CW-BODY-TOO-LARGE", "unpacks to more than is allowed")

    def take(self, count: int) -> None:
        """Refuses instead of waiting: who would make room may wait for who has none."""
        if count > self._open_bytes:
            raise EgressRefused(
                "too many encoded bodies are in transfer at the same time",
                hint="Send fewer at a time, or send them without a content coding.",
                code="CW-NET-LIMIT",
            )
        self._open_bytes -= count

    def give_back(self, count: int) -> None:
        self._open_bytes += count


class _Reservation:
    """What one body has taken of a room."""

    def __init__(self, room: DecompressionBudget) -> None:
        self._room = room
        self._taken_bytes = 0

    def needs(self, count: int) -> None:
        if count > self._taken_bytes:
            self._room.take(count - self._taken_bytes)
            self._taken_bytes = count

    def leave(self) -> None:
        self._room.give_back(self._taken_bytes)
        self._taken_bytes = 0


class _Opened(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]: ...

    @property
    def is_whole(self) -> bool: ...


class Decompressor:
    """One body: `feed` what came, take each piece, `end` when no more comes, `close` in any case.

    `identity` and no coding at all pass through. Raises `EgressRefused` for a coding we cannot
    open, for several at once, for what is broken or cut short, and where the room has no more.
    """

    def __init__(self, encoding: str, room: DecompressionBudget) -> None:
        self._room = room
        self._place = _Reservation(room)
        self._opened = _opened(encoding, self._place)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes become, in pieces; nothing is read that was not taken."""
        for piece in self._opened.pieces(data):
            self._room.unpacked(len(piece))
            if piece:
                yield piece

    def end(self) -> None:
        """Refuse a body that ends before its end."""
        if not self._opened.is_whole:
            raise _refused("CW-BAD-BODY", "ends before its end")

    def close(self) -> None:
        """Nothing more is fed: others may have its place."""
        self._opened = _Identity(self._place)
        self._place.leave()


def can_decompress(encoding: str) -> bool:
    """Whether `Decompressor` takes a body with this `Content-Encoding`."""
    return encoding.strip().lower() in _KINDS


class _Identity:
    is_whole = True

    def __init__(self, _place: _Reservation) -> None:
        pass

    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield data


class _Zlib:
    """gzip, or `deflate`: zlib's format by the standard, bare by the habit of some senders."""

    def __init__(self, place: _Reservation, *, is_gzip: bool) -> None:
        self._place = place
        self._is_gzip = is_gzip
        self._start = b""
        self._inflater: zlib._Decompress | None = None
        self._members = 0

    @property
    def is_whole(self) -> bool:
        # Nothing at all is an empty body; some senders leave the wrapping out then.
        return not self._start and (self._inflater is None or self._inflater.eof)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        data, self._start = self._start + data, b""
        piece = b""
        # A full piece may have more behind it although all of the data was read.
        while data or (len(piece) == _PIECE_BYTES and not self.is_whole):
            if self._inflater is None or self._inflater.eof:
                if not self._is_gzip and self._inflater is None and len(data) < 2:
                    self._start = data
                    return
                self._inflater = self._next(data)
            try:
                piece = self._inflater.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise _refused("CW-BAD-BODY", "is broken") from error
            yield piece
            data = self._inflater.unconsumed_tail or self._inflater.unused_data

    def _next(self, data: bytes) -> zlib._Decompress:
        self._place.needs(_ZLIB_BYTES)
        self._members += 1
        if self._members > (_MEMBERS_MAX if self._is_gzip else 1):
            raise _refused("CW-BAD-BODY", "goes on after its end")
        if self._is_gzip:
            return zlib.decompressobj(wbits=_GZIP_WBITS)
        is_wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        return zlib.decompressobj(wbits=_ZLIB_WBITS if is_wrapped else _RAW_WBITS)


class _Zstd:
    def __init__(self, place: _Reservation) -> None:
        self._place = place
        self._start = b""
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._frames = 0

    @property
    def is_whole(self) -> bool:
        return not self._start and (self._frame is None or self._frame.eof)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        data, self._start = self._start + data, b""
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            rest = self._start + data[start : start + _ZSTD_SLICE_BYTES]
            self._start = b""
            while rest:
                if self._frame is None or self._frame.eof:
                    if (window_bytes := _window_bytes(rest)) is None:
                        self._start = rest
                        break
                    self._frame = self._next(window_bytes)
                try:
                    unpacked = self._frame.decompress(rest)
                except zstandard.ZstdError as error:
                    raise _refused("CW-BAD-BODY", "is broken") from error
                for at in range(0, len(unpacked), _PIECE_BYTES):
                    yield unpacked[at : at + _PIECE_BYTES]
                rest = self._frame.unused_data

    def _next(self, window_bytes: int) -> zstandard.ZstdDecompressionObj:
        self._frames += 1
        if self._frames > _MEMBERS_MAX:
            raise _refused("CW-BAD-BODY", "goes on after its end")
        self._frame = None  # before the next one takes its memory
        self._place.needs(min(window_bytes, _ZSTD_WINDOW_BYTES) + _ZSTD_BYTES)
        return self._decompressor.decompressobj(write_size=_PIECE_BYTES)


def _window_bytes(data: bytes) -> int | None:
    """How much a frame of zstd makes its reader remember; None if more has to come to know."""
    try:
        return zstandard.get_frame_parameters(data).window_size
    except zstandard.ZstdError as error:
        if len(data) < _ZSTD_HEAD_BYTES:
            return None
        raise _refused("CW-BAD-BODY", "is broken") from error


_KINDS: dict[str, Callable[[_Reservation], _Opened]] = {
    "": _Identity,
    "identity": _Identity,
    "gzip": lambda place: _Zlib(place, is_gzip=True),
    "x-gzip": lambda place: _Zlib(place, is_gzip=True),
    "deflate": lambda place: _Zlib(place, is_gzip=False),
    "zstd": _Zstd,
}


def _opened(encoding: str, place: _Reservation) -> _Opened:
    kind = _KINDS.get(encoding.strip().lower())
    if kind is None:
        raise EgressRefused(
            "a body in this content coding cannot be inspected",
            hint="Send it without a content coding, or as gzip, deflate or zstd.",
            code="CW-CONTENT-ENCODING",
        )
    return kind(place)


def _refused(code: str, what: str) -> EgressRefused:
    return EgressRefused(
        f"a body in a content coding {what}",
        hint="Send it without a content coding, or smaller.",
        code=code,
    )
