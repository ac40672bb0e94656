"""Bodies in a content coding are opened within bounds, or refused."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard

from cellwall.core.errors import EgressRefused
from cellwall.egress.inspection.decompression import (
    DecompressionBudget,
    Decompressor,
    can_decompress,
)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "identity": ("identity", bytes),
    "none": ("", bytes),
    "gzip": ("gzip", gzip.compress),
    "x-gzip": (" X-GZIP ", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstd),
}
PACKED = [name for name in PACKERS if name not in ("identity", "none")]
SAMPLE = b"".join(b"line %d of a text\n" % number for number in range(5000))


def opened(encoding: str, data: bytes, *, max_bytes: int = 1 << 20, step: int = 1 << 20) -> bytes:
    inflate = Decompressor(encoding, DecompressionBudget(max_bytes))
    pieces = [
        piece for at in range(0, len(data), step) for piece in inflate.feed(data[at : at + step])
    ]
    inflate.end()
    return b"".join(pieces)


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("step", [1, 7, 300, 1 << 20])
def test_a_body_is_opened_however_it_is_cut(name: str, step: int) -> None:
    encoding, pack = PACKERS[name]
    assert opened(encoding, pack(SAMPLE), step=step) == SAMPLE


@pytest.mark.parametrize("name", PACKERS)
def test_nothing_at_all_is_an_empty_body(name: str) -> None:
    assert opened(PACKERS[name][0], b"") == b""


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 131072, 131330])
def test_a_body_as_long_as_a_piece_is_whole(name: str, size: int) -> None:
    encoding, pack = PACKERS[name]
    assert opened(encoding, pack(bytes(size))) == bytes(size)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_members_one_after_another_are_one_body(encoding: str) -> None:
    pack = PACKERS[encoding][1]
    assert opened(encoding, pack(b"one ") + pack(b"") + pack(b"two"), step=5) == b"one two"


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("name", PACKERS)
def test_a_body_that_unpacks_beyond_its_bound_is_refused(name: str) -> None:
    encoding, pack = PACKERS[name]
    packed = pack(SAMPLE)
    assert opened(encoding, packed, max_bytes=len(SAMPLE)) == SAMPLE
    with pytest.raises(EgressRefused) as error:
        opened(encoding, packed, max_bytes=len(SAMPLE) - 1)
    assert error.value.code == "CW-BODY-TOO-LARGE"


@pytest.mark.parametrize("name", PACKED)
def test_a_bomb_comes_in_small_pieces_and_stops_at_the_bound(name: str) -> None:
    encoding, pack = PACKERS[name]
    sizes = sizes_until_refused(encoding, pack(bytes(4 << 20)), max_bytes=3 << 20)
    assert (sum(sizes), max(sizes)) == (3 << 20, 64 << 10)


def test_a_zstd_bomb_of_four_bytes_a_block_does_not_unpack_all_at_once() -> None:
    head = bytes.fromhex("28b52ffd 00 38")  # no size is told, the window is 128 KiB
    repeated = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    bomb = head + repeated * 16_000
    tracemalloc.start()
    sizes = sizes_until_refused("zstd", bomb, max_bytes=3 << 20)
    _, max_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (sum(sizes), max(sizes)) == (3 << 20, 64 << 10)
    assert max_bytes < 32 << 20  # all of it are 2 GB


def sizes_until_refused(encoding: str, data: bytes, *, max_bytes: int) -> list[int]:
    pieces = Decompressor(encoding, DecompressionBudget(max_bytes)).feed(data)
    sizes = []
    with pytest.raises(EgressRefused) as error:
        while True:
            sizes.append(len(next(pieces)))
    assert error.value.code == "CW-BODY-TOO-LARGE"
    return sizes


@pytest.mark.parametrize("name", PACKED)
def test_a_body_that_is_cut_short_is_refused(name: str) -> None:
    encoding, pack = PACKERS[name]
    packed = pack(SAMPLE)
    for size in (1, 2, len(packed) // 2, len(packed) - 1):
        with pytest.raises(EgressRefused) as error:
            opened(encoding, packed[:size])
        assert error.value.code == "CW-BAD-BODY"


@pytest.mark.parametrize("name", PACKED)
def test_what_follows_the_end_is_refused(name: str) -> None:
    encoding, pack = PACKERS[name]
    with pytest.raises(EgressRefused) as error:
        opened(encoding, pack(SAMPLE) + b"and more")
    assert error.value.code == "CW-BAD-BODY"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_empty_members_without_end_are_refused(encoding: str) -> None:
    empty = PACKERS[encoding][1](b"")
    assert opened(encoding, empty * 1000) == b""
    with pytest.raises(EgressRefused) as error:
        opened(encoding, empty * 1001)
    assert error.value.code == "CW-BAD-BODY"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_body_that_is_not_what_it_says_is_refused(encoding: str) -> None:
    with pytest.raises(EgressRefused) as error:
        opened(encoding, b"plainly a text of some length")
    assert error.value.code == "CW-BAD-BODY"


def test_a_zstd_frame_that_asks_for_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(b"text") + packer.flush()
    with pytest.raises(EgressRefused) as error:
        opened("zstd", packed)
    assert error.value.code == "CW-BAD-BODY"


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("encoding", ["br", "compress", "gzip, gzip", "gzip,br", "chunked", "zst"])
def test_a_coding_that_cannot_be_opened_is_refused(encoding: str) -> None:
    assert not can_decompress(encoding)
    with pytest.raises(EgressRefused) as error:
        Decompressor(encoding, DecompressionBudget(100))
    assert error.value.code == "CW-CONTENT-ENCODING"


def test_what_can_be_opened_is_said() -> None:
    assert all(can_decompress(encoding) for encoding, _ in PACKERS.values())


def zstd_that_goes_on(window_log: int) -> bytes:
    """A frame that makes its reader remember so much, of blocks of one byte each, without an end."""
    block = struct.pack("<I", 131_072 << 3 | 1 << 1)[:3] + b"A"
    return struct.pack("<I", 0xFD2FB528) + bytes([0, (window_log - 10) << 3]) + block * 8


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(EgressRefused) as refused:
        work()
    return refused.value.code


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize(("window_log", "most"), [(23, 3), (21, 7), (17, 12)])
def test_bodies_that_are_open_at_a_time_share_their_memory(window_log: int, most: int) -> None:
    room = DecompressionBudget(1 << 30)
    data = zstd_that_goes_on(window_log)

    def begun() -> Decompressor:
        inflate = Decompressor("zstd", room)
        assert sum(map(len, inflate.feed(data))) == 8 * 131_072
        return inflate

    bodies = [begun() for _ in range(most)]
    assert refusal(begun) == "CW-NET-LIMIT"
    # What is not packed needs no place, and gzip little.
    assert b"".join(Decompressor("", room).feed(SAMPLE)) == SAMPLE
    for body in bodies:
        body.close()
        body.close()
    assert [begun() for _ in range(most)]
    assert refusal(begun) == "CW-NET-LIMIT"


@pytest.mark.requirement("NET-2")
def test_gzip_bodies_are_open_by_the_hundred_and_not_without_end() -> None:
    room = DecompressionBudget(1 << 30)
    start = gzip.compress(SAMPLE)[:-1]

    def begun() -> Decompressor:
        inflate = Decompressor("gzip", room)
        assert b"".join(inflate.feed(start)) == SAMPLE
        return inflate

    bodies = [begun() for _ in range(256)]
    assert refusal(begun) == "CW-NET-LIMIT"
    bodies.pop().close()
    assert begun()


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("name", PACKED)
def test_bodies_of_one_room_unpack_to_no_more_than_one(name: str) -> None:
    encoding, pack = PACKERS[name]
    room = DecompressionBudget(len(SAMPLE) * 2 + 1)
    for _ in range(2):
        assert b"".join(Decompressor(encoding, room).feed(pack(SAMPLE))) == SAMPLE
    third = Decompressor(encoding, room)
    assert refusal(lambda: list(third.feed(pack(SAMPLE)))) == "CW-BODY-TOO-LARGE"


def test_second_frame_may_ask_for_more_than_the_first() -> None:
    room = DecompressionBudget(1 << 30)
    held = [Decompressor("zstd", room) for _ in range(2)]
    for body in held:
        list(body.feed(zstd_that_goes_on(23)))
    other = Decompressor("zstd", room)
    assert b"".join(other.feed(zstd(b"first"))) == b"first"
    also = Decompressor("zstd", room)
    list(also.feed(zstd_that_goes_on(21)))
    assert refusal(lambda: list(other.feed(zstd_that_goes_on(23)))) == "CW-NET-LIMIT"
    also.close()
    assert sum(map(len, other.feed(zstd_that_goes_on(23)))) == 8 * 131_072


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_frames_of_zstd_that_say_nothing_are_skipped(step: int) -> None:
    skipped = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
    data = skipped + zstd(SAMPLE) + skipped + zstd(b"more")
    assert opened("zstd", data, step=step) == SAMPLE + b"more"
