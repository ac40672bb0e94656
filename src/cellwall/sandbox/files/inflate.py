"""The bytes of a tar archive from a source, unpacked on the way if they are gzip."""

from __future__ import annotations

import hashlib
import zlib

from cellwall.core.errors import BadInput
from cellwall.core.files import ByteSource
from cellwall.sandbox.files.errors import refused_archive

CHUNK_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_FRUITLESS_BYTES_MAX = 1024 * 1024
"""Input that becomes no output: empty gzip members without end would keep us busy for ever."""


class TarBytes:
    """Reads exactly, or refuses; holds two pieces in memory at most.

    How much comes out is not bounded here: the archive's reader asks for no more than it allows.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._digest = hashlib.sha256()
        self._inflater: zlib._Decompress | None = None
        self._started = False
        self._buffer = bytearray()
        self.source_bytes = 0

    @property
    def sha256(self) -> str:
        """Of what the source gave."""
        return self._digest.hexdigest()

    def exactly(self, size: int) -> bytes:
        """So many bytes; fewer are a truncated archive."""
        while len(self._buffer) < size:
            piece = self._piece()
            if not piece:
                raise refused_archive("CW-ARCHIVE-TRUNCATED", "ends before its end")
            self._buffer += piece
        return self._taken(size)

    def at_most(self, size: int) -> bytes:
        """Some bytes; none is the end."""
        if not self._buffer:
            self._buffer += self._piece()
        return self._taken(size)

    def _taken(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _piece(self) -> bytes:
        if not self._started:
            self._started = True
            start = self._raw()
            while 0 < len(start) < len(_GZIP) and (more := self._raw()):
                start += more
            if not start.startswith(_GZIP):
                return start
            self._inflater = zlib.decompressobj(wbits=31)
            return self._inflated(start)
        return self._raw() if self._inflater is None else self._inflated(b"")

    def _inflated(self, data: bytes) -> bytes:
        assert self._inflater is not None  # noqa: S101  # both callers have made it
        fruitless = 0
        while True:
            data = (
                data or self._inflater.unconsumed_tail or self._inflater.unused_data or self._raw()
            )
            if self._inflater.eof:
                if not data:
                    return b""
                self._inflater = zlib.decompressobj(wbits=31)  # gzip files can be joined
            elif not data:
                raise refused_archive("CW-ARCHIVE-TRUNCATED", "ends before its end")
            try:
                piece = self._inflater.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise refused_archive("CW-ARCHIVE-INVALID", "is broken gzip") from error
            if piece:
                return piece
            fruitless += len(data)
            if fruitless > _FRUITLESS_BYTES_MAX:
                raise refused_archive("CW-ARCHIVE-INVALID", "is gzip with nothing in it")
            data = b""

    def _raw(self) -> bytes:
        data: object = self._source.read(CHUNK_BYTES)  # the caller's own, so whatever it likes
        if not isinstance(data, bytes) or len(data) > CHUNK_BYTES:
            raise BadInput(
                "the source of an upload gave something else than the bytes it was asked for",
                hint="Give bytes, a file that is open in binary mode, or an iterator of bytes.",
                code="CW-BAD-SOURCE",
            )
        self._digest.update(data)
        self.source_bytes += len(data)
        return data
