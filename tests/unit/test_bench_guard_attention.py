"""The texts of training as numbers: what comes back, what is left out, and the pieces as C has them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

pytest.importorskip("numpy")

import numpy as np
from guard_attention_texts import left_out, windows_of
from guard_packed import Packed, by_rows, from_rows, read, write
from guard_pieces import PieceSplitter
from guard_sampling import UNKNOWN, Sampler, labels_of, passages_of_steps
from guard_vectors import PieceTable

from cellwall.guard.ctext.vectors import PieceVectors

pytestmark = pytest.mark.requirement("GRD-10")

_PASSAGES = 12
_FAMILIES = ["own", "written mail", "near story", "own", "measured"]
"""The second text and its other draw are of an author; the last is a measured set."""
_LETTERS = "abcdefghijklmnopqrstuvwxyzäß\u00d7\u3042語\u2014\u3001\uff01😀 \t\n0123456789.,:;\u00a0"


def _packed() -> Packed:
    texts = len(_FAMILIES)
    passages, chance = texts * _PASSAGES, np.random.default_rng(1)
    counts = np.full(passages, 3, np.uint16)
    windows, first = windows_of(counts.tolist(), [_PASSAGES] * texts)
    return Packed(
        words=chance.integers(0, 50, 3 * passages).astype(np.uint16),
        pieces=chance.integers(0, 7, 3 * passages).astype(np.uint16),
        word_counts=counts,
        piece_counts=np.where(np.arange(passages) % _PASSAGES == 5, 0, counts).astype(np.uint16),
        is_candidate=np.arange(passages) % _PASSAGES != 1,
        is_inside=np.arange(passages) == 3,
        passage_counts=np.full(texts, _PASSAGES, np.uint16),
        is_attack=np.array([family in {"own", "written mail"} for family in _FAMILIES]),
        is_placed=np.arange(texts) == 0,
        windows=windows,
        first_window=first,
        special=np.arange(4, dtype=np.uint16),
        vectors=chance.integers(-127, 127, (7, 4)).astype(np.int8),
        encoder=by_rows("word_embeddings.weight", chance.normal(size=(50, 8))),
        told={
            "families": _FAMILIES,
            "numbers": [0, 1, 2, 3, 4],
            "once": 3,
            "trained": 4,
            "again": [[0, 3]],
            "folds": [["written mail"], []],
        },
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    given = _packed()
    sizes = write(given, tmp_path)
    found = read(tmp_path)
    assert {file.stem: file.stat().st_size for file in tmp_path.iterdir()} == sizes
    assert found.told == json.loads(json.dumps(given.told))
    for name in ("words", "pieces", "windows", "is_inside", "vectors", "piece_counts"):
        assert np.array_equal(getattr(found, name), getattr(given, name))
    assert found.encoder["word_embeddings.weight"].dtype == np.int8


def test_weights_keep_their_rows_within_half_a_step() -> None:
    weights = np.random.default_rng(2).normal(size=(9, 30)) * np.arange(1, 10)[:, None]
    found = from_rows(by_rows("layer.weight", weights), "layer.weight")
    step = np.abs(weights).max(1, keepdims=True) / 63
    assert (np.abs(found - weights) <= step * 0.501).all()
    assert not np.array_equal(found, weights)
    assert np.array_equal(from_rows(by_rows("bias", weights[0]), "bias"), np.float32(weights[0]))


def _all(packed: Packed, fold: int) -> set[int]:
    sizes, scores = np.full(len(packed.text), 20), np.zeros(len(packed.text))
    steps = passages_of_steps(packed, sizes, scores, fold, seed=0)
    return set(np.concatenate(list(islice(steps, 60))).tolist())


def test_no_passage_of_what_is_left_out_or_measured_is_trained_on() -> None:
    packed = _packed()
    texts = [{int(packed.text[at]) for at in _all(packed, fold)} for fold in range(2)]
    assert texts == [{0, 2, 3}, {0, 1, 2, 3}]
    rounds = [Sampler(packed, fold, random.Random(0)).round() for fold in range(2)]
    assert {1, 4}.isdisjoint(rounds[0])
    assert 1 in rounds[1]
    assert packed.scored().tolist() == [1, 4]


def test_passages_without_pieces_are_not_read() -> None:
    packed = _packed()
    assert not any(at % _PASSAGES == 5 for at in _all(packed, 1))
    whole = replace(packed, piece_counts=packed.word_counts)
    assert any(at % _PASSAGES == 5 for at in _all(whole, 1))


def test_the_strongest_able_candidate_of_an_attack_is_labelled() -> None:
    packed = _packed()
    scores = np.arange(len(packed.text), dtype=np.float32)
    scores[_PASSAGES + 1] = 1000  # no candidate
    labels = labels_of(packed, scores).reshape(-1, _PASSAGES)
    placed = [1 if at == 3 else 0 for at in range(_PASSAGES)]
    assert labels[0].tolist() == placed
    assert labels[1].tolist() == [UNKNOWN] * (_PASSAGES - 1) + [1]
    assert not labels[2].any()


def test_windows_hold_whole_passages_and_cut_longer_ones() -> None:
    windows, first = windows_of([100, 100, 100, 300, 5, 7], [4, 0, 2])
    assert windows.tolist() == [
        [0, 200, 0, 2],
        [200, 300, 2, 1],
        [300, 554, 3, 1],
        [600, 612, 4, 2],
    ]
    assert first.tolist() == [0, 3, 3, 4]


def test_each_source_is_left_out_once() -> None:
    families = [f"{near}written {name}" for name in "abcdefg" for near in ("", "near ")]
    families += [f"found {name}" for name in "hijkl"]
    families += ["agentdojo_direct", "agentdojo_other", "direct_deepset", "purple_direct", "own"]
    folds = [left_out(families, fold) for fold in range(5)]
    assert sorted(family for fold in folds for family in fold) == sorted(set(families) - {"own"})
    assert not folds[4]
    assert all(
        f"near {family}" in fold for fold in folds for family in fold if family[:7] == "written"
    )
    assert {"agentdojo_direct", "agentdojo_other"} <= folds[0]


def _table(pieces: Sequence[str], dims: int) -> PieceTable:
    rows = np.random.default_rng(4).integers(-127, 127, (len(pieces), dims)).astype(np.int8)
    data = [piece.encode() for piece in pieces]
    return PieceTable(bytes(map(len, data)), b"".join(data), rows.tobytes())


def test_pieces_are_those_that_the_compiled_vectors_add_up() -> None:
    chance, dims = random.Random(5), 8
    words = [
        "".join(chance.choices("abcdefgäß語", k=chance.choice((1, 1, 2, 3, 5)))) for _ in range(300)
    ]
    pieces = sorted({f"{start}{word}" for word in words for start in ("", " ")})
    pieces += ["1", " 1", "7", " 7", ".", "\u3001", "😀", " 😀", "a" * 24, " " + "b" * 23]
    table = _table(sorted(set(pieces)), dims)
    splitter, vectors = (
        PieceSplitter(table),
        PieceVectors(table.sizes, table.pieces, table.rows, dims),
    )
    passages = ["".join(chance.choices(_LETTERS, k=chance.randrange(60))) for _ in range(800)]
    passages += ["", "a" * 60, "b" * 60, "ab 77 1.", "\ud800a"]
    rows = np.frombuffer(table.rows, np.int8).reshape(-1, dims).astype(np.int64)
    sums = vectors.sums(passages)
    expected = np.array(sums.sums).reshape(-1, dims)
    found = [splitter.pieces(passage) for passage in passages]
    assert [len(own) for own in found] == list(sums.pieces)
    assert sum(map(len, found)) > 5_000
    for own, row in zip(found, expected, strict=True):
        assert rows[own].sum(0).tolist() == row.tolist()
