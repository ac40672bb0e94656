"""The weight of passages where they stand, by tables of a linear model, as `placing.c` has it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cellwall.guard.ctext.library import SIZE, function
from cellwall.guard.ctext.passages import (
    MAX_CARRIED,
    MAX_NUMBERS,
    MAX_TEXT_TRAITS,
    TRAITS,
    Passages,
    SurroundingsRecord,
)

_NONE = 0xFFFF
_NO_PAIR = 0xFF
_MAX_PAIRED = 128
_PLACE = ctypes.c_void_p


class _Placing(ctypes.Structure):
    _fields_ = (
        ("own", ctypes.c_int32 * TRAITS),
        ("beside", ctypes.c_int32 * MAX_CARRIED),
        ("text", ctypes.c_int32 * MAX_TEXT_TRAITS),
        ("both", _PLACE),
        ("within", _PLACE),
        ("by", _PLACE),
        ("own_numbers", ctypes.c_uint16 * TRAITS),
        ("beside_numbers", ctypes.c_uint16 * MAX_CARRIED),
        ("text_numbers", ctypes.c_uint16 * MAX_TEXT_TRAITS),
        ("carried", ctypes.c_uint16 * MAX_CARRIED),
        ("pairs", ctypes.c_uint8 * TRAITS),
        ("pair_count", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


_place = function(
    "cw_passages_place",
    SIZE,
    ctypes.POINTER(_Placing),
    _PLACE,
    ctypes.POINTER(SurroundingsRecord),
    _PLACE,
    SIZE,
    _PLACE,
    _PLACE,
    _PLACE,
)


class Placed(NamedTuple):
    """The chosen passages of a text."""

    weights: array[int]
    """Of each, in thousandths."""
    numbers: array[int]
    """Those of the traits of one after the other, in rising order."""
    ends: array[int]
    """Where those of each end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingTable:
    """Weights in thousandths, and the numbers that a network has for traits. A pair has the weight
    of both by the numbers of pairs."""

    own: Mapping[int, int]
    beside: Mapping[int, int]
    text: Mapping[int, int]
    own_numbers: Mapping[int, int]
    beside_numbers: Mapping[int, int]
    text_numbers: Mapping[int, int]
    carried: Sequence[int]
    """Traits that count for a neighbour."""
    pairs: Mapping[int, int]
    """By trait the number that it has in pairs."""
    both: Mapping[tuple[int, int], int]
    within: Mapping[tuple[int, int], int]
    """Of a trait by its number in pairs, and one of the text."""
    by: Mapping[tuple[int, int], int]
    """Of a trait by its number in pairs, and one that is carried."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Made once for a model; can serve many threads."""

    table: PlacingTable
    _made: _Placing = field(init=False, repr=False)
    _held: tuple[array[int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        table = self.table
        count = len(table.pairs)
        if count > _MAX_PAIRED or max([0, *_numbers(table)]) >= MAX_NUMBERS:
            raise ValueError("the model has more traits than the compiled library takes")
        both, within, by = (
            array("i", bytes(4 * count * width)) for width in (count, MAX_TEXT_TRAITS, MAX_CARRIED)
        )
        for (left, right), weight in table.both.items():
            both[left * count + right] = both[right * count + left] = weight
        for (pair, trait), weight in table.within.items():
            within[pair * MAX_TEXT_TRAITS + trait] = weight
        for (pair, trait), weight in table.by.items():
            by[pair * MAX_CARRIED + trait] = weight
        made = _Placing(
            **{
                name: (ctypes.c_int32 * size)(*_row(getattr(table, name), size, 0))
                for name, size in _SIZES.items()
            },
            **{
                f"{name}_numbers": (ctypes.c_uint16 * size)(
                    *_row(getattr(table, f"{name}_numbers"), size, _NONE)
                )
                for name, size in _SIZES.items()
            },
            carried=(ctypes.c_uint16 * MAX_CARRIED)(
                *_row(dict(enumerate(table.carried)), MAX_CARRIED, _NONE)
            ),
            pairs=(ctypes.c_uint8 * TRAITS)(*_row(table.pairs, TRAITS, _NO_PAIR)),
            pair_count=count,
            both=both.buffer_info()[0],
            within=within.buffer_info()[0],
            by=by.buffer_info()[0],
        )
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_held", (both, within, by))

    def place(self, passages: Passages, text: SurroundingsRecord) -> Placed:
        """The weights and numbers of the passages that may instruct a model."""
        count = len(passages.chosen)
        weights, ends = array("i", bytes(4 * count)), array("Q", bytes(8 * count))
        numbers = array("I", bytes(4 * MAX_NUMBERS * count))
        found = _place(
            self._made,
            passages.records.buffer_info()[0],
            text,
            passages.chosen.buffer_info()[0],
            count,
            weights.buffer_info()[0],
            numbers.buffer_info()[0],
            ends.buffer_info()[0],
        )
        del numbers[found:]
        return Placed(weights, numbers, ends)


_SIZES = {"own": TRAITS, "beside": MAX_CARRIED, "text": MAX_TEXT_TRAITS}


def _numbers(table: PlacingTable) -> list[int]:
    return [
        number
        for each in (table.own_numbers, table.beside_numbers, table.text_numbers)
        for number in each.values()
    ]


def _row(values: Mapping[int, int], size: int, missing: int) -> list[int]:
    return [values.get(number, missing) for number in range(size)]
