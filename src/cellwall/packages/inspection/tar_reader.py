"""Reads a tar file in the one way that all readers share (PKG-1).

A member can have its name and size in several places: the header, a PAX record, a GNU record before
it. Python, npm, pnpm and uv differ in which place counts and in the numbers that they accept, so
that a file which one of them skips is `package.json` for another (CVE-2025-62518). Not `tarfile`:
it takes more than archives need, and the hooks into its headers differ between patch releases.
Refused is what ordinary tools do not write:

  (1) a checksum of signed bytes, and a size that is not octal digits;
  (2) a prefix of the name in a header that is not of the ustar format;
  (3) several extended headers before one file;
  (4) a PAX record that states another size or a sparse file, a global one that states a name or a
      size, and one that reads as another where records are split at line breaks;
  (5) a folder with a size, and a file whose name ends with a slash;
  (6) data behind the end.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import IO, cast

from cellwall.core.limits import MIB

MAX_HEADER_BYTES = MIB
_BLOCK = 512
_CHUNK_BYTES = 64 * 1024
_NUMBER = re.compile(rb" *([0-7]+)[ \0]*")
_USTAR = b"ustar\x0000"
_PAX_RECORD = re.compile(rb"([1-9]\d{0,6}) ([^=\n]+)=")
_HIDDEN_RECORD = re.compile(rb"\n\d+ [^=\n]+=")
_FORBIDDEN_KEYS = (b"linkpath", b"hdrcharset", b"GNU.sparse")
_FORMATS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))


class AmbiguousTar(Exception):
    """Readers of this file may see different contents; the text says why."""


class DamagedTar(Exception):
    """Not a tar file, or one that is cut."""


class TarHeaderTooLarge(Exception):
    """An extended header, which is read as a whole."""


class TarKind(Enum):
    """What a member is to every reader."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"


@dataclass(slots=True)
class TarContent:
    """The bytes of one file; to be read to their end before the next member."""

    _stream: IO[bytes]
    _left: int

    def read(self, count: int) -> bytes:
        data = _read_exactly(self._stream, min(count, self._left))
        self._left -= len(data)
        return data


@dataclass(frozen=True, slots=True)
class PackedMember:
    """One member. `name` is not checked."""

    name: str
    kind: TarKind
    size: int
    mode: int
    content: TarContent


@dataclass(frozen=True, slots=True)
class _Header:
    name: bytes
    kind: bytes
    size: int
    mode: int


def read_tar(packed: IO[bytes], count_bytes: Callable[[int], None]) -> Iterator[PackedMember]:
    """The members in order. `count_bytes` gets the size of all that is not content of a file.

    Raises the exceptions of this file, and those of the compression formats.
    """
    start = packed.read(8)
    packed.seek(0)
    unpack = next((each for magic, each in _FORMATS if start.startswith(magic)), None)
    stream = packed if unpack is None else cast("IO[bytes]", unpack(packed))
    stated: dict[bytes, bytes] | None = None
    is_first = True
    while (header := _read_header(stream, is_first=is_first)) is not None:
        count_bytes(_BLOCK)
        is_first = False
        if header.kind in (b"x", b"g", b"L"):
            record = _read_record(stream, header.size)
            count_bytes(header.size)
            if header.kind == b"g":
                if not _read_pax(record).keys().isdisjoint((b"path", b"size")):  # (4)
                    raise AmbiguousTar("one name or size is given to all files")
                continue
            if stated is not None:  # (3)
                raise AmbiguousTar("a file has several extended headers")
            stated = _read_pax(record) if header.kind == b"x" else {b"path": _long_name(record)}
            continue
        yield _member(stream, header, stated or {})
        _read_exactly(stream, -header.size % _BLOCK)
        stated = None
    while chunk := stream.read(_CHUNK_BYTES):
        count_bytes(len(chunk))
        if chunk.count(0) != len(chunk):  # (6)
            raise AmbiguousTar("there is data behind the last file")


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise DamagedTar("the archive is cut")
    return data


def _read_header(stream: IO[bytes], *, is_first: bool) -> _Header | None:
    """The next header; None at the end of the archive."""
    block = stream.read(_BLOCK)
    if not is_first and block.count(0) == len(block):
        return None
    if len(block) < _BLOCK:
        raise DamagedTar("the archive is cut")
    checksum = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    stated = _NUMBER.fullmatch(block[148:156])
    if stated is None or int(stated[1], 8) != checksum:  # (1)
        raise DamagedTar("a header does not have its checksum")
    prefix = block[345:500].partition(b"\0")[0]
    if prefix and block[257:265] != _USTAR:  # (2)
        raise AmbiguousTar("a name has a prefix that some readers do not use")
    name = block[:100].partition(b"\0")[0]
    return _Header(
        prefix + b"/" + name if prefix else name,
        block[156:157],
        _number(block[124:136]),
        _mode(block[100:108]),
    )


def _mode(field: bytes) -> int:
    found = _NUMBER.fullmatch(field)
    return 0 if found is None else int(found[1], 8)


def _number(field: bytes) -> int:
    found = _NUMBER.fullmatch(field)
    if found is None:  # (1)
        raise AmbiguousTar("a number in a header is not octal")
    return int(found[1], 8)


def _read_record(stream: IO[bytes], size: int) -> bytes:
    if size > MAX_HEADER_BYTES:
        raise TarHeaderTooLarge("a header is larger than a MiB")
    record = _read_exactly(stream, size)
    _read_exactly(stream, -size % _BLOCK)
    return record


def _read_pax(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        start = _PAX_RECORD.match(data, at)
        end = at + int(start[1]) if start else 0
        if start is None or not start.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise AmbiguousTar("a PAX record is malformed")
        key, value = start[2], data[start.end() : end - 1]
        is_hiding = _HIDDEN_RECORD.search(data, start.end(), end) is not None
        if key.startswith(_FORBIDDEN_KEYS) or key in found or is_hiding:  # (4)
            raise AmbiguousTar("a PAX record is of a sparse file, or hides another record")
        found[key] = value
        at = end
    return found


def _long_name(record: bytes) -> bytes:
    name = record.rstrip(b"\0")
    if b"\0" in name:
        raise AmbiguousTar("a long name has two ends")
    return name


_KINDS = {b"0": TarKind.FILE, b"\0": TarKind.FILE, b"5": TarKind.FOLDER}


def _member(stream: IO[bytes], header: _Header, stated: Mapping[bytes, bytes]) -> PackedMember:
    name = stated.get(b"path", header.name)
    if stated.get(b"size", b"%d" % header.size) != b"%d" % header.size:  # (4)
        raise AmbiguousTar("a file has two sizes")
    kind = _KINDS.get(header.kind, TarKind.OTHER)
    # Archives of before 1988 have folders as empty files with a slash.
    if kind is TarKind.FILE and name.endswith(b"/"):
        kind = TarKind.FOLDER
    if kind is TarKind.FOLDER and header.size:  # (5)
        raise AmbiguousTar("a folder has a size")
    text = name.decode("utf-8", "surrogateescape")
    return PackedMember(text, kind, header.size, header.mode, TarContent(stream, header.size))
