"""Vectors of passages, and the network over them, as `vectors.c` and `network.c` have them."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cellwall.guard.ctext.library import DATA, OFFSETS, SIZE, function
from cellwall.guard.ctext.passages import Passages

_POINTER = ctypes.c_void_p
_FLOATS = ctypes.POINTER(ctypes.c_float)
_new = function("cw_vectors_new", _POINTER, DATA, DATA, DATA, ctypes.c_uint32, ctypes.c_uint32)
_free = function("cw_vectors_free", None, _POINTER)
_sum = function(
    "cw_vectors_sum", None, _POINTER, DATA, SIZE, OFFSETS, OFFSETS, SIZE, _POINTER, _POINTER
)
_pieces = function(
    "cw_vectors_pieces", SIZE, _POINTER, DATA, SIZE, ctypes.c_uint64, ctypes.c_uint64, _POINTER,
    ctypes.c_uint32,
)  # fmt: skip
_sum_passages = function(
    "cw_passages_sum", None, _POINTER, DATA, SIZE, _POINTER, SIZE, _POINTER, _POINTER
)


@dataclass(frozen=True, slots=True)
class PassageSums:
    """Of each passage of a text, the sum of the vectors of its pieces, and their number."""

    sums: array[float]
    pieces: array[int]

    def places(self) -> tuple[int, int]:
        """For C."""
        return self.sums.buffer_info()[0], self.pieces.buffer_info()[0]


class PieceVectors:
    """A table of word pieces with their vectors; made once, can serve many threads."""

    def __init__(self, sizes: bytes, pieces: bytes, rows: bytes, dims: int) -> None:
        """The size of each piece, all pieces, and `dims` signed bytes for each of them."""
        if sum(sizes) != len(pieces) or len(rows) != len(sizes) * dims:
            raise ValueError("the table of pieces is damaged")
        self.dims = dims
        self._made = _new(pieces, sizes, rows, len(sizes), dims)
        if not self._made:
            raise MemoryError
        # Not at exit: another thread may still scan a text during shutdown.
        weakref.finalize(self, _free, self._made).atexit = False

    def sums(self, passages: Sequence[str]) -> PassageSums:
        data = [each.lower().encode("utf-8", "surrogatepass") for each in passages]
        count = len(data)
        ends = (ctypes.c_uint64 * count)(*accumulate(map(len, data)))
        starts = (ctypes.c_uint64 * count)(0, *ends[: count - 1]) if count else ends
        found = self._empty(count)
        whole = b"".join(data)
        _sum(self._made, whole, len(whole), starts, ends, count, *found.places())
        return found

    def sums_of(self, passages: Passages) -> PassageSums:
        """Of the passages of a text that was read."""
        found = self._empty(len(passages))
        data, records = passages.data, passages.records.buffer_info()[0]
        _sum_passages(self._made, data, len(data), records, len(passages), *found.places())
        return found

    def numbers(self, passage: bytes, most: int) -> list[int]:
        """Of the first pieces of a passage, in lower case and UTF-8: their places in the table."""
        found = array("I", bytes(4 * most))
        count = _pieces(
            self._made, passage, len(passage), 0, len(passage), found.buffer_info()[0], most
        )
        return found[:count].tolist()

    def place(self) -> int:
        """For C."""
        return int(self._made)

    def _empty(self, count: int) -> PassageSums:
        return PassageSums(array("f", bytes(4 * count * self.dims)), array("I", bytes(4 * count)))


class _Network(ctypes.Structure):
    _fields_ = (
        ("first", _FLOATS),
        ("of_traits", _FLOATS),
        ("bias", _FLOATS),
        ("last", _FLOATS),
        ("base", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("length", ctypes.c_float),
        ("dims", ctypes.c_uint32),
        ("hidden", ctypes.c_uint32),
        ("traits", ctypes.c_uint32),
    )


_scores = function(
    "cw_network_scores",
    ctypes.c_int,
    ctypes.POINTER(_Network),
    _POINTER,
    _POINTER,
    SIZE,
    _POINTER,
    SIZE,
    _POINTER,
    _POINTER,
    _POINTER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkShape:
    """How many numbers a vector has, how many units the hidden layer, and how many traits."""

    dims: int
    hidden: int
    traits: int

    def floats(self) -> tuple[int, int, int, int]:
        """Of the first layer, the traits, the bias and the last layer."""
        inputs = 3 * self.dims + 2
        return inputs * self.hidden, self.traits * self.hidden, self.hidden, self.hidden


class PassageNetwork:
    """One hidden layer over the vectors and traits of passages."""

    def __init__(
        self, shape: NetworkShape, weights: bytes, *, base: float, scale: float, length: float
    ) -> None:
        """`weights`: first layer, traits, bias and last layer, as floats of 32 bits; `scale`: of
        the vectors of pieces; `length`: of the mean vectors, as the network takes them."""
        self._dims, sizes = shape.dims, shape.floats()
        self._weights = (ctypes.c_float * sum(sizes)).from_buffer_copy(weights)
        places = [ctypes.addressof(self._weights) + 4 * at for at in (0, *accumulate(sizes[:3]))]
        self._net = _Network(
            *(ctypes.cast(place, _FLOATS) for place in places),
            base,
            scale,
            length,
            shape.dims,
            shape.hidden,
            shape.traits,
        )

    def scores(
        self, found: PassageSums, chosen: array[int], numbers: array[int], ends: array[int]
    ) -> list[float]:
        """Of the chosen passages of a text; `numbers`: those of the traits of one after the other,
        `ends`: where those of each end."""
        scores = array("f", bytes(4 * len(chosen)))
        is_done = _scores(
            ctypes.byref(self._net),
            *found.places(),
            len(found.pieces),
            chosen.buffer_info()[0],
            len(chosen),
            numbers.buffer_info()[0],
            ends.buffer_info()[0],
            scores.buffer_info()[0],
        )
        if not is_done:
            raise ValueError("the network is larger than the compiled library takes")
        return scores.tolist()
