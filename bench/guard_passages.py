"""Describes the passages of texts for training, as the guard sees them when it scans a text."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from guard_families import Text
from guard_vectors import DIMS, LENGTH, SCALE, read_table

from cellwall.guard.ctext.vectors import PieceVectors
from cellwall.guard.detect.passages.features import candidates, describe, place, read, trait_names

Floats = np.ndarray

_MAX_CHARACTERS, _MAX_CANDIDATES, _MIN_COUNT = 8_000, 160, 40
_AT_ONCE = 60
_SHORT = 1e-3
"""A vector of nothing is not scaled up."""


@dataclass(frozen=True, slots=True)
class Described:
    """The candidates of one text."""

    vectors: Floats
    traits: list[list[str]]
    features: list[list[str]]
    """For the linear model: the traits and their pairs."""
    places: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Passages:
    """The candidates of all texts: a row of inputs for each, and the first row of each text."""

    rows: Floats
    first: Floats
    is_inside: Floats
    """Whether a passage lies in the attack, where its place is known."""

    def of_text(self, number: int) -> slice:
        return slice(int(self.first[number]), int(self.first[number + 1]))


def describe_all(texts: Sequence[Text], archive: Path) -> list[Described]:
    with ProcessPoolExecutor(initializer=_vectors, initargs=(archive,)) as pool:
        plain = (each.text for each in texts)
        return list(pool.map(_describe, plain, [archive] * len(texts), chunksize=_AT_ONCE))


@cache
def _vectors(archive: Path) -> PieceVectors:
    table = read_table(archive)
    return PieceVectors(table.sizes, table.pieces, table.rows, DIMS)


def _describe(text: str, archive: Path) -> Described:
    text = text[:_MAX_CHARACTERS]
    passages, surroundings = read(text)
    found = _vectors(archive).sums([text[each.start : each.end] for each in passages])
    sums = np.array(found.sums[:], np.float32).reshape(-1, DIMS)
    pieces = np.array(found.pieces[:], np.float32)
    chosen = candidates(passages)[:_MAX_CANDIDATES]
    placed = [place(passages, number, surroundings) for number in chosen]
    return Described(
        _inputs(sums, pieces, np.array(chosen, np.int64)),
        [sorted(set(trait_names(each, surroundings))) for each in placed],
        [sorted(set(describe(each, surroundings))) for each in placed],
        [(passages[number].start, passages[number].end) for number in chosen],
    )


def _inputs(sums: Floats, pieces: Floats, chosen: Floats) -> Floats:
    """As network.c makes them: of the passage, its neighbours, the rest, and two cosines."""
    edge, none = np.zeros((1, sums.shape[1]), np.float32), np.zeros(1, np.float32)
    around, counts = np.concatenate([edge, sums, edge]), np.concatenate([none, pieces, none])
    own = _mean(sums[chosen], pieces[chosen])
    near = _mean(around[chosen] + around[chosen + 2], counts[chosen] + counts[chosen + 2])
    rest = _mean(sums.sum(0) - sums[chosen], pieces.sum() - pieces[chosen])
    cosines = [_cosine(own, other)[:, None] for other in (near, rest)]
    vectors = [_scaled(each) for each in (own, near, rest)]
    return np.concatenate([*vectors, *cosines], axis=1).astype(np.float16)


def _scaled(vectors: Floats) -> Floats:
    lengths = np.sqrt((vectors.astype(np.float64) ** 2).sum(1))
    return vectors * (LENGTH / (lengths + _SHORT))[:, None]


def _mean(sums: Floats, pieces: Floats) -> Floats:
    mean: Floats = sums / np.maximum(pieces, 1)[:, None] * np.float32(SCALE)
    return mean


def _cosine(left: Floats, right: Floats) -> Floats:
    left, right = left.astype(np.float64), right.astype(np.float64)
    both = (left * right).sum(1)
    size = (left * left).sum(1) * (right * right).sum(1)
    return np.where(size > 1e-9, both * np.abs(both) / np.maximum(size, 1e-9), 0)


def frequent_traits(described: Sequence[Described]) -> list[str]:
    counts: dict[str, int] = {}
    for text in described:
        for row in text.traits:
            for name in row:
                counts[name] = counts.get(name, 0) + 1
    return sorted(name for name, count in counts.items() if count >= _MIN_COUNT)


def join(texts: Sequence[Text], described: Sequence[Described], names: Sequence[str]) -> Passages:
    """The inputs of the network: vectors, and a column for each trait."""
    at = {name: number for number, name in enumerate(names)}
    first = np.cumsum([0, *(len(each.places) for each in described)])
    width = 3 * DIMS + 2
    rows = np.zeros((first[-1], width + len(names)), np.float16)
    is_inside = np.zeros(first[-1], bool)
    for text, own, start in zip(texts, described, first[:-1], strict=True):
        rows[start : start + len(own.places), :width] = own.vectors
        pairs = zip(own.traits, own.places, strict=True)
        for number, (row, (begin, end)) in enumerate(pairs, start):
            rows[number, [width + at[name] for name in row if name in at]] = 1
            is_inside[number] = text.start >= 0 and begin < text.end and end > text.start
    return Passages(rows, first, is_inside)
