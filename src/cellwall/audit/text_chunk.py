"""A chunk of the text index: the filters of up to 512 units of one segment, in one sealed file.

In clear are numbers that the log has in clear as well: which records, where they lie, the hash of
the last one, the name of the chunk's key, and the names of the keys that the records were opened
with. Sizes of units and the pages of filters are sealed with AES-256-GCM under a key derived from
the chunk's key and a random salt, which is new for each version of the file, so a counter serves
as nonce. The part in clear is associated data of each of them.

A chunk is an aid, not evidence. Whatever is wrong with the file makes it `BadChunk`: the records
are then scanned.
"""

# ruff: noqa: PLC0415  # late imports: cryptography loads slowly

from __future__ import annotations

import hmac
import os
import re
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import IO, TYPE_CHECKING

from cellwall.audit.segments import BadSegment, open_plain
from cellwall.audit.text_filter import (
    MAX_UNITS,
    PAGE_ROWS,
    PAGES,
    Place,
    matching_units,
    row_bytes,
)
from cellwall.core.errors import SEALED_CODES, VaultError
from cellwall.core.ports import SessionKeysPort

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MAGIC = b"CWTEXT2" + sys.byteorder[:1].encode()
_HEAD = struct.Struct("<8sQQQQQ32sI41s32sII")
_UNIT = struct.Struct("<II")
_KEY_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{32})")
_NAME_BYTES = 20
_TAG_BYTES = 16
_MAX_KEYS = 1 << 17


def pack_names(keys: Iterable[str]) -> bytes:
    """Names of keys as a header has them."""
    return b"".join(bytes.fromhex(each.replace("-", "")) for each in keys)


class BadChunk(Exception):
    """The file is not a chunk, was altered, or its key is gone."""


class LockedChunk(BadChunk):
    """The vault that has the key of the chunk is locked."""


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What a chunk covers: records `first` to `last`, the bytes `start` to `end` of a segment."""

    segment: int
    first: int
    last: int
    start: int
    end: int
    leaf: bytes
    """The leaf hash of the last record, which commits to all before."""
    last_bytes: int
    """The length of the last record with its newline."""
    key: str
    salt: bytes
    units: int
    key_names: bytes
    """Names of the keys of bodies in the filters, packed."""

    @property
    def opened_with(self) -> list[str]:
        """The keys of bodies in the filters: when one is destroyed, the chunk has to go."""
        packed = self.key_names
        texts = (packed[at : at + _NAME_BYTES].hex() for at in range(0, len(packed), _NAME_BYTES))
        return [f"{text[:8]}-{text[8:]}" for text in texts]

    def encode(self) -> bytes:
        head = _HEAD.pack(
            _MAGIC,
            self.segment,
            self.first,
            self.last,
            self.start,
            self.end,
            self.leaf,
            self.last_bytes,
            self.key.encode("ascii"),
            self.salt,
            self.units,
            len(self.key_names) // _NAME_BYTES,
        )
        return head + self.key_names


@dataclass(frozen=True, slots=True)
class TextUnit:
    """Consecutive records: `first` is the number of the oldest, `start` to `end` are its bytes."""

    first: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TextChunk:
    """An opened chunk; pages are read when a search needs them."""

    header: ChunkHeader
    _sizes: bytes
    """The number of records and of bytes of each unit."""
    _file: IO[bytes]
    _cipher: AESGCM
    _aad: bytes
    _pages_at: int

    def close(self) -> None:
        self._file.close()

    def candidates(self, places: Sequence[Place]) -> list[TextUnit]:
        """The units that may have these grams, the newest first."""
        pages = {number: self.page(number) for number in {place[0] for place in places}}
        found = matching_units(pages, places, self.header.units)
        units = self.units() if found else []
        return [units[each] for each in found]

    def units(self) -> list[TextUnit]:
        """All units, the oldest first."""
        units, first, start = [], self.header.first, self.header.start
        for records, size_bytes in _UNIT.iter_unpack(self._sizes):
            units.append(TextUnit(first, start, start + size_bytes))
            first, start = first + records, start + size_bytes
        return units

    def page(self, number: int) -> bytes:
        """One page of filters; raises `BadChunk`."""
        size_bytes = PAGE_ROWS * row_bytes(self.header.units) + _TAG_BYTES
        at = self._pages_at + number * size_bytes
        sealed = os.pread(self._file.fileno(), size_bytes, at)
        return _unseal(self._cipher, number, sealed, self._aad)


def read_header(file: IO[bytes]) -> ChunkHeader:
    """The part in clear; raises `BadChunk`. Nothing vouches for it before `open_chunk`."""
    head = file.read(_HEAD.size)
    if len(head) != _HEAD.size:
        raise BadChunk("too short")
    magic, *numbers, leaf, last_bytes, key, salt, units, count = _HEAD.unpack(head)
    segment, first, last, start, end = numbers
    name = key.decode("ascii", "replace")
    is_ours = magic == _MAGIC and _KEY_NAME.fullmatch(name) and count <= _MAX_KEYS
    has_records = 0 < segment <= first <= last and 0 <= start < start + last_bytes <= end
    if not (is_ours and has_records and 0 < units <= MAX_UNITS):
        raise BadChunk("not a chunk")
    names = file.read(count * _NAME_BYTES)
    if len(names) != count * _NAME_BYTES:
        raise BadChunk("too short")
    return ChunkHeader(
        segment=segment,
        first=first,
        last=last,
        start=start,
        end=end,
        leaf=leaf,
        last_bytes=last_bytes,
        key=name,
        salt=salt,
        units=units,
        key_names=names,
    )


def open_chunk(path: str, keys: SessionKeysPort) -> TextChunk:
    """Raises `BadChunk`, or `OSError` if there is no such file; the caller closes the chunk."""
    try:
        file = open_plain(path)
    except BadSegment as error:
        raise BadChunk(str(error)) from None
    try:
        header = read_header(file)
        aad = sha256(header.encode()).digest()
        cipher = _cipher(keys, header)
        at, table_bytes = file.tell(), header.units * _UNIT.size + _TAG_BYTES
        sizes = _unseal(cipher, PAGES, os.pread(file.fileno(), table_bytes, at), aad)
        return TextChunk(header, sizes, file, cipher, aad, at + table_bytes)
    except BaseException:
        file.close()
        raise


def encode_chunk(
    header: ChunkHeader,
    units: Sequence[TextUnit],
    pages: Sequence[bytes],
    keys: SessionKeysPort,
) -> bytes:
    """The file. The salt of the header is replaced; raises `BadChunk` if the key is gone."""
    fresh = replace(header, salt=os.urandom(32), units=len(units))
    clear, cipher = fresh.encode(), _cipher(keys, fresh)
    aad = sha256(clear).digest()
    ends = [*(unit.first for unit in units[1:]), header.last + 1]
    table = b"".join(
        _UNIT.pack(end - unit.first, unit.end - unit.start)
        for unit, end in zip(units, ends, strict=True)
    )
    sealed = [cipher.encrypt(_nonce(number), page, aad) for number, page in enumerate(pages)]
    return b"".join([clear, cipher.encrypt(_nonce(PAGES), table, aad), *sealed])


def _cipher(keys: SessionKeysPort, header: ChunkHeader) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        key = keys.key_bytes(header.key)
    except VaultError as error:
        is_locked = SEALED_CODES.get(error.code, "locked") == "locked"
        raise (LockedChunk if is_locked else BadChunk)(error.code) from None
    return AESGCM(hmac.digest(key, b"cellwall text index " + header.salt, "sha256"))


def _unseal(cipher: AESGCM, number: int, sealed: bytes, aad: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(_nonce(number), sealed, aad)
    except (InvalidTag, ValueError):
        raise BadChunk("altered or torn") from None


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")
