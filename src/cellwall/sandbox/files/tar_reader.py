"""Reads an untrusted tar archive, plain or gzip: every size is bounded before it is used (FS-3).

`tarfile` parses single header blocks only. Its reader of whole archives trusts the size of a pax
header, follows chains of headers by recursion, and parses them with backtracking expressions
(CVE-2024-6232); it reads past the end or before the start (CVE-2025-8194).
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.core.errors import BadInput
from cellwall.core.files import ByteSource
from cellwall.sandbox.files.descriptors import archive_error, path_error
from cellwall.sandbox.files.paths import MAX_NAME_BYTES, MAX_PATH_BYTES

CHUNK_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_MAX_EMPTY_INPUT_BYTES = 1024 * 1024
"""Input without output: an endless row of empty gzip members must not run for ever."""


class TarBytes:
    """The bytes of an archive, decompressed if they are gzip; holds at most two pieces in memory.

    The total output is not bounded here: the tar reader requests no more than its limits allow.
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
        """The digest of the source's bytes, before decompression."""
        return self._digest.hexdigest()

    def read_exactly(self, size: int) -> bytes:
        """Exactly `size` bytes; fewer mean a truncated archive."""
        while len(self._buffer) < size:
            piece = self._read_piece()
            if not piece:
                raise archive_error("CW-ARCHIVE-TRUNCATED", "ends before its end")
            self._buffer += piece
        return self._take(size)

    def read_at_most(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end."""
        if not self._buffer:
            self._buffer += self._read_piece()
        return self._take(size)

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _read_piece(self) -> bytes:
        if not self._started:
            self._started = True
            start = self._read_source()
            while 0 < len(start) < len(_GZIP) and (more := self._read_source()):
                start += more
            if not start.startswith(_GZIP):
                return start
            self._inflater = zlib.decompressobj(wbits=31)
            return self._inflate(start)
        return self._read_source() if self._inflater is None else self._inflate(b"")

    def _inflate(self, data: bytes) -> bytes:
        assert self._inflater is not None  # noqa: S101  # both callers set it
        consumed = 0
        while True:
            data = (
                data
                or self._inflater.unconsumed_tail
                or self._inflater.unused_data
                or self._read_source()
            )
            if self._inflater.eof:
                if not data:
                    return b""
                self._inflater = zlib.decompressobj(wbits=31)  # gzip files can be concatenated
            elif not data:
                raise archive_error("CW-ARCHIVE-TRUNCATED", "ends before its end")
            try:
                piece = self._inflater.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise archive_error("CW-ARCHIVE-INVALID", "is broken gzip") from error
            if piece:
                return piece
            consumed += len(data)
            if consumed > _MAX_EMPTY_INPUT_BYTES:
                raise archive_error("CW-ARCHIVE-INVALID", "is gzip without content")
            data = b""

    def _read_source(self) -> bytes:
        data: object = self._source.read(
            CHUNK_BYTES
        )  # the caller's own object, which may return anything
        if not isinstance(data, bytes) or len(data) > CHUNK_BYTES:
            raise BadInput(
                "the source of an upload returned something other than the requested bytes",
                hint="Give bytes, a file that is open in binary mode, or an iterator of bytes.",
                code="CW-BAD-SOURCE",
            )
        self._digest.update(data)
        self.source_bytes += len(data)
        return data


BLOCK_BYTES = 512
_ZEROS = bytes(BLOCK_BYTES)
_MAX_DEPTH = 64
_MAX_EXTENSION_BYTES = 64 * 1024  # a path has at most 4 KiB; the rest is extended attributes
_MAX_HEADERS = 4  # of one member: global, pax, long name, its own
_MAX_PADDING_BYTES = 1024 * 1024  # zeros after the end: `tar` fills its last record
_MAX_SIZE_DIGITS = 15
_MODIFIED = re.compile(rb"(\d{1,11})(\.\d{0,12})?")
_CHARSETS = {b"ISO-IR 10646 2000 UTF-8", b"BINARY"}
_PER_MEMBER_KEYS = {b"path", b"linkpath", b"size", b"hdrcharset"}


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file or a directory of an archive; its path is relative and has no `..`, "" is the top."""

    path: str
    is_dir: bool
    size_bytes: int = 0
    executable: bool = False
    modified_s: int = 0


class TarArchive:
    """The members of one archive, in order. Anything but files and directories is refused."""

    def __init__(self, data: TarBytes) -> None:
        self._data = data
        self._left = 0

    def members(self, *, most: int) -> Iterator[TarMember]:
        """Each member, whose `content` can be read next; ends only at a proper end."""
        count = 0
        while (member := self._next()) is not None:
            count += 1
            if count > most:
                raise archive_error("CW-ARCHIVE-TOO-LARGE", f"has more than {most} members")
            self._left = member.size_bytes
            yield member
            for _ in self.content():  # content that the caller did not read is skipped
                pass
            self._data.read_exactly(-member.size_bytes % BLOCK_BYTES)

    def content(self) -> Iterator[bytes]:
        """The bytes of the current member, in pieces."""
        while self._left:
            piece = self._data.read_exactly(min(self._left, CHUNK_BYTES))
            self._left -= len(piece)
            yield piece

    def _next(self) -> TarMember | None:
        records: dict[bytes, bytes] = {}
        long_name: bytes | None = None
        for _ in range(_MAX_HEADERS):
            header = self._header()
            if header is None:
                if records or long_name is not None:
                    raise archive_error("CW-ARCHIVE-INVALID", "ends after an extended header")
                return None
            match header.type:
                case tarfile.XHDTYPE:
                    records = _records(self._extension(header))
                case tarfile.XGLTYPE:
                    if _PER_MEMBER_KEYS & _records(self._extension(header)).keys():
                        raise archive_error(
                            "CW-ARCHIVE-INVALID", "gives all members one name or size"
                        )
                case tarfile.GNUTYPE_LONGNAME:
                    long_name = self._extension(header).removesuffix(b"\0")
                case _:
                    return _member(header, records, long_name)
        raise archive_error("CW-ARCHIVE-INVALID", "has a chain of extended headers")

    def _header(self) -> tarfile.TarInfo | None:
        block = self._data.read_exactly(BLOCK_BYTES)
        if block == _ZEROS:
            self._finish()
            return None
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError) as error:
            raise archive_error(
                "CW-ARCHIVE-INVALID", "is not a tar archive, or a broken one"
            ) from error
        if header.size < 0:
            raise archive_error("CW-ARCHIVE-INVALID", "has a member of negative size")
        return header

    def _extension(self, header: tarfile.TarInfo) -> bytes:
        if header.size > _MAX_EXTENSION_BYTES:
            raise archive_error("CW-ARCHIVE-INVALID", "has an extended header that is too large")
        data = self._data.read_exactly(header.size)
        self._data.read_exactly(-header.size % BLOCK_BYTES)
        return data

    def _finish(self) -> None:
        # One block of zeros may be a truncation; data after the end was hidden there.
        rest = self._data.read_exactly(BLOCK_BYTES)
        read_bytes = 0
        while rest:
            read_bytes += len(rest)
            if rest.count(0) != len(rest) or read_bytes > _MAX_PADDING_BYTES:
                raise archive_error("CW-ARCHIVE-INVALID", "continues after its end")
            rest = self._data.read_at_most(CHUNK_BYTES)


def _records(data: bytes) -> dict[bytes, bytes]:
    """A pax header: records of the form `length key=value\\n`, and nothing else."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        digits, blank, _ = data[at : at + 8].partition(b" ")
        end = at + int(digits) if blank and digits.isdigit() else -1
        record = data[at + len(digits) + 1 : end - 1] if at < end <= len(data) else b""
        key, equals, value = record.partition(b"=")
        if not key or not equals or data[end - 1 : end] != b"\n" or key in records:
            raise archive_error("CW-ARCHIVE-INVALID", "has a broken extended header")
        if key.startswith(b"GNU.sparse."):
            raise archive_error("CW-ARCHIVE-SPARSE", "has a sparse file")
        records[key] = value
        at = end
    if records.get(b"hdrcharset", b"BINARY") not in _CHARSETS:
        raise archive_error("CW-ARCHIVE-INVALID", "has names in an unknown encoding")
    return records


def _member(
    header: tarfile.TarInfo, records: dict[bytes, bytes], long_name: bytes | None
) -> TarMember:
    raw = records.get(b"path", long_name)
    name = header.name if raw is None else raw.decode("utf-8", "surrogateescape")
    path = member_path(name)
    match header.type:
        case tarfile.DIRTYPE:
            is_dir = True
        case tarfile.AREGTYPE:  # the V7 format has no type for directories
            is_dir = name.endswith("/")
        case tarfile.REGTYPE:
            is_dir = False
        case tarfile.SYMTYPE | tarfile.LNKTYPE | tarfile.GNUTYPE_LONGLINK:
            # A link lets the next member write elsewhere; every link is refused.
            raise path_error(name, "CW-ARCHIVE-LINK", "is a link, which an upload does not accept")
        case tarfile.GNUTYPE_SPARSE:
            raise path_error(name, "CW-ARCHIVE-SPARSE", "is a sparse file")
        case _:
            raise path_error(name, "CW-ARCHIVE-SPECIAL", "is neither a file nor a directory")
    size = _size(name, header, records)
    if is_dir and size:
        raise path_error(name, "CW-ARCHIVE-INVALID", "is a directory with content")
    if not is_dir and (not path or name.endswith("/")):
        raise path_error(name, "CW-ARCHIVE-INVALID", "is a file with the name of a directory")
    return TarMember(path, is_dir, size, bool(header.mode & 0o100), _modified_s(header, records))


def _size(name: str, header: tarfile.TarInfo, records: dict[bytes, bytes]) -> int:
    digits = records.get(b"size")
    if digits is None:
        return header.size
    if not digits.isdigit() or len(digits) > _MAX_SIZE_DIGITS:
        raise path_error(name, "CW-ARCHIVE-INVALID", "has a size that is not a number")
    return int(digits)


def _modified_s(header: tarfile.TarInfo, records: dict[bytes, bytes]) -> int:
    match = _MODIFIED.fullmatch(records.get(b"mtime", b""))
    # Python writes floats of any size here; a time out of range is dropped, not refused.
    return int(match[1]) if match else min(max(int(header.mtime), 0), 1 << 34)


def member_path(name: str) -> str:
    """The path of a member, relative to the top; `..` is refused even where it stays inside."""
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise path_error(name, "CW-PATH-INVALID", "is not valid Unicode") from error
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise path_error(name, "CW-PATH-INVALID", "holds a control character")
    if not raw or len(raw) > MAX_PATH_BYTES:
        raise path_error(name, "CW-PATH-INVALID", "is empty or too long")
    if name.startswith("/"):
        raise path_error(name, "CW-PATH-OUTSIDE", "is an absolute path")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise path_error(name, "CW-PATH-OUTSIDE", "goes up with `..`")
    if len(parts) > _MAX_DEPTH or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise path_error(name, "CW-PATH-INVALID", "is too deep, or has a name that is too long")
    return "/".join(parts)
