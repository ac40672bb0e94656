"""Compressed segments in the seekable format of Zstandard: independent frames, and a table at the
end, in a frame that other decompressors skip. A search decompresses the frames that it needs.

The table is an aid, not evidence: a verifier reads all frames in order and ignores the table.
"""

# ruff: noqa: PLC0415  # late imports: only packed segments need zstandard

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import IO

from cellwall.audit.segments import MAX_SEGMENT_BYTES, BadSegment, open_plain

FRAME_BYTES = 128 * 1024
"""Of records in one frame. Half as much costs 1 % more on the disk; a search reads at least one."""
_SKIPPABLE = 0x184D2A5E
_SEEKABLE = 0x8F92EAB1
_HEAD = struct.Struct("<II")
_FOOT = struct.Struct("<IBI")
_ENTRY = struct.Struct("<II")
_MAX_FRAMES = MAX_SEGMENT_BYTES // FRAME_BYTES + 1


def write_frames(plain: IO[bytes], packed: IO[bytes], *, level: int) -> None:
    """Compress all bytes of `plain`."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    entries: list[bytes] = []
    while block := plain.read(FRAME_BYTES):
        frame = compressor.compress(block)
        packed.write(frame)
        entries.append(_ENTRY.pack(len(frame), len(block)))
    table = b"".join(entries) + _FOOT.pack(len(entries), 0, _SEEKABLE)
    packed.write(_HEAD.pack(_SKIPPABLE, len(table)) + table)


@dataclass(frozen=True, slots=True)
class PackedFrames:
    """Where each frame of a compressed segment begins, before and after decompression."""

    path: str
    packed_ends: tuple[int, ...]
    plain_ends: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.plain_ends[-1] if self.plain_ends else 0

    def read(self, start: int, end: int) -> tuple[int, bytes]:
        """The frames that have these bytes, and the offset at which they begin."""
        import zstandard

        first = bisect_right(self.plain_ends, start)
        last = bisect_right(self.plain_ends, max(start, end - 1))
        blocks: list[bytes] = []
        with open_plain(self.path) as file:
            for number in range(first, min(last + 1, len(self.plain_ends))):
                begin = self.packed_ends[number - 1] if number else 0
                frame = os.pread(file.fileno(), self.packed_ends[number] - begin, begin)
                wanted = self.plain_ends[number] - self._plain_start(number)
                try:
                    # A frame states its own size, which the decompressor allocates.
                    if zstandard.frame_content_size(frame) != wanted:
                        raise BadSegment("a packed segment differs from its table")
                    blocks.append(zstandard.ZstdDecompressor().decompress(frame))
                except zstandard.ZstdError as error:
                    raise BadSegment("a packed segment cannot be unpacked") from error
        return self._plain_start(first), b"".join(blocks)

    def _plain_start(self, number: int) -> int:
        return self.plain_ends[number - 1] if number else 0


def read_frames(path: str) -> PackedFrames | None:
    """None if the file has no valid table: it can then be read from its beginning only."""
    with open_plain(path) as file:
        descriptor, size_bytes = file.fileno(), os.fstat(file.fileno()).st_size
        foot = os.pread(descriptor, _FOOT.size, max(0, size_bytes - _FOOT.size))
        if len(foot) != _FOOT.size:
            return None
        count, flags, magic = _FOOT.unpack(foot)
        table_bytes = count * _ENTRY.size + _FOOT.size
        start = size_bytes - table_bytes - _HEAD.size
        if magic != _SEEKABLE or flags or count > _MAX_FRAMES or start < 0:
            return None
        table = os.pread(descriptor, _HEAD.size + table_bytes, start)
    if table[: _HEAD.size] != _HEAD.pack(_SKIPPABLE, table_bytes):
        return None
    entries = list(_ENTRY.iter_unpack(table[_HEAD.size : -_FOOT.size]))
    packed_ends = tuple(accumulate(packed for packed, _ in entries))
    plain_ends = tuple(accumulate(plain for _, plain in entries))
    is_sound = all(0 < plain <= FRAME_BYTES for _, plain in entries)
    return (
        PackedFrames(path, packed_ends, plain_ends)
        if is_sound and (packed_ends[-1] if entries else 0) == start
        else None
    )
