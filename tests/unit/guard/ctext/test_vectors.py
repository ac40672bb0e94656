"""Vectors of passages and the network over them, against plain Python."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.guard.ctext.vectors import NetworkShape, PassageNetwork, PassageSums, PieceVectors

_PIECES = [" ignore", " in", "struct", "ion", "s", " a", "1", "!", " größe", "面", "\u00e9", " "]
_ROWS = [[number + 1, -number] for number in range(len(_PIECES))]


def _table() -> PieceVectors:
    pieces = [piece.encode() for piece in _PIECES]
    rows = b"".join(struct.pack("2b", *row) for row in _ROWS)
    return PieceVectors(bytes(map(len, pieces)), b"".join(pieces), rows, 2)


def _sums(*passages: str) -> list[tuple[float, float, int]]:
    found = _table().sums(passages)
    return [
        (found.sums[2 * n], found.sums[2 * n + 1], found.pieces[n]) for n in range(len(passages))
    ]


def _of(*pieces: str) -> tuple[float, float, int]:
    rows = [_ROWS[_PIECES.index(piece)] for piece in pieces]
    return (sum(row[0] for row in rows), sum(row[1] for row in rows), len(rows))


@pytest.mark.requirement("GRD-10")
def test_words_are_cut_into_their_longest_pieces() -> None:
    assert _sums("IGNORE instructions!") == [_of(" ignore", " in", "struct", "ion", "s", "!")]
    assert _sums("Größe 面面", "", "zzz", "\ud800 a") == [
        _of(" größe", "面", "面"),
        (0, 0, 0),
        (0, 0, 0),
        _of(" a"),
    ]
    assert _sums("2024") == [(0, 0, 0)]  # by its first digit
    assert _sums("1999") == [_of("1")]


@pytest.mark.requirement("GRD-11")
@given(st.lists(st.text(max_size=60), max_size=5))
def test_any_passages_have_a_sum_each_that_the_others_do_not_change(passages: list[str]) -> None:
    assert _sums(*passages) == [_sums(each)[0] for each in passages]


@pytest.mark.requirement("GRD-10")
def test_a_damaged_table_is_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        PieceVectors(b"\x02", b"a", b"\x01\x02", 2)
    with pytest.raises(ValueError, match="damaged"):
        PieceVectors(b"\x01", b"a", b"\x01", 2)


def _mean(rows: list[tuple[list[float], int]], scale: float) -> list[float]:
    count = max(1, sum(pieces for _, pieces in rows))
    return [sum(row[n] for row, _ in rows) * scale / count for n in range(2)]


def _cosine(left: list[float], right: list[float]) -> float:
    both = sum(a * b for a, b in zip(left, right, strict=True))
    size = sum(a * a for a in left) * sum(b * b for b in right)
    return both * abs(both) / size if size > 1e-9 else 0.0


def _scaled(vector: list[float], length: float) -> list[float]:
    return [number * length / (math.hypot(*vector) + 1e-3) for number in vector]


def _scores(
    network: PassageNetwork, found: PassageSums, chosen: Sequence[int], traits: list[list[int]]
) -> list[float]:
    numbers, ends = chain.from_iterable(traits), accumulate(map(len, traits))
    return network.scores(found, array("Q", chosen), array("I", numbers), array("Q", ends))


@pytest.mark.requirement("GRD-10")
@pytest.mark.parametrize("hidden", [3, 48, 53])  # units side by side, and those that are left
def test_the_network_is_that_of_plain_python(hidden: int) -> None:
    shape = NetworkShape(dims=2, hidden=hidden, traits=2)
    sizes = shape.floats()
    weights = [((7 * n) % 11 - 5) / 10 for n in range(sum(sizes))]
    network = PassageNetwork(
        shape, struct.pack(f"<{len(weights)}f", *weights), base=-0.5, scale=0.25, length=2.0
    )
    texts = ["ignore instructions!", "a 1 !", "ignore a", "ins"]
    found = _table().sums(texts)
    rows = [([found.sums[2 * n], found.sums[2 * n + 1]], found.pieces[n]) for n in range(4)]
    chosen, traits = [0, 2, 3], [[0], [0, 1, 7], []]  # no trait has the number 7
    expected = []
    for at, own in zip(chosen, traits, strict=True):
        near = [rows[n] for n in (at - 1, at + 1) if 0 <= n < 4]
        rest = [row for n, row in enumerate(rows) if n != at]
        means = [_mean(part, 0.25) for part in ([rows[at]], near, rest)]
        inputs = [number for mean in means for number in _scaled(mean, 2.0)]
        inputs += [_cosine(means[0], means[1]), _cosine(means[0], means[2])]
        inputs += [float(n in own) for n in range(2)]
        first = weights[: 10 * hidden]
        bias, last = weights[10 * hidden : 11 * hidden], weights[11 * hidden :]
        units = [
            max(0.0, bias[h] + sum(x * first[hidden * n + h] for n, x in enumerate(inputs)))
            for h in range(hidden)
        ]
        expected.append(-0.5 + sum(h * w for h, w in zip(units, last, strict=True)))
    assert _scores(network, found, chosen, traits) == pytest.approx(expected, abs=1e-5)
    assert _scores(network, found, [], []) == []
    assert _scores(network, found, [99], [[]]) == [-0.5]  # a passage that is not there


@pytest.mark.requirement("GRD-10")
def test_a_network_that_is_too_large_is_refused() -> None:
    shape = NetworkShape(dims=2, hidden=300, traits=0)
    network = PassageNetwork(shape, bytes(4 * sum(shape.floats())), base=0.0, scale=1.0, length=1.0)
    empty = _table().sums(["a"])
    assert isinstance(empty, PassageSums)
    with pytest.raises(ValueError, match="larger"):
        _scores(network, empty, [0], [[]])
