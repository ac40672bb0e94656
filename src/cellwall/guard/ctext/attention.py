"""A small transformer encoder that reads passages where they stand, as `attention.c` has it."""

from __future__ import annotations

import ctypes
import math
import weakref
from array import array
from dataclasses import asdict, dataclass
from enum import IntEnum

from cellwall.guard.ctext.library import DATA, SIZE, function
from cellwall.guard.ctext.passages import Passages
from cellwall.guard.ctext.vectors import PieceVectors

_POINTER = ctypes.c_void_p
_FLOAT_BYTES = 4


class _Shape(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_uint32)
            for name in (
                *("dims", "width", "layers", "inner", "hidden"),
                *("before", "own", "after", "most"),
            )
        ),
        ("scale", ctypes.c_float),
    )


_new = function(
    "cw_attention_new",
    _POINTER,
    ctypes.POINTER(_Shape),
    DATA,
    SIZE,
    DATA,
    SIZE,
    ctypes.c_uint32,
)
_free = function("cw_attention_free", None, _POINTER)
_scores = function(
    "cw_attention_scores",
    ctypes.c_int,
    _POINTER,
    _POINTER,
    DATA,
    SIZE,
    _POINTER,
    SIZE,
    _POINTER,
    SIZE,
    ctypes.c_float,
    _POINTER,
)
_widest = function("cw_products_widest", ctypes.c_uint32)


class Registers(IntEnum):
    """How wide the registers are that products are added up in; the scores are the same."""

    PLAIN = 0
    BITS_128 = 1
    BITS_256 = 2


def widest_registers() -> Registers:
    """Of this processor, as far as they are used."""
    return Registers(_widest())


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The sizes of a network."""

    dims: int
    """Numbers in the vector of a piece."""
    width: int
    """Numbers that each piece has in the layers."""
    layers: int
    inner: int
    hidden: int
    """Units behind the layers."""
    before: int
    own: int
    after: int
    """Pieces that are read before a passage, of it and behind it."""
    most: int
    """Pieces of each passage that count at all."""


class AttentionNetwork:
    """Made once for a model; can serve many threads."""

    def __init__(
        self,
        shape: AttentionShape,
        floats: bytes,
        weights: bytes,
        *,
        scale: float,
        registers: Registers = Registers.BITS_256,
    ) -> None:
        """`floats`: of 32 bits; `weights`: of 16 bits in the first matrix and of 8 in the
        others, both in the order of `attention_weights.c`; `scale`: of the vectors of pieces."""
        count, rest = divmod(len(floats), _FLOAT_BYTES)
        if rest or not all(map(math.isfinite, array("f", floats))):
            raise ValueError("the attention network is damaged")
        self._dims = shape.dims
        made = _Shape(**asdict(shape), scale=scale)
        self._made = _new(made, floats, count, weights, len(weights), registers)
        if not self._made:
            raise ValueError("the attention network is damaged, or too large for memory")
        # Not at exit: another thread may still scan a text during shutdown.
        weakref.finalize(self, _free, self._made).atexit = False

    def scores(
        self, vectors: PieceVectors, passages: Passages, chosen: array[int], *, none: float
    ) -> list[float]:
        """Of the passages of a text that have these numbers; `none`: of one without pieces."""
        if vectors.dims != self._dims:
            raise ValueError("these vectors are not those of the network")
        found = array("f", bytes(_FLOAT_BYTES * len(chosen)))
        is_done = _scores(
            self._made,
            vectors.place(),
            passages.data,
            len(passages.data),
            passages.records.buffer_info()[0],
            len(passages),
            chosen.buffer_info()[0],
            len(chosen),
            none,
            found.buffer_info()[0],
        )
        if not is_done:
            raise MemoryError
        return found.tolist()
