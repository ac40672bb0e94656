"""Compressed segments can be read at any place, and by every other decompressor."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest
import zstandard

from cellwall.audit.packed_frames import FRAME_BYTES, read_frames, write_frames
from cellwall.audit.segments import BadSegment

DATA = b"".join(b"line %d\n" % number for number in range(60_000))


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "packed"
    with path.open("wb") as file:
        write_frames(io.BytesIO(DATA), file, level=1)
    return path


def test_every_place_reads_as_in_the_original(packed: Path) -> None:
    frames = read_frames(str(packed))
    assert frames is not None
    assert len(DATA) == frames.size_bytes > 4 * FRAME_BYTES
    places = random.Random(7)
    for _ in range(200):
        start = places.randrange(len(DATA))
        end = min(len(DATA), start + places.choice([0, 1, 1000, FRAME_BYTES, 3 * FRAME_BYTES]))
        at, block = frames.read(start, end)
        assert at <= start
        assert block[start - at : end - at] == DATA[start:end]


def test_other_decompressors_skip_the_table(packed: Path) -> None:
    reader = zstandard.ZstdDecompressor().stream_reader(
        packed.read_bytes(), read_across_frames=True
    )
    assert reader.read() == DATA


def test_a_file_without_table_has_no_frames(tmp_path: Path) -> None:
    for name, content in (("whole", zstandard.compress(DATA)), ("empty", b""), ("bad", b"x" * 9)):
        (tmp_path / name).write_bytes(content)
        assert read_frames(str(tmp_path / name)) is None


def test_an_empty_segment_has_a_table(tmp_path: Path) -> None:
    with (tmp_path / "packed").open("wb") as file:
        write_frames(io.BytesIO(), file, level=1)
    frames = read_frames(str(tmp_path / "packed"))
    assert frames is not None
    assert frames.read(0, 0) == (0, b"")


def test_changed_bytes_are_refused_or_leave_no_table(packed: Path) -> None:
    good, places = packed.read_bytes(), random.Random(3)
    tail = range(len(good) - 70, len(good))
    for at in [*tail, *(places.randrange(len(good)) for _ in range(60))]:
        changed = bytearray(good)
        changed[at] ^= 1 << places.randrange(8)
        packed.write_bytes(changed)
        frames = read_frames(str(packed))
        if frames is None:
            continue
        try:
            read = b"".join(
                frames.read(start, min(start + FRAME_BYTES, frames.size_bytes))[1]
                for start in range(0, frames.size_bytes, FRAME_BYTES)
            )
        except BadSegment:
            continue
        assert read == DATA, f"the byte at {at}"


def test_a_frame_that_states_a_huge_size_is_refused(packed: Path) -> None:
    bomb = zstandard.compress(bytes(64 * 1024 * 1024))
    good = read_frames(str(packed))
    assert good is not None
    first = good.packed_ends[0]
    content = bomb.ljust(first, b"\0")
    assert len(content) == first
    with packed.open("r+b") as file:
        os.pwrite(file.fileno(), content, 0)
    with pytest.raises(BadSegment, match="differs"):
        good.read(0, 10)
