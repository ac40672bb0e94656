"""Makes the file of the guard's attention network, and compares the compiled one with NumPy.

    .venv/bin/python bench/guard_attention.py --weights FILE.npz
    .venv/bin/python bench/guard_attention.py --weights FILE.npz --write FILE.bin

Needs NumPy. The weights are floats named as in a state dictionary: `inp` (of the vectors of
pieces), `pos`, `typ`, `n0`; of each layer `l.N.0` to `l.N.5` (normalisation, queries with keys and
values, output, normalisation, wider, narrower); `nf`, `h` and `o`, each with `weight` and `bias`.
Prints how far the scores of the compiled network, whose weights are whole numbers, are from those
of floats, for passages of the documentation and of the texts that are written for training, and how
long four passages take.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import numpy as np

from cellwall.guard.ctext.attention import AttentionNetwork, Registers, widest_registers
from cellwall.guard.ctext.passages import Passages
from cellwall.guard.ctext.vectors import PieceVectors
from cellwall.guard.detect.passages.attention import parse_network
from cellwall.guard.detect.passages.reading import read_passages, reader
from cellwall.guard.detect.passages.scores import PassageModel, model
from cellwall.guard.detect.passages.surroundings import shape_bits, shape_of

Floats = np.ndarray

_ROOT = Path(__file__).resolve().parents[1]
_TEXTS = ("README.md", "docs/**/*.md", "bench/guard_data/written/*.txt")
_MAX_CHARACTERS = 8_000
BEFORE, OWN, AFTER = 16, 48, 12
"""Pieces of a window."""
MOST = 72
"""Pieces of a passage."""
_LARGEST_OF_FIRST, _LARGEST = 32767, 127
"""Of the weights. With 8 bits the first matrix, whose inputs are signed bytes, had as large an
error as all others together."""
_EPSILON = 1e-5
_LEAST = -5.0
_HEAD = 32


def to_file(arrays: Mapping[str, Floats]) -> bytes:
    """A line of JSON, the floats, and the weights as whole numbers with a scale for each output.

    Gain and shift of a normalisation become part of the matrix behind it, and the bias of the first
    matrix part of the places.
    """
    known = {name: np.asarray(values, np.float64) for name, values in arrays.items()}
    (width, dims), layers = known["inp.weight"].shape, _layers(known)
    places = known["pos.weight"][: BEFORE + OWN + AFTER]
    matrices = [(known["inp.weight"], known["inp.bias"])]
    for n in range(layers):
        part = _part(known, f"l.{n}")
        matrices += [
            _joined(part(1), part(0)),
            part(2),
            _joined(part(4), part(3)),
            part(5),
        ]
    matrices.append((known["h.weight"], known["h.bias"]))
    floats = [
        *(places, known["typ.weight"]),
        *(known[f"{name}.{kind}"] for name in ("n0", "nf") for kind in ("weight", "bias")),
        *(known["o.weight"], known["o.bias"]),
    ]
    rows = []
    for number, (weights, bias) in enumerate(matrices):
        largest, kind = (_LARGEST, "<i1") if number else (_LARGEST_OF_FIRST, "<i2")
        scales = np.maximum(np.abs(weights).max(1), 1e-12) / largest
        floats += [scales, bias]
        rows.append(np.round(weights / scales[:, None]).astype(kind))
    told = {
        "about": "A transformer encoder over the vectors of word pieces in network.bin.",
        "dims": dims,
        "width": width,
        "layers": layers,
        "inner": len(known["l.0.4.bias"]),
        "hidden": len(known["h.bias"]),
        "before": BEFORE,
        "own": OWN,
        "after": AFTER,
        "most": MOST,
        "floats": sum(each.size for each in floats),
    }
    return b"".join(
        [
            json.dumps(told).encode(),
            b"\n",
            *(each.astype("<f4").tobytes() for each in floats),
            *(each.tobytes() for each in rows),
        ]
    )


def _layers(arrays: Mapping[str, Floats]) -> int:
    return len({name.split(".")[1] for name in arrays if name.startswith("l.")})


def _part(arrays: Mapping[str, Floats], name: str):  # a closure with one use
    return lambda number: (arrays[f"{name}.{number}.weight"], arrays[f"{name}.{number}.bias"])


def _joined(matrix: tuple[Floats, Floats], norm: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """A matrix with the gain and the shift of the normalisation before it."""
    (weights, bias), (gain, shift) = matrix, norm
    return weights * gain, bias + weights @ shift


@dataclass(frozen=True, slots=True)
class Window:
    """The pieces that are read of a passage and around it."""

    pieces: Sequence[int]
    own: slice
    first_place: int


def windows(vectors: PieceVectors, passages: Passages, chosen: Sequence[int]) -> Iterator[Window]:
    """Of some passages of a text."""
    pieces, ends = list[int](), list[int]()
    for number in range(len(passages)):
        found = passages[number]
        pieces += vectors.numbers(passages.data[found.byte_start : found.byte_end], MOST)
        ends.append(len(pieces))
    for number in chosen:
        start, end = (ends[number - 1] if number else 0), ends[number]
        own_end, first = min(end, start + OWN), max(0, start - BEFORE)
        last = own_end if end - start > OWN else min(len(pieces), end + AFTER)
        yield Window(
            pieces[first:last], slice(start - first, own_end - first), first - start + BEFORE
        )


def scores(arrays: Mapping[str, Floats], rows: Floats, found: Sequence[Window]) -> list[float]:
    """As the weights were trained; `rows`: the vectors of all pieces."""
    known = {name: np.asarray(values, np.float64) for name, values in arrays.items()}
    return [_score(known, rows, each) for each in found]


def _score(arrays: Mapping[str, Floats], rows: Floats, window: Window) -> float:
    count = len(window.pieces)
    sides = np.zeros(count, np.int64)
    sides[window.own] = 1
    if not sides.any():
        return float("nan")

    def linear(values, name):
        return values @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]

    def normal(values, name):
        return _normalised(values) * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]

    places = arrays["pos.weight"][window.first_place : window.first_place + count]
    values = linear(rows[list(window.pieces)], "inp") + places + arrays["typ.weight"][sides]
    values = normal(values, "n0")
    for n in range(_layers(arrays)):
        joined = linear(normal(values, f"l.{n}.0"), f"l.{n}.1")
        values = values + linear(_attended(joined), f"l.{n}.2")
        inner = np.maximum(linear(normal(values, f"l.{n}.3"), f"l.{n}.4"), 0)
        values = values + linear(inner, f"l.{n}.5")
    own = normal(values, "nf")[window.own]
    pooled = np.concatenate([own.mean(0), np.maximum(own.max(0), _LEAST)])
    return float(linear(np.maximum(linear(pooled, "h"), 0), "o")[0])


def _normalised(values: Floats) -> Floats:
    middle = values - values.mean(-1, keepdims=True)
    return middle / np.sqrt((middle**2).mean(-1, keepdims=True) + _EPSILON)


def _attended(joined: Floats) -> Floats:
    count, width = len(joined), joined.shape[1] // 3
    parts = joined.reshape(count, 3, width // _HEAD, _HEAD).transpose(1, 2, 0, 3)
    powers = parts[0] @ parts[1].transpose(0, 2, 1) / np.sqrt(_HEAD)
    shares = np.exp(powers - powers.max(-1, keepdims=True))
    taken = shares / shares.sum(-1, keepdims=True) @ parts[2]
    return taken.transpose(1, 0, 2).reshape(count, width)


def rows_of(network: bytes) -> tuple[Floats, float]:
    """The vectors of all pieces in network.bin, and what one of their numbers stands for."""
    line, _, rest = network.partition(b"\n")
    told = json.loads(line)
    count, dims = told["pieces"], told["dims"]
    at = count + sum(rest[:count])
    whole = np.frombuffer(rest, np.int8, count * dims, at).reshape(count, dims)
    return whole * told["scale"], told["scale"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE.npz")
    parser.add_argument("--write", type=Path, metavar="FILE.bin")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="others than those of here")
    options = parser.parse_args(arguments)
    with np.load(options.weights) as opened:
        arrays = {name: opened[name] for name in opened.files}
    data = to_file(arrays)
    if options.write:
        options.write.write_bytes(data)
    network = _ROOT / "src/cellwall/guard/detect/passages/network.bin"
    rows, scale = rows_of(network.read_bytes())
    texts = list(_texts(options.texts))
    made = parse_network(data, scale)
    print(len(data), "bytes;", made.shape)
    print(_compared(made.network, arrays, rows, texts))
    for registers in Registers:
        if registers <= widest_registers():
            print(registers.name, _timed(parse_network(data, scale, registers).network, texts))
    return 0


def _texts(folder: Path | None) -> Iterator[str]:
    files = folder.rglob("*") if folder else (path for each in _TEXTS for path in _ROOT.glob(each))
    for path in sorted(files):
        if path.is_file():
            text = path.read_text("utf-8", "replace")
            yield from (
                text[at : at + _MAX_CHARACTERS] for at in range(0, len(text), _MAX_CHARACTERS)
            )


def _compared(
    made: AttentionNetwork, arrays: Mapping[str, Floats], rows: Floats, texts: Sequence[str]
) -> str:
    vectors, ours, theirs = model().network.vectors, list[float](), list[float]()
    for text in texts:
        passages = read_passages(text)
        chosen = passages.chosen[:4]
        ours += made.scores(vectors, passages, chosen, none=float("nan"))
        theirs += scores(arrays, rows, list(windows(vectors, passages, chosen)))
    apart = np.abs(np.array(ours) - np.array(theirs))
    assert np.isnan(ours).tolist() == np.isnan(theirs).tolist()  # those without pieces
    apart = apart[~np.isnan(apart)]
    told = ", ".join(
        f"{share:.1%} at most {np.quantile(apart, share):.4f}" for share in (0.5, 0.9, 0.99, 1)
    )
    return f"{len(apart)} passages, difference to floats: {told}"


@dataclass(frozen=True, slots=True)
class _Timed:
    passages: Passages
    chosen: array[int]


def _timed(made: AttentionNetwork, texts: Sequence[str]) -> str:
    known: PassageModel = model()
    found = [read_passages(text) for text in texts]
    timed = [_Timed(each, each.chosen[:4]) for each in found if len(each.chosen) >= 4][:100]
    vectors, own, others = known.network.vectors, list[float](), list[float]()
    for each in timed:
        surroundings = reader().surroundings(each.passages, shape_bits(shape_of("")))
        placed = known.placing.place(each.passages, surroundings)
        sums = vectors.sums_of(each.passages)
        numbers = (placed.numbers, placed.ends)
        own.append(_best(partial(made.scores, vectors, each.passages, each.chosen, none=0.0)))
        scores = known.network.network.scores
        others.append(_best(partial(scores, sums, each.passages.chosen, *numbers)))
    pieces = [
        len(window.pieces)
        for each in timed
        for window in windows(vectors, each.passages, each.chosen)
    ]
    candidates = np.mean([len(each.passages.chosen) for each in timed])
    return (
        f"four passages of {np.mean(pieces):.0f} pieces: median {np.median(own) * 1e3:.2f} ms, "
        f"most {max(own) * 1e3:.2f} ms; the network without attention, all {candidates:.0f} "
        f"candidates: median {np.median(others) * 1e3:.2f} ms"
    )


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(7):
        before = time.thread_time()
        call()
        times.append(time.thread_time() - before)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
