"""Files of an upload: one raw body, or the parts of `multipart/form-data`.

The files go into one spool of the service while they come, so that the files under way of all
clients are bounded together, and an upload that breaks off changes nothing.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass

import anyio.to_thread
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from cellwall.core.errors import BadInput
from cellwall.core.files import ByteSource
from cellwall.interfaces.e2b.problems import not_offered
from cellwall.interfaces.http.spools import CHUNK_BYTES, Spool, Spools

MAX_FILES = 1000
_MAX_HEADER_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """One file and the name that its client gave it; empty for a raw body."""

    name: str
    source: ByteSource
    size_bytes: int
    sha256: str


class _FilePart:
    """One file of a form: a part of the spool. Implements `ByteSource`; of the parts of one spool,
    one is read at a time."""

    def __init__(self, name: str, spool: Spool) -> None:
        self.name = name
        self.size_bytes = self._read_bytes = 0
        self._spool, self._start = spool, spool.size_bytes
        self._digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._spool.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    def read(self, size: int, /) -> bytes:
        self._spool.rewind(self._start + self._read_bytes)
        data = self._spool.read(min(size, self.size_bytes - self._read_bytes))
        self._read_bytes += len(data)
        return data

    def uploaded(self) -> UploadedFile:
        return UploadedFile(self.name, self, self.size_bytes, self._digest.hexdigest())


async def receive_files(
    request: Request, spools: Spools, stack: ExitStack, *, max_bytes: int
) -> list[UploadedFile]:
    """All files of the body; `stack` closes their spool."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    # Attack: a form of many files, each small enough for memory. All are one file of the spool.
    spool = stack.enter_context(spools.spool())
    if kind == b"multipart/form-data":
        parts = _Parts(options.get(b"boundary", b""), spool)
        await parts.fill(request)
        return [each.uploaded() for each in parts.files]
    if kind != b"application/octet-stream":
        raise BadInput("an upload is multipart/form-data or application/octet-stream")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    match encoding:
        case "identity":
            await spool.fill(request.stream())
        case "gzip":
            await spool.fill(_unzipped(request.stream(), max_bytes))
        case _:
            raise not_offered("this content encoding", "an upload is plain or gzip")
    return [UploadedFile("", spool, spool.size_bytes, spool.sha256)]


async def _unzipped(chunks: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """Attack: a small body that unpacks to any size. Never more than the bound is unpacked."""
    stream = zlib.decompressobj(wbits=31)
    total = 0
    try:
        async for chunk in chunks:
            rest = chunk
            while rest and not stream.eof:
                piece = stream.decompress(rest, CHUNK_BYTES)
                total += len(piece)
                if total > max_bytes:
                    raise BadInput("the unpacked file is too large", code="CW-TOO-LARGE")
                rest = stream.unconsumed_tail
                yield piece
        yield stream.flush()
    except zlib.error:
        raise BadInput("the body is not gzip") from None
    if not stream.eof:
        raise BadInput("the gzip body is cut off")


class _Parts:
    """The parts of one form. The parser calls the methods with slices of what it was given."""

    def __init__(self, boundary: bytes, spool: Spool) -> None:
        self.files: list[_FilePart] = []
        self._spool = spool
        self._field = self._value = b""
        self._disposition: dict[bytes, bytes] = {}
        self._header_bytes = 0
        self._is_complete = False
        self._current: _FilePart | None = None
        if not 0 < len(boundary) <= 256:
            raise BadInput("the form names no boundary")
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._add_field,
                "on_header_value": self._add_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._open_file,
                "on_part_data": self._write,
                "on_end": self._complete,
            },
        )

    async def fill(self, request: Request) -> None:
        waiting = bytearray()
        try:
            async for chunk in request.stream():
                waiting += chunk
                if len(waiting) >= CHUNK_BYTES:
                    parse = functools.partial(self._parser.write, bytes(waiting))
                    await anyio.to_thread.run_sync(parse)
                    waiting.clear()
            self._parser.write(bytes(waiting))
        except FormParserError:
            raise BadInput("the form is malformed") from None
        if not self._is_complete:
            raise BadInput("the form is cut off")

    def _begin(self) -> None:
        self._disposition, self._header_bytes, self._current = {}, 0, None

    def _add_field(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._field += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._value += data[start:end]

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MAX_HEADER_BYTES:
            raise BadInput("the headers of a part are too long", code="CW-TOO-LARGE")

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            _kind, self._disposition = parse_options_header(self._value)
        self._field = self._value = b""

    def _open_file(self) -> None:
        name = self._disposition.get(b"filename")
        if name is None:
            return  # a field of the form, which is not used
        if len(self.files) >= MAX_FILES:
            raise BadInput(f"an upload has at most {MAX_FILES} files", code="CW-TOO-LARGE")
        self._current = _FilePart(name.decode("utf-8", "replace"), self._spool)
        self.files.append(self._current)

    def _write(self, data: bytes, start: int, end: int) -> None:
        if self._current is not None:
            self._current.write(data[start:end])

    def _complete(self) -> None:
        self._is_complete = True
