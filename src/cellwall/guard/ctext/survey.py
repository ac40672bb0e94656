"""Finds where a text may contain something encoded, in one pass."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from cellwall.guard.ctext.library import DATA, OFFSETS, SET, SIZE, function

_CHAINS = 3
_LANE_BITS = 16
_MASKS = ctypes.c_uint64 * 256


class _Tables(ctypes.Structure):
    _fields_ = (
        ("moves", _MASKS),
        ("keeps", _MASKS),
        ("firsts", ctypes.c_uint64),
        ("lasts", ctypes.c_uint64),
        ("loose", ctypes.c_uint64),
        ("threes", ctypes.c_uint64),
    )


class _Places(ctypes.Structure):
    _fields_ = (("found", OFFSETS), ("count", ctypes.c_uint64), ("room", ctypes.c_uint64))


class _Survey(ctypes.Structure):
    _fields_ = (("chains", _Places * _CHAINS), ("tokens", _Places))


_survey = function("cw_survey", None, DATA, SIZE, ctypes.POINTER(_Tables), ctypes.POINTER(_Survey))
_runs = function("cw_runs", None, DATA, SIZE, SET, SIZE, ctypes.POINTER(_Places))


class Chain(NamedTuple):
    """Sixteen bytes of certain kinds, one after the other."""

    kinds: Sequence[bytes]
    """Which bytes the first may be, the second, and so on; then from the beginning."""
    between: bytes
    """What may stand between them."""
    is_loose: bool = False
    """Whether what may stand between them may also be one of them. Of such a chain two places are
    told: before which it cannot begin, and where it ends; of others where it begins."""


class SurveyResult(NamedTuple):
    """Places in a text; None for those that are too many to be looked at one by one."""

    chains: Sequence[list[int] | None]
    tokens: list[int] | None
    """Nearly sorted: some begin one byte after a later entry."""


class Survey:
    """What is looked for: three chains, and tokens that begin with two or three bytes of certain
    kinds."""

    def __init__(self, chains: Sequence[Chain], tokens: Sequence[Sequence[bytes]]) -> None:
        assert len(chains) == _CHAINS  # noqa: S101  # what there are lanes for
        assert sum(map(len, tokens)) <= _LANE_BITS  # noqa: S101  # a bit for each byte
        self._tables = tables = _Tables()
        for number, chain in enumerate(chains):
            shift = number * _LANE_BITS
            last = 1 << (shift + _LANE_BITS - 1)
            tables.firsts |= 1 << shift
            tables.lasts |= last
            tables.loose |= last if chain.is_loose else 0
            for place in range(_LANE_BITS):
                self._move(chain.kinds[place % len(chain.kinds)], shift + place)
            for byte in chain.between:
                tables.keeps[byte] |= ((1 << _LANE_BITS) - 1) << shift
        bit = _CHAINS * _LANE_BITS
        for token in tokens:
            assert len(token) in (2, 3)  # noqa: S101  # what is told apart
            tables.firsts |= 1 << bit
            for members in token:
                self._move(members, bit)
                bit += 1
            tables.lasts |= 1 << (bit - 1)
            tables.threes |= 1 << (bit - 1) if len(token) == 3 else 0

    def _move(self, members: bytes, bit: int) -> None:
        for byte in members:
            self._tables.moves[byte] |= 1 << bit

    def of(self, data: bytes, most: int) -> SurveyResult:
        """Where it is in the data; of each thing at most `most` places."""
        rooms = [(ctypes.c_uint64 * most)() for _ in range(_CHAINS + 1)]
        *chains, tokens = (_Places(room, 0, most) for room in rooms)
        survey = _Survey((_Places * _CHAINS)(*chains), tokens)
        _survey(data, len(data), ctypes.byref(self._tables), ctypes.byref(survey))
        told = [
            _told(room, places)
            for room, places in zip(rooms, (*survey.chains, survey.tokens), strict=True)
        ]
        return SurveyResult(told[:_CHAINS], told[_CHAINS])


def run_begins(data: bytes, members: bytes, least: int, most: int) -> list[int] | None:
    """Where runs of at least `least` bytes of a byte set begin; None if more than `most` do."""
    room = (ctypes.c_uint64 * most)()
    places = _Places(room, 0, most)
    _runs(data, len(data), members, least, ctypes.byref(places))
    return _told(room, places)


def _told(room: ctypes.Array[ctypes.c_uint64], places: _Places) -> list[int] | None:
    return room[: places.count] if places.count <= places.room else None
