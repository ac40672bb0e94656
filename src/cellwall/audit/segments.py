"""The files of a log: segments of records, one after another, and what lies beside each.

0000000000000001.jsonl        records from number 1 on, one a line; the last segment grows, and may
                              be prepared: NUL bytes follow, up to a multiple of `ROOM_BYTES`
0000000000000001.jsonl.zst    the same, sealed and packed
0000000000000001.checkpoints  signed notes about the tree, each followed by an empty line
0000000000000001.seal         where a sealed segment ends, and the tree's subtrees there
0000000000000001.index        for quick searches; made anew when it is lost
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from collections import deque
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
# Only from the start of a line, and nothing is given back: else a long line takes for ever.
_NOTE = re.compile(
    rb"^([^\n]++\n[0-9]++\n[0-9A-Za-z+/=]{44}\n\n(?:\xe2\x80\x94 [^\n]++\n)++)\n", re.MULTILINE
)
BLOCK_BYTES = 1024 * 1024
"""What is read at once; longer than any record."""
PREALLOCATION_BYTES = 128 * 1024
"""A busy writer makes the growing segment a multiple of this long: to flush what is written into
the room costs a third less, since no new length must be written down. Less than `BLOCK_BYTES` and
than a record may be long."""
MAX_SEGMENT_BYTES = 4 * 1024**3 + 64 * 1024**2
"""As large as the configuration allows, and the batch that made it so large. A packed file that
gives more was not packed by us, and might never end."""
_MAX_HELD_BLOCKS = 128
_MAX_SEAL_BYTES = 64 * 1024
_MAX_CHECKPOINTS_BYTES = 256 * 1024 * 1024


class BadSegment(Exception):
    """A file of the log is not what it should be; the text says why."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One of them, as far as its files are there."""

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
    """The end of a segment; believed only where a signed checkpoint has the same root."""

    first: int
    last: int
    leaf: str
    """The hash of its last record, to which the next one is linked."""
    frontier: Frontier

    def to_json(self) -> dict[str, Any]:
        hashes = [each.hex() for each in self.frontier.hashes]
        return {"first": self.first, "last": self.last, "leaf": self.leaf, "subtrees": hashes}


def segment_name(first: int, part: str) -> str:
    """The file's name; the number of the first record comes first, so that names sort."""
    return f"{first:016d}{part}"


def list_segments(directory: str) -> list[Segment]:
    """All that are there, in the order of their records."""
    # The kernel reads a folder piece by piece: of a segment that is packed meanwhile it may show
    # neither the old file nor the new one. Twice the same is what was there.
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
    """The records' bytes, whether packed or not."""
    plain = None
    if RECORDS in segment.parts:
        # Gone: packed since we looked; what is packed is there before the other goes.
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
        import zstandard  # noqa: PLC0415  # heavy, and only where something is packed
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
    """A few kilobytes can be unpacked to terabytes: it ends where no segment of ours goes on."""

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
    """False if it is there both packed and not, and the two differ.

    A crash between packing and deleting leaves both, equal; readers take the one that is not
    packed. `BadSegment` if the other cannot be unpacked.
    """
    if not {RECORDS, PACKED} <= segment.parts:
        return True
    # Gone: packed or deleted since we looked, so there are no two of them.
    with suppress(FileNotFoundError):
        with open_plain(segment.path(RECORDS)) as plain, _open_packed(segment) as unpacked:
            while (block := plain.read(BLOCK_BYTES)) == unpacked.read(BLOCK_BYTES):
                if not block:
                    return True
        return False
    return True


class SegmentContent:
    """The bytes of a segment as far as it goes now, read piece by piece, best from its end.

    Never mapped: a writer that takes back a batch makes the file shorter, and to touch a page that
    is gone kills the process. What was taken back is missing from what is read.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment, self._at, self._buffer = segment, 0, b""
        self.size_bytes = self._load(None)

    def read(self, start: int, end: int) -> bytes:
        """At most a block; nothing if there is no such place, as an index may say."""
        if not 0 <= start <= end <= min(self.size_bytes, start + BLOCK_BYTES):
            return b""
        if not self._at <= start <= end <= self._at + len(self._buffer):
            self._load(end)
        return self._buffer[max(0, start - self._at) : end - self._at]

    def _load(self, end: int | None) -> int:
        """The bytes before an offset, the last one if none is given; returns where they end."""
        with open_records(self._segment) as file:
            if file.seekable():
                end = end_of_records(file.fileno()) if end is None else end
                self._at = file.seek(max(0, end - BLOCK_BYTES))
                self._buffer = file.read(end - self._at)
                return end
            # All of it, unless it is very large: then it is unpacked again for each piece.
            size_bytes, blocks = 0, deque[bytes](maxlen=_MAX_HELD_BLOCKS)
            end = MAX_SEGMENT_BYTES + 1 if end is None else end
            while block := file.read(min(BLOCK_BYTES, end - size_bytes)):
                blocks.append(block)
                size_bytes += len(block)
            self._buffer = b"".join(blocks)
            self._at = size_bytes - len(self._buffer)
            return size_bytes


def end_of_records(file: int) -> int:
    """Where the whole records of a growing segment end, if it is prepared; else how long it is.

    NUL stands in no record. A file that does not end where a room does was not prepared: what is
    at its end was torn, or is somebody else's.
    """
    size_bytes = os.fstat(file).st_size
    if size_bytes == 0 or size_bytes % PREALLOCATION_BYTES:
        return size_bytes
    start = size_bytes - PREALLOCATION_BYTES
    data = os.pread(file, PREALLOCATION_BYTES, start)
    room = data.find(b"\0")
    return size_bytes if room < 0 else start + data.rfind(b"\n", 0, room) + 1


def end_of_bytes(file: int) -> int:
    """The same with what was torn: for whoever holds the lock, so that nobody writes meanwhile."""
    size_bytes = os.fstat(file).st_size
    if size_bytes == 0 or size_bytes % PREALLOCATION_BYTES:
        return size_bytes
    start = size_bytes - PREALLOCATION_BYTES
    data = os.pread(file, PREALLOCATION_BYTES, start)
    end = data.rfind(b"\n") + 1
    # Comparing is a hundred times quicker than stripping; only what is torn needs that.
    return start + (end if data[end:] == bytes(len(data) - end) else len(data.rstrip(b"\0")))


def read_lines(
    file: IO[bytes], size_bytes: int | None = None, *, may_grow: bool = True
) -> Iterator[tuple[bytes, bool]]:
    """Each line without its newline, and whether it had one; never much more than a block.

    The room of a segment that may grow is no line. A record that is being written into it may show
    its end before its beginning: it is not whole.
    """
    rest, left = b"", size_bytes
    while left is None or left > 0:
        block = file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
        if not block:
            break
        if left is not None:
            left -= len(block)
        data, room = rest + block, None
        if may_grow and b"\0" in block:
            room = _find_preallocation(data, file)
        lines = data[:room].split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line, True
        if room is not None:
            rest += data[room:] + file.read(PREALLOCATION_BYTES)
            rest = b"" if rest == bytes(len(rest)) else rest
        if room is not None or len(rest) > MAX_RECORD_BYTES:
            break
    if rest:
        yield rest, False


def _find_preallocation(data: bytes, file: IO[bytes]) -> int | None:
    """Where in what was read last from a file its room begins; None if that is elsewhere."""
    if not file.seekable():
        return None
    here = file.tell()
    at, size_bytes = data.find(b"\0"), file.seek(0, os.SEEK_END)
    file.seek(here)
    left = size_bytes - (here - len(data) + at)
    return at if size_bytes % PREALLOCATION_BYTES == 0 and 0 < left <= PREALLOCATION_BYTES else None


def skip(file: IO[bytes], size_bytes: int) -> None:
    """Go on so many bytes further; what is packed can only be read."""
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
    """Where it ends; `BadSegment` if that cannot be read."""
    with open_plain(segment.path(SEAL)) as file:
        text = file.read(_MAX_SEAL_BYTES + 1)
    try:
        told = json.loads(text)
        last, leaf = told["last"], told["leaf"]
        if len(bytes.fromhex(leaf)) != HASH_BYTES:
            raise ValueError
        hashes = [bytes.fromhex(each) for each in told["subtrees"]]
        if told["first"] != segment.first or type(last) is not int or last < segment.first:
            raise ValueError
        return Seal(segment.first, last, leaf, Frontier(last, hashes))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadSegment("the seal of a segment cannot be read") from None


def read_notes(path: str) -> list[bytes]:
    """The signed notes in a file of checkpoints."""
    with open_plain(path) as file:
        return find_notes(file.read(_MAX_CHECKPOINTS_BYTES))


def find_notes(data: bytes) -> list[bytes]:
    """The whole ones; what a crash has torn is none."""
    return _NOTE.findall(data)


def open_plain(path: str) -> IO[bytes]:
    """A file of the log, for reading; a planted one neither leads elsewhere nor makes us wait."""
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
