"""Bodies in a content coding, opened piece by piece and never beyond a bound."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from holdfast.core.errors import EgressRefused

_PIECE_BYTES = 64 * 1024
_MEMBERS_MAX = 1000
"""Gzip members or zstd frames in one body: empty ones cost time and give nothing."""
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""What RFC 9659 lets a sender ask of a receiver over HTTP."""
_ZSTD_SLICE_BYTES = 256
"""Four bytes of zstd can become 128 KiB, and the library gives all it has: so little at a time."""
_GZIP_WBITS = 31
_ZLIB_WBITS = 15
_RAW_WBITS = -15


class _Opened(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]: ...

    @property
    def is_whole(self) -> bool: ...


class Inflate:
    """One body: `feed` what came, take each piece, `end` when no more comes.

    `identity` and no coding at all pass through. Raises `EgressRefused` for a coding we cannot
    open, for several at once, for what is broken or cut short, and for more than `max_bytes`.
    """

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._opened = _opened(encoding)
        self._left_bytes = max_bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes become, in pieces; nothing is read that was not taken."""
        for piece in self._opened.pieces(data):
            self._left_bytes -= len(piece)
            if self._left_bytes < 0:
                raise _refused("HF-BODY-TOO-LARGE", "unpacks to more than is allowed")
            if piece:
                yield piece

    def end(self) -> None:
        """Refuse a body that ends before its end."""
        if not self._opened.is_whole:
            raise _refused("HF-BAD-BODY", "ends before its end")


def can_inflate(encoding: str) -> bool:
    """Whether `Inflate` takes a body with this `Content-Encoding`."""
    return encoding.strip().lower() in _KINDS


class _Identity:
    is_whole = True

    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield data


class _Zlib:
    """gzip, or `deflate`: zlib's format by the standard, bare by the habit of some senders."""

    def __init__(self, *, is_gzip: bool) -> None:
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
                raise _refused("HF-BAD-BODY", "is broken") from error
            yield piece
            data = self._inflater.unconsumed_tail or self._inflater.unused_data

    def _next(self, data: bytes) -> zlib._Decompress:
        self._members += 1
        if self._members > (_MEMBERS_MAX if self._is_gzip else 1):
            raise _refused("HF-BAD-BODY", "goes on after its end")
        if self._is_gzip:
            return zlib.decompressobj(wbits=_GZIP_WBITS)
        is_wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        return zlib.decompressobj(wbits=_ZLIB_WBITS if is_wrapped else _RAW_WBITS)


class _Zstd:
    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._frames = 0

    @property
    def is_whole(self) -> bool:
        return self._frame is None or self._frame.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            rest = data[start : start + _ZSTD_SLICE_BYTES]
            while rest:
                if self._frame is None or self._frame.eof:
                    self._frame = self._next()
                try:
                    unpacked = self._frame.decompress(rest)
                except zstandard.ZstdError as error:
                    raise _refused("HF-BAD-BODY", "is broken") from error
                for at in range(0, len(unpacked), _PIECE_BYTES):
                    yield unpacked[at : at + _PIECE_BYTES]
                rest = self._frame.unused_data

    def _next(self) -> zstandard.ZstdDecompressionObj:
        self._frames += 1
        if self._frames > _MEMBERS_MAX:
            raise _refused("HF-BAD-BODY", "goes on after its end")
        return self._decompressor.decompressobj(write_size=_PIECE_BYTES)


_KINDS: dict[str, Callable[[], _Opened]] = {
    "": _Identity,
    "identity": _Identity,
    "gzip": lambda: _Zlib(is_gzip=True),
    "x-gzip": lambda: _Zlib(is_gzip=True),
    "deflate": lambda: _Zlib(is_gzip=False),
    "zstd": _Zstd,
}


def _opened(encoding: str) -> _Opened:
    kind = _KINDS.get(encoding.strip().lower())
    if kind is None:
        raise EgressRefused(
            "a body in this content coding cannot be looked into",
            mend="Send it without a content coding, or as gzip, deflate or zstd.",
            code="HF-CONTENT-ENCODING",
        )
    return kind()


def _refused(code: str, what: str) -> EgressRefused:
    return EgressRefused(
        f"a body in a content coding {what}",
        mend="Send it without a content coding, or smaller.",
        code=code,
    )
