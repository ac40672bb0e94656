"""The files of a log: consecutive segments of records, and the files beside each segment.

0000000000000001.jsonl        records from number 1 on, one per line; the last segment grows and may
                              be preallocated with NUL bytes to a multiple of `PREALLOCATION_BYTES`
0000000000000001.jsonl.zst    the same, sealed and compressed
0000000000000001.checkpoints  signed notes about the tree, each followed by an empty line
0000000000000001.seal         where a sealed segment ends, and the tree's subtrees there
0000000000000001.index        for fast searches; rebuilt when it is lost
"""

# ruff: noqa: PLC0415  # late imports: only packed segments need zstandard

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from cellwall.audit.merkle import HASH_BYTES, Frontier
from cellwall.audit.records import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RECORDS, PACKED, CHECKPOINTS, SEAL, INDEX = (
    ".jsonl",
    ".jsonl.zst",
    ".checkpoints",
    ".seal",
    ".index",
)
_FILE_NAME = re.compile(r"([0-9]{16})(\.jsonl|\.jsonl\.zst|\.checkpoints|\.seal|\.index)")
_MAX_LISTINGS = 16
# Anchored at line starts with possessive quantifiers: otherwise a long line takes quadratic time.
_NOTE = re.compile(
    rb"^([^\n]++\n[0-9]++\n[0-9A-Za-z+/=]{44}\n\n(?:\xe2\x80\x94 [^\n]++\n)+)\n", re.MULTILINE
)
BLOCK_BYTES = 1024 * 1024
"""The unit of one read; longer than any record."""
PREALLOCATION_BYTES = 128 * 1024
"""A busy writer preallocates the growing segment to a multiple of this size: flushing a record
then costs a third less, since the file size does not change. Smaller than `BLOCK_BYTES` and than
the longest record."""
MAX_SEGMENT_BYTES = 4 * 1024**3 + 64 * 1024**2
"""The largest size the configuration allows, plus one batch. A compressed file that yields more
was not written by us and might never end (decompression bomb)."""
_MAX_SEAL_BYTES = 64 * 1024
_MAX_CHECKPOINTS_BYTES = 256 * 1024 * 1024


class BadSegment(Exception):
    """A file of the log is invalid; the text says why."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment and which of its files exist."""

    directory: str
    first: int
    parts: frozenset[str]

    def path(self, part: str) -> str:
        return os.path.join(self.directory, segment_name(self.first, part))

    @property
    def has_records(self) -> bool:
        return RECORDS in self.parts or PACKED in self.parts


@dataclass(frozen=True, slots=True)
class Seal:
    """The end of a segment; trusted only where a signed checkpoint has the same root."""

    first: int
    last: int
    leaf: str
    """The hash of the last record, to which the next record is linked."""
    frontier: Frontier

    def to_json(self) -> dict[str, Any]:
        hashes = [each.hex() for each in self.frontier.hashes]
        return {"first": self.first, "last": self.last, "leaf": self.leaf, "subtrees": hashes}


def segment_name(first: int, part: str) -> str:
    """The file name; it starts with the number of the first record, so names sort by record."""
    return f"{first:016d}{part}"


def list_segments(directory: str) -> list[Segment]:
    """All segments, in record order."""
    # The kernel lists a directory in pieces: while a segment is being compressed, a listing may
    # show neither its old nor its new file. Two equal listings in a row are taken as complete.
    parts = _parts(directory)
    for _ in range(_MAX_LISTINGS):
        before, parts = parts, _parts(directory)
        if parts == before:
            break
    return [Segment(directory, first, frozenset(parts[first])) for first in sorted(parts)]


def _parts(directory: str) -> dict[int, set[str]]:
    parts: dict[int, set[str]] = {}
    for name in os.listdir(directory):
        found = _FILE_NAME.fullmatch(name)
        if found is not None:
            parts.setdefault(int(found[1]), set()).add(found[2])
    return parts


@contextmanager
def open_records(segment: Segment) -> Iterator[IO[bytes]]:
    """The records' bytes, compressed or not."""
    plain = None
    if RECORDS in segment.parts:
        # Gone: compressed since the listing. The compressed file exists before the other is
        # removed.
        with suppress(FileNotFoundError):
            plain = open_plain(segment.path(RECORDS))
    if plain is not None:
        with plain:
            yield plain
        return
    with _open_packed(segment) as unpacked:
        yield unpacked


@contextmanager
def _open_packed(segment: Segment) -> Iterator[IO[bytes]]:
    try:
        import zstandard
    except ImportError:
        raise BadSegment(
            "a packed segment needs the package zstandard; or unpack it with `zstd -d`"
        ) from None
    with (
        open_plain(segment.path(PACKED)) as file,
        zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as unpacked,
        io.BufferedReader(_BoundedReader(unpacked.readinto), BLOCK_BYTES) as bounded,
    ):
        try:
            yield bounded
        except zstandard.ZstdError as error:
            raise BadSegment("a packed segment cannot be unpacked") from error


class _BoundedReader(io.RawIOBase):
    """Stops decompression at the size limit: a few kilobytes can expand to terabytes."""

    def __init__(self, unpack_into: Callable[[WriteableBuffer], int]) -> None:
        self._unpack_into, self._left = unpack_into, MAX_SEGMENT_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self._unpack_into(buffer)
        self._left -= count
        if self._left < 0:
            raise BadSegment("a packed segment is larger than any segment")
        return count


def parts_agree(segment: Segment) -> bool:
    """False if a segment exists both compressed and uncompressed and the two differ.

    A crash between compressing and unlinking leaves both, equal; readers take the uncompressed
    file. Raises `BadSegment` if the other cannot be decompressed.
    """
    if not {RECORDS, PACKED} <= segment.parts:
        return True
    # Gone: compressed or deleted since the listing, so there is only one.
    with suppress(FileNotFoundError):
        with open_plain(segment.path(RECORDS)) as plain, _open_packed(segment) as unpacked:
            while (block := plain.read(BLOCK_BYTES)) == unpacked.read(BLOCK_BYTES):
                if not block:
                    return True
        return False
    return True


def end_of_records(file: int) -> int:
    """Where the complete records of a preallocated segment end; otherwise the file size.

    No record contains NUL. A file whose size is not a multiple of the preallocation was not
    preallocated: bytes at its end were torn by a crash, or written by something else.
    """
    start, data = _last_preallocation(file)
    at = data.find(b"\0")
    return start + (len(data) if at < 0 else data.rfind(b"\n", 0, at) + 1)


def end_of_bytes(file: int) -> int:
    """Like `end_of_records`, including torn bytes. The caller holds the lock, so there is no
    writer."""
    start, data = _last_preallocation(file)
    end = data.rfind(b"\n") + 1
    # Comparing is a hundred times faster than stripping; only torn bytes need stripping.
    return start + (end if data[end:] == bytes(len(data) - end) else len(data.rstrip(b"\0")))


def _last_preallocation(file: int) -> tuple[int, bytes]:
    """Offset and bytes of the range that may be preallocated; no bytes if there is none."""
    size_bytes = os.fstat(file).st_size
    if size_bytes == 0 or size_bytes % PREALLOCATION_BYTES:
        return size_bytes, b""
    start = size_bytes - PREALLOCATION_BYTES
    return start, os.pread(file, PREALLOCATION_BYTES, start)


def read_lines(
    file: IO[bytes], size_bytes: int | None = None, *, may_grow: bool = True
) -> Iterator[tuple[bytes, bool]]:
    """Each line without its newline, and whether it had one; holds little more than one block.

    The preallocation of a growing segment is not a line. A record that is being written over it may
    show its end before its beginning: such a record is incomplete.
    """
    rest, left = b"", size_bytes
    while left is None or left > 0:
        block = file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
        if not block:
            break
        if left is not None:
            left -= len(block)
        data, end = rest + block, None
        if may_grow and b"\0" in block:
            end = _find_preallocation(data, file)
        lines = data[:end].split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line, True
        if end is not None:
            rest += data[end:] + file.read(PREALLOCATION_BYTES)
            rest = b"" if rest == bytes(len(rest)) else rest
        if end is not None or len(rest) > MAX_RECORD_BYTES:
            break
    if rest:
        yield rest, False


def _find_preallocation(data: bytes, file: IO[bytes]) -> int | None:
    """The offset in `data` where the preallocated range begins; None if it begins elsewhere."""
    if not file.seekable():
        return None
    here = file.tell()
    at, size_bytes = data.find(b"\0"), file.seek(0, os.SEEK_END)
    file.seek(here)
    left = size_bytes - (here - len(data) + at)
    return at if size_bytes % PREALLOCATION_BYTES == 0 and 0 < left <= PREALLOCATION_BYTES else None


def skip(file: IO[bytes], size_bytes: int) -> None:
    """Advance by this many bytes; compressed data can only be read through."""
    if file.seekable():
        if size_bytes > os.fstat(file.fileno()).st_size:
            raise BadSegment("a segment is shorter than its index")
        file.seek(size_bytes)
        return
    while size_bytes > 0:
        block = file.read(min(BLOCK_BYTES, size_bytes))
        if not block:
            raise BadSegment("a segment is shorter than its index")
        size_bytes -= len(block)


def read_seal(segment: Segment) -> Seal:
    """Where the segment ends; raises `BadSegment` if the seal is malformed."""
    with open_plain(segment.path(SEAL)) as file:
        text = file.read(_MAX_SEAL_BYTES + 1)
    try:
        fields = json.loads(text)
        last, leaf = fields["last"], fields["leaf"]
        if len(bytes.fromhex(leaf)) != HASH_BYTES:
            raise ValueError
        hashes = [bytes.fromhex(each) for each in fields["subtrees"]]
        if fields["first"] != segment.first or type(last) is not int or last < segment.first:
            raise ValueError
        return Seal(segment.first, last, leaf, Frontier(last, hashes))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadSegment("the seal of a segment cannot be read") from None


def read_notes(path: str) -> list[bytes]:
    """The signed notes in a file of checkpoints."""
    with open_plain(path) as file:
        return find_notes(file.read(_MAX_CHECKPOINTS_BYTES))


def find_notes(data: bytes) -> list[bytes]:
    """The complete notes; a note torn by a crash is ignored."""
    return _NOTE.findall(data)


def open_plain(path: str) -> IO[bytes]:
    """Open a file of the log for reading; a planted link is not followed and a FIFO does not
    block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadSegment("a file of the log is not a plain file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadSegment("a file of the log is not a plain file")
    return os.fdopen(descriptor, "rb")
