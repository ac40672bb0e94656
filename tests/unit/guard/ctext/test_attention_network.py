"""The attention network in C, against plain Python."""

from __future__ import annotations

import math
import random
import struct
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.ctext.attention import (
    AttentionNetwork,
    AttentionShape,
    Registers,
    widest_registers,
)
from cellwall.guard.ctext.passages import Passages
from cellwall.guard.ctext.vectors import PieceVectors
from cellwall.guard.detect.passages.reading import read_passages

_SHAPE = AttentionShape(
    dims=4, width=32, layers=2, inner=16, hidden=16, before=3, own=6, after=2, most=8
)
_SCALE = 0.05
_NONE = -9.0
_PIECES = [f" {letter}".encode() for letter in "abcdefghijklmnopqrstuvwxyz"]
_ROWS = [[(n * 37 + k * 11) % 255 - 127 for k in range(4)] for n in range(len(_PIECES))]

Matrix = tuple[list[list[int]], list[float], list[float]]
"""Weights, and the scale and the bias of each output."""


def _vectors(dims: int = 4) -> PieceVectors:
    rows = b"".join(struct.pack(f"{dims}b", *row[:dims]) for row in _ROWS)
    return PieceVectors(bytes(map(len, _PIECES)), b"".join(_PIECES), rows, dims)


class _Plain:
    """The same network, with floats in the place of whole numbers."""

    def __init__(self, shape: AttentionShape, seed: int = 1) -> None:
        self.shape, self._draw = shape, random.Random(seed)
        width = shape.width
        self.floats: list[float] = []
        self.places = [self._floats(width) for _ in range(shape.before + shape.own + shape.after)]
        self.sides = [self._floats(width) for _ in range(2)]
        self.norms = [self._floats(width) for _ in range(4)]
        self.last = self._floats(shape.hidden + 1)
        self.weights = b""
        self.first = self._matrix(shape.dims, width, "h", 32767)
        self.layers = [
            [
                self._matrix(inputs, outputs)
                for inputs, outputs in (
                    (width, 3 * width),
                    (width, width),
                    (width, shape.inner),
                    (shape.inner, width),
                )
            ]
            for _ in range(shape.layers)
        ]
        self.hidden = self._matrix(2 * width, shape.hidden)

    def network(self, registers: Registers = Registers.BITS_256) -> AttentionNetwork:
        floats = struct.pack(f"<{len(self.floats)}f", *self.floats)
        return AttentionNetwork(self.shape, floats, self.weights, scale=_SCALE, registers=registers)

    def _floats(self, count: int, least: float = -1.0, most: float = 1.0) -> list[float]:
        made = [
            struct.unpack("<f", struct.pack("<f", self._draw.uniform(least, most)))[0]
            for _ in range(count)
        ]
        self.floats += made
        return made

    def _matrix(self, inputs: int, outputs: int, kind: str = "b", largest: int = 127) -> Matrix:
        step = 2 / largest / math.sqrt(inputs)
        scales, bias = self._floats(outputs, step / 2, step), self._floats(outputs)
        rows = [
            [self._draw.randint(-largest, largest) for _ in range(inputs)] for _ in range(outputs)
        ]
        self.weights += b"".join(struct.pack(f"<{inputs}{kind}", *row) for row in rows)
        return rows, scales, bias

    def score(self, passages: Sequence[str], chosen: int) -> float:
        shape = self.shape
        own = [[_number(word) for word in passage.split()][: shape.most] for passage in passages]
        before = [piece for each in own[:chosen] for piece in each]
        before = before[max(0, len(before) - shape.before) :]
        kept = own[chosen][: shape.own]
        behind = [piece for each in own[chosen + 1 :] for piece in each][: shape.after]
        if len(own[chosen]) > shape.own:
            behind = []
        pieces = before + kept + behind
        values = []
        for at, piece in enumerate(pieces):
            is_own = len(before) <= at < len(before) + len(kept)
            place = self.places[at + shape.before - len(before)]
            row = _applied(self.first, [number * _SCALE for number in _ROWS[piece]])
            row = _added(_added(row, place), self.sides[is_own])
            values.append(_moved(_normal(row), *self.norms[:2]))
        for joined, out, wider, narrower in self.layers:
            taken = _attended([_applied(joined, _normal(row)) for row in values])
            values = [
                _added(row, _applied(out, more)) for row, more in zip(values, taken, strict=True)
            ]
            inner = [_relu(_applied(wider, _normal(row))) for row in values]
            values = [
                _added(row, _applied(narrower, more))
                for row, more in zip(values, inner, strict=True)
            ]
        read = values[len(before) : len(before) + len(kept)]
        columns = list(zip(*(_moved(_normal(row), *self.norms[2:]) for row in read), strict=True))
        pooled = [sum(column) / len(column) for column in columns]
        pooled += [max(-5.0, *column) for column in columns]
        units = _relu(_applied(self.hidden, pooled))
        return self.last[-1] + sum(a * b for a, b in zip(units, self.last, strict=False))


@cache
def _network(registers: Registers = Registers.BITS_256) -> AttentionNetwork:
    return _Plain(_SHAPE).network(registers)


def _number(word: str) -> int:
    return _PIECES.index(f" {word}".encode())


def _applied(matrix: Matrix, row: Sequence[float]) -> list[float]:
    return [
        sum(a * b for a, b in zip(weights, row, strict=True)) * scale + bias
        for weights, scale, bias in zip(*matrix, strict=True)
    ]


def _added(left: Sequence[float], right: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(left, right, strict=True)]


def _moved(row: Sequence[float], gain: Sequence[float], shift: Sequence[float]) -> list[float]:
    return [a * b + c for a, b, c in zip(row, gain, shift, strict=True)]


def _relu(row: Sequence[float]) -> list[float]:
    return [max(0.0, number) for number in row]


def _normal(row: Sequence[float]) -> list[float]:
    mean = sum(row) / len(row)
    variance = sum((number - mean) ** 2 for number in row) / len(row)
    return [(number - mean) / math.sqrt(variance + 1e-5) for number in row]


def _attended(joined: list[list[float]]) -> list[list[float]]:
    width = len(joined[0]) // 3
    found: list[list[float]] = [[] for _ in joined]
    for head in range(0, width, 32):
        queries, keys, values = (
            [row[part * width + head :][:32] for row in joined] for part in range(3)
        )
        for query, into in zip(queries, found, strict=True):
            powers = [
                sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(32) for key in keys
            ]
            shares = [math.exp(power - max(powers)) for power in powers]
            total = sum(shares)
            into += [
                sum(share * value[n] for share, value in zip(shares, values, strict=True)) / total
                for n in range(32)
            ]
    return found


def _read(passages: Sequence[str]) -> Passages:
    found = read_passages(".\n\n".join(passages))
    assert len(found) == len(passages)
    return found


def _scores(
    network: AttentionNetwork, passages: Passages, chosen: Sequence[int] | None = None
) -> list[float]:
    numbers = range(len(passages)) if chosen is None else chosen
    return network.scores(_vectors(), passages, array("Q", numbers), none=_NONE)


_TEXTS = (
    ["a"],
    ["a b c d e f"],  # all own pieces, some behind
    ["a b c d e f g", "h i"],  # more than these: nothing behind
    ["c d", "a b c d e f g h i j k l m", "x y z"],  # more than count at all
    ["q r s t u v w x y z", "a b", "c", "d e f g"],
    ["a"] * 40,
)


@pytest.mark.requirement("GRD-10")
@pytest.mark.parametrize(
    "shape",
    [
        _SHAPE,
        replace(_SHAPE, width=64, inner=48, hidden=32, layers=1),
        replace(_SHAPE, before=0, after=0),
        replace(_SHAPE, before=60, own=50, after=18, most=128, layers=1),
    ],
)
def test_the_network_is_that_of_plain_python(shape: AttentionShape) -> None:
    plain = _Plain(shape)
    network = plain.network()
    for text in _TEXTS:
        expected = [plain.score(text, number) for number in range(len(text))]
        assert _scores(network, _read(text)) == pytest.approx(expected, abs=0.02)


@pytest.mark.requirement("GRD-8")
def test_the_order_of_words_counts() -> None:
    network = _network()
    left, right = (_scores(network, _read([text]))[0] for text in ("a b c d", "d c b a"))
    assert abs(left - right) > 0.001


@pytest.mark.requirement("GRD-10")
def test_a_changed_weight_changes_the_score() -> None:
    plain = _Plain(_SHAPE)
    before = _scores(plain.network(), _read(["a b c"]))
    plain.weights = plain.weights[:1] + bytes([plain.weights[1] ^ 0x40]) + plain.weights[2:]
    assert _scores(plain.network(), _read(["a b c"])) != before


@pytest.mark.requirement("GRD-10")
@settings(deadline=None, max_examples=25)
@given(st.lists(st.text("abcdefgh ", min_size=1, max_size=30).filter(str.strip), min_size=1))
def test_the_scores_are_the_same_whatever_is_added_up_side_by_side(passages: list[str]) -> None:
    found = read_passages("\n".join(passages))
    expected = _scores(_network(Registers.PLAIN), found)
    for registers in Registers:
        if registers <= widest_registers():
            assert _scores(_network(registers), found) == expected


@pytest.mark.requirement("GRD-10")
def test_a_score_does_not_depend_on_what_else_is_read() -> None:
    network, passages = _network(), _read(_TEXTS[4])
    together = _scores(network, passages)
    assert [_scores(network, passages, [n])[0] for n in range(len(passages))] == together
    assert _scores(network, passages, []) == []
    assert _scores(network, passages, [2, 99, 2]) == [together[2], _NONE, together[2]]
    assert _scores(network, read_passages(""), [0]) == [_NONE]  # a passage that is not there
    assert _scores(network, _read(["\u4e00\u4e01", "a"]))[0] == _NONE  # no pieces


@pytest.mark.requirement("GRD-11")
@settings(deadline=None, max_examples=50)
@given(st.text(max_size=300))
def test_any_text_has_finite_scores(text: str) -> None:
    assert all(map(math.isfinite, _scores(_network(), read_passages(text))))


@pytest.mark.requirement("GRD-11")
def test_a_long_passage_is_read_up_to_its_most_pieces() -> None:
    network, many = _network(), "a b c d e f g h"
    (alone,) = _scores(network, _read([many]))
    (longer,) = _scores(network, _read([many + " z" * 60]))
    assert longer == alone


@pytest.mark.requirement("GRD-10")
def test_one_network_serves_many_threads() -> None:
    network, passages = _network(), _read(_TEXTS[4])
    expected = _scores(network, passages)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _scores(network, passages), range(200)))
    assert found == [expected] * 200


@pytest.mark.requirement("GRD-10")
@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("dims", "width", "layers", "inner", "hidden", "own")),
        *({"width": width} for width in (16, 33, 64, 288, 2**31)),
        *({"dims": dims} for dims in (3, 6, 258)),
        *({"inner": inner} for inner in (8, 32, 528)),
        *({"hidden": 528}, {"layers": 9}, {"layers": 3}, {"most": 5}, {"most": 129}),
        *({"before": 128}, {"after": 2**32 - 6}, {"before": 4}),
    ],
)
def test_a_shape_that_is_too_large_or_not_that_of_the_weights_is_refused(
    wrong: dict[str, int],
) -> None:
    plain = _Plain(_SHAPE)
    assert plain.network()  # the control
    plain.shape = AttentionShape(**asdict(_SHAPE) | wrong)
    with pytest.raises(ValueError, match="damaged"):
        plain.network()


@pytest.mark.requirement("GRD-10")
def test_damaged_weights_and_foreign_vectors_are_refused() -> None:
    plain = _Plain(_SHAPE)
    network = plain.network()
    for weights, floats in (
        (plain.weights[:-1], plain.floats),
        (plain.weights + b"\0", plain.floats),
        (plain.weights, plain.floats[:-1]),
        (plain.weights, [math.inf, *plain.floats[1:]]),
        (plain.weights, [*plain.floats[:-1], math.nan]),
    ):
        packed = struct.pack(f"<{len(floats)}f", *floats)
        with pytest.raises(ValueError, match="damaged"):
            AttentionNetwork(_SHAPE, packed, weights, scale=_SCALE)
    with pytest.raises(ValueError, match="damaged"):
        AttentionNetwork(_SHAPE, b"\0", plain.weights, scale=_SCALE)
    with pytest.raises(ValueError, match="vectors"):
        network.scores(_vectors(3), _read(["a"]), array("Q", [0]), none=_NONE)
