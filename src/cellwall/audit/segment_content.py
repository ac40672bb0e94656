"""The bytes of a segment at any offset, compressed or not, while it may grow or be compressed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from cellwall.audit.packed_frames import FRAME_BYTES, PackedFrames, read_frames
from cellwall.audit.segments import (
    BLOCK_BYTES,
    MAX_SEGMENT_BYTES,
    PACKED,
    BadSegment,
    Segment,
    end_of_records,
    open_records,
)

_MAX_HELD_BLOCKS = 128


class SegmentContent:
    """The bytes of a segment up to its current end, read in blocks, fastest from the end.

    Not memory-mapped: a writer that rolls back a batch shortens the file, and touching an unmapped
    page would kill the process with SIGBUS. Rolled-back bytes are missing from the result.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment, self._at, self._buffer = segment, 0, b""
        self._frames: PackedFrames | None = None
        self.size_bytes = self._load(None, None)

    def read(self, start: int, end: int) -> bytes:
        """At most one block; empty if the range is invalid, as a damaged index may state one."""
        if not 0 <= start <= end <= min(self.size_bytes, start + BLOCK_BYTES):
            return b""
        if not self._at <= start <= end <= self._at + len(self._buffer):
            self._load(start, end)
        return self._buffer[max(0, start - self._at) : end - self._at]

    def _load(self, start: int | None, end: int | None) -> int:
        """Buffer a range (default: nothing yet, or what is read anyway); returns the offset where
        it ends, by default that of the last record."""
        if self._frames is not None and start is not None and end is not None:
            self._at, self._buffer = self._frames.read(start, end)
            return end
        with open_records(self._segment) as file:
            if file.seekable():
                end = end_of_records(file.fileno()) if end is None else end
                # Reads go backwards, and one record is far shorter than this.
                near = max(0, end - FRAME_BYTES)
                self._at = file.seek(near if start is None else min(start, near))
                self._buffer = file.read(end - self._at)
                return end
            if start is None:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    self._frames = read_frames(self._segment.path(PACKED))
                if self._frames is not None:
                    return self._frames.size_bytes
            # The whole content, up to a limit; beyond it, each block is decompressed again.
            size_bytes, blocks = 0, deque[bytes](maxlen=_MAX_HELD_BLOCKS)
            end = MAX_SEGMENT_BYTES + 1 if end is None else end
            while block := file.read(min(BLOCK_BYTES, end - size_bytes)):
                blocks.append(block)
                size_bytes += len(block)
            self._buffer = b"".join(blocks)
            self._at = size_bytes - len(self._buffer)
            return size_bytes


def lines_before(
    content: SegmentContent, start: int, end: int, wanted: bytes | None = None
) -> Iterator[bytes]:
    """The complete lines between two offsets, last first; only lines that may contain `wanted`."""
    while end > start:
        begin = max(start, end - BLOCK_BYTES)
        block = content.read(begin, end)
        # A line that starts before this block is read with the next block; an unfinished line is
        # being written.
        first = 0 if begin == start else block.find(b"\n") + 1
        last = block.rfind(b"\n") + 1
        if first < last:
            yield from _lines_in(block, first, last - 1, wanted)
        elif begin + first == end:
            raise BadSegment("a line is longer than any record")
        end = begin + first


def _lines_in(block: bytes, start: int, end: int, wanted: bytes | None) -> Iterator[bytes]:
    while end >= start:
        if wanted is not None:
            hit = block.rfind(wanted, start, end)
            if hit < 0:
                return
            end = block.find(b"\n", hit)
        begin = max(block.rfind(b"\n", start, end) + 1, start)
        yield block[begin:end]
        end = begin - 1


def lines_from(content: SegmentContent, start: int) -> Iterator[bytes]:
    """The complete lines from an offset on, first first."""
    while start < content.size_bytes:
        block = content.read(start, min(start + BLOCK_BYTES, content.size_bytes))
        whole = block[: block.rfind(b"\n") + 1]
        if not whole:
            if len(block) == BLOCK_BYTES:
                raise BadSegment("a line is longer than any record")
            return
        yield from whole.split(b"\n")[:-1]
        start += len(whole)
