"""Streaming decompression of content codings within limits.

A decompressor keeps a window: kilobytes for gzip, megabytes for zstd as the sender chooses. So
concurrent bodies share one memory budget, and one budget of decompressed bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from cellwall.core.errors import EgressRefused

_PIECE_BYTES = 64 * 1024
_MEMBERS_MAX = 1000
"""Gzip members or zstd frames in one body: empty ones cost time and give no bytes."""
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""The maximum window over HTTP (RFC 9659)."""
_ZSTD_HEAD_BYTES = 18
_ZSTD_SLICE_BYTES = 64
"""Four bytes of zstd can become 128 KiB, and the library returns all at once: so small slices."""
_ZSTD_BYTES = 5 * 1024 * 1024 // 2
"""Memory beside the window: the output of a slice, and two blocks."""
_ZLIB_BYTES = 128 * 1024
_OPEN_BYTES = 32 * 1024 * 1024
"""A few zstd bodies at a time, or a few hundred of gzip."""
_GZIP_WBITS = 31
_ZLIB_WBITS = 15
_RAW_WBITS = -15


class DecompressionBudget:
    """Limits that bodies share: memory of open decompressors, and decompressed bytes."""

    def __init__(self, max_bytes: int, *, open_bytes: int = _OPEN_BYTES) -> None:
        self._left_bytes = max_bytes
        self._open_bytes = open_bytes

    def count(self, count: int) -> None:
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise _refused("CW-BODY-TOO-LARGE", "unpacks to more than is allowed")

    def reserve(self, count: int) -> None:
        """Reserve memory; refuses instead of waiting, which could deadlock."""
        if count > self._open_bytes:
            raise EgressRefused(
                "too many encoded bodies are in transfer at the same time",
                hint="Send fewer at a time, or send them without a content coding.",
                code="CW-NET-LIMIT",
            )
        self._open_bytes -= count

    def release(self, count: int) -> None:
        self._open_bytes += count


class _BodyMemory:
    """The memory that one body has reserved."""

    def __init__(self, budget: DecompressionBudget) -> None:
        self._budget = budget
        self._taken_bytes = 0

    def needs(self, count: int) -> None:
        if count > self._taken_bytes:
            self._budget.reserve(count - self._taken_bytes)
            self._taken_bytes = count

    def leave(self) -> None:
        self._budget.release(self._taken_bytes)
        self._taken_bytes = 0


class _Decoder(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]: ...

    @property
    def is_whole(self) -> bool: ...


class Decompressor:
    """One body: `feed` bytes, consume the pieces, `end` after the last, `close` in any case.

    `identity` and an absent coding pass through. Raises `EgressRefused` for an unsupported coding,
    for several codings, for a malformed or truncated body, and when the budget is exhausted.
    """

    def __init__(self, encoding: str, budget: DecompressionBudget) -> None:
        self._budget = budget
        self._reservation = _BodyMemory(budget)
        self._decoder = _decoder_for(encoding, self._reservation)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The decompressed pieces, produced on request."""
        for piece in self._decoder.pieces(data):
            self._budget.count(len(piece))
            if piece:
                yield piece

    def end(self) -> None:
        """Refuse a truncated body."""
        if not self._decoder.is_whole:
            raise _refused("CW-BAD-BODY", "ends before its end")

    def close(self) -> None:
        """Release the memory."""
        self._decoder = _IdentityDecoder(self._reservation)
        self._reservation.leave()


def can_decompress(encoding: str) -> bool:
    """Whether `Decompressor` supports this `Content-Encoding`."""
    return encoding.strip().lower() in _KINDS


class _IdentityDecoder:
    is_whole = True

    def __init__(self, _reservation: _BodyMemory) -> None:
        pass

    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield data


class _ZlibDecoder:
    """gzip, or `deflate`: zlib format by the RFC, raw deflate from some senders."""

    def __init__(self, reservation: _BodyMemory, *, is_gzip: bool) -> None:
        self._reservation = reservation
        self._is_gzip = is_gzip
        self._start = b""
        self._inflater: zlib._Decompress | None = None
        self._members = 0

    @property
    def is_whole(self) -> bool:
        # No bytes at all is an empty body; some senders omit the wrapper then.
        return not self._start and (self._inflater is None or self._inflater.eof)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        data, self._start = self._start + data, b""
        piece = b""
        # After a full piece more output may follow although all input was read.
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
        self._reservation.needs(_ZLIB_BYTES)
        self._members += 1
        if self._members > (_MEMBERS_MAX if self._is_gzip else 1):
            raise _refused("CW-BAD-BODY", "goes on after its end")
        if self._is_gzip:
            return zlib.decompressobj(wbits=_GZIP_WBITS)
        is_wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        return zlib.decompressobj(wbits=_ZLIB_WBITS if is_wrapped else _RAW_WBITS)


class _ZstdDecoder:
    def __init__(self, reservation: _BodyMemory) -> None:
        self._reservation = reservation
        self._start = b""
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._stated_bytes = 0
        self._unpacked_bytes = 0
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
                    if (head := _frame_head(rest)) is None:
                        self._start = rest
                        break
                    self._frame = self._next(head)
                    # The library checks a frame that arrives in one call more strictly than one
                    # in pieces. The first byte goes alone, so every frame arrives in pieces.
                    _decompress(self._frame, rest[:1])
                    rest = rest[1:]
                unpacked = _decompress(self._frame, rest)
                for at in range(0, len(unpacked), _PIECE_BYTES):
                    yield unpacked[at : at + _PIECE_BYTES]
                self._check_size(len(unpacked), is_end=self._frame.eof)
                rest = self._frame.unused_data

    def _check_size(self, count: int, *, is_end: bool) -> None:
        """The library compares the stated size only if a frame arrives whole, and readers differ:
        some would give the bytes, some an error."""
        self._unpacked_bytes += count
        stated = self._stated_bytes
        is_stated = stated != zstandard.CONTENTSIZE_UNKNOWN
        if is_end and is_stated and self._unpacked_bytes != stated:
            raise _refused("CW-BAD-BODY", "is broken")

    def _next(self, head: zstandard.FrameParameters) -> zstandard.ZstdDecompressionObj:
        self._frames += 1
        if self._frames > _MEMBERS_MAX:
            raise _refused("CW-BAD-BODY", "goes on after its end")
        self._frame = None  # free its memory before the next one is created
        self._reservation.needs(min(head.window_size, _ZSTD_WINDOW_BYTES) + _ZSTD_BYTES)
        # A skippable frame has no window, and the size of what is skipped.
        self._stated_bytes = head.content_size if head.window_size else 0
        self._unpacked_bytes = 0
        return self._decompressor.decompressobj(write_size=_PIECE_BYTES)


def _decompress(frame: zstandard.ZstdDecompressionObj, data: bytes) -> bytes:
    try:
        return frame.decompress(data)
    except zstandard.ZstdError as error:
        raise _refused("CW-BAD-BODY", "is broken") from error


def _frame_head(data: bytes) -> zstandard.FrameParameters | None:
    """The head of a zstd frame; None if more bytes are needed."""
    try:
        return zstandard.get_frame_parameters(data)
    except zstandard.ZstdError as error:
        if len(data) < _ZSTD_HEAD_BYTES:
            return None
        raise _refused("CW-BAD-BODY", "is broken") from error


_KINDS: dict[str, Callable[[_BodyMemory], _Decoder]] = {
    "": _IdentityDecoder,
    "identity": _IdentityDecoder,
    "gzip": lambda reservation: _ZlibDecoder(reservation, is_gzip=True),
    "x-gzip": lambda reservation: _ZlibDecoder(reservation, is_gzip=True),
    "deflate": lambda reservation: _ZlibDecoder(reservation, is_gzip=False),
    "zstd": _ZstdDecoder,
}


def _decoder_for(encoding: str, reservation: _BodyMemory) -> _Decoder:
    kind = _KINDS.get(encoding.strip().lower())
    if kind is None:
        raise EgressRefused(
            "a body in this content coding cannot be inspected",
            hint="Send it without a content coding, or as gzip, deflate or zstd.",
            code="CW-CONTENT-ENCODING",
        )
    return kind(reservation)


def _refused(code: str, what: str) -> EgressRefused:
    return EgressRefused(
        f"a body in a content coding {what}",
        hint="Send it without a content coding, or smaller.",
        code=code,
    )
