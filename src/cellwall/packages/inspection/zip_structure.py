"""Whether every reader of a zip file sees the same files (PKG-1).

pip reads the central directory from the end of the file; other installers read the local headers
from its beginning. A file that leaves room between the two, or that describes a member in two
ways, shows each installer another content. So the records must follow each other without a gap:
local headers with their data, central directory, end record.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from cellwall.core.limits import MIB

MAX_DIRECTORY_BYTES = 64 * MIB
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_COMMENT_BYTES = 0xFFFF
_UNSET16, _UNSET32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_EXTRA, _UNICODE_PATH_EXTRA = 0x0001, 0x7075
_HAS_DESCRIPTOR, _IS_UTF8 = 0x0008, 0x0800
_DESCRIPTOR_SIZES = (12, 16, 20, 24)


class AmbiguousZip(Exception):
    """Readers of this file may see different contents; the text says why."""


@dataclass(frozen=True, slots=True)
class _ZipEntry:
    name: bytes
    flags: int
    method: int
    crc: int
    packed_bytes: int
    offset: int


def check_zip(stream: IO[bytes], size: int) -> None:
    """Raises `AmbiguousZip`; `BadZipFile` or `struct.error` for a file that is damaged."""
    directory_start, directory_end, count = _find_directory(stream, size)
    if directory_end - directory_start > MAX_DIRECTORY_BYTES:
        raise AmbiguousZip("the central directory is too large")
    stream.seek(directory_start)
    entries = _read_directory(stream.read(directory_end - directory_start))
    if len(entries) != count:
        raise AmbiguousZip("the end record counts other files than the central directory has")
    at = 0
    ordered = sorted(entries, key=lambda each: each.offset)
    following = [each.offset for each in ordered[1:]] + [directory_start]
    for entry, end in zip(ordered, following, strict=True):
        if entry.offset != at:
            raise AmbiguousZip("there is data outside of the files")
        _check_local(stream, entry, end)
        at = end
    if at != directory_start:
        raise AmbiguousZip("there is data before the files")


def _find_directory(stream: IO[bytes], size: int) -> tuple[int, int, int]:
    """Start and end of the central directory, and the number of its entries."""
    tail_bytes = min(size, _END.size + _MAX_COMMENT_BYTES)
    stream.seek(size - tail_bytes)
    tail = stream.read(tail_bytes)
    # Readers search backwards, and take a record whose comment reaches to the end of the file.
    if b"PK\5\6" not in tail:
        raise zipfile.BadZipFile("there is no end record")
    places = [at for at in _occurrences(tail, b"PK\5\6") if _reaches_end(tail, at)]
    if len(places) != 1:
        raise AmbiguousZip("there is more than one end record, or data behind it")
    at = places[0]
    _, disk, first_disk, here, count, bytes_, start, _ = _END.unpack_from(tail, at)
    end = size - tail_bytes + at
    if disk or first_disk or here != count:
        raise AmbiguousZip("the archive has several parts")
    locator_at = end - _END64_LOCATOR.size
    stream.seek(max(0, locator_at))
    locator = stream.read(_END64_LOCATOR.size)
    if locator_at >= 0 and locator[:4] == b"PK\6\7":
        return _find_directory64(stream, locator_at, locator, (count, bytes_, start))
    if count == _UNSET16 and start == _UNSET32:
        raise AmbiguousZip("the record of a large archive is missing")
    if start + bytes_ != end:
        raise AmbiguousZip("the central directory does not end at the end record")
    return start, end, count


def _occurrences(data: bytes, mark: bytes) -> Iterator[int]:
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + 1)


def _reaches_end(tail: bytes, at: int) -> bool:
    if at + _END.size > len(tail):
        return False
    return at + _END.size + int(_END.unpack_from(tail, at)[-1]) == len(tail)


def _find_directory64(
    stream: IO[bytes], locator_at: int, locator: bytes, small: tuple[int, int, int]
) -> tuple[int, int, int]:
    _, _, record_at, _ = _END64_LOCATOR.unpack(locator)
    if record_at + _END64.size != locator_at:
        raise AmbiguousZip("the record of a large archive is not where its locator says")
    stream.seek(record_at)
    fields = _END64.unpack(stream.read(_END64.size))
    count, bytes_, start = fields[7], fields[8], fields[9]
    is_same = all(
        one in (other, unset)
        for one, other, unset in zip(
            small, (count, bytes_, start), (_UNSET16, _UNSET32, _UNSET32), strict=True
        )
    )
    if fields[0] != b"PK\6\6" or not is_same or start + bytes_ != record_at:
        raise AmbiguousZip("the two end records differ")
    return start, record_at, count


def _read_directory(data: bytes) -> list[_ZipEntry]:
    entries, at = [], 0
    while at < len(data):
        fields = _CENTRAL.unpack_from(data, at)
        if fields[0] != b"PK\1\2":
            raise AmbiguousZip("the central directory has other records than files")
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        name_at = at + _CENTRAL.size
        extra_at = name_at + name_bytes
        name, extra = data[name_at:extra_at], data[extra_at : extra_at + extra_bytes]
        packed, _, offset = _large_sizes(extra, fields[8], fields[9], fields[16])
        entries.append(_ZipEntry(name, fields[3], fields[4], fields[7], packed, offset))
        at = extra_at + extra_bytes + comment_bytes
    if at != len(data):
        raise AmbiguousZip("the central directory is cut")
    return entries


def _large_sizes(extra: bytes, packed: int, unpacked: int, offset: int) -> tuple[int, int, int]:
    """The sizes, with those of the ZIP64 field in the place of unset ones."""
    at = 0
    wide = b""
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == _UNICODE_PATH_EXTRA:
            raise AmbiguousZip("a file has a second name")
        if kind == _ZIP64_EXTRA:
            if wide:
                raise AmbiguousZip("a file has two large sizes")
            wide = extra[at + 4 : at + 4 + size]
        at += 4 + size
    values = [unpacked, packed, offset]
    place = 0
    for number, value in enumerate(values):
        if value == _UNSET32 and wide:
            values[number] = struct.unpack_from("<Q", wide, place)[0]
            place += 8
    return values[1], values[0], values[2]


def _check_local(stream: IO[bytes], entry: _ZipEntry, end: int) -> None:
    """The header before the data says the same as the directory, and the data fills its place."""
    stream.seek(entry.offset)
    fields = _LOCAL.unpack(stream.read(_LOCAL.size))
    _, _, flags, method, _, _, crc, packed, unpacked, name_bytes, extra_bytes = fields
    name = stream.read(name_bytes)
    extra = stream.read(extra_bytes)
    is_utf8 = (flags ^ entry.flags) & _IS_UTF8 == 0
    if fields[0] != b"PK\3\4" or (name, method) != (entry.name, entry.method) or not is_utf8:
        raise AmbiguousZip("a file and its entry in the central directory differ")
    start = entry.offset + _LOCAL.size + name_bytes + extra_bytes
    left = end - start - entry.packed_bytes
    if flags & _HAS_DESCRIPTOR:
        if left not in _DESCRIPTOR_SIZES:
            raise AmbiguousZip("there is data behind a file")
        return
    packed, _, _ = _large_sizes(extra, packed, unpacked, 0)
    if left != 0 or (packed, crc) != (entry.packed_bytes, entry.crc):
        raise AmbiguousZip("the size of a file and of its entry differ")
