"""Models that are trained side by side, each without some texts: what is left out moves no weight."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

pytest.importorskip("numpy")

import guard_fit
import guard_network
import numpy as np
from guard_families import Text
from guard_passages import Passages

pytestmark = pytest.mark.requirement("GRD-10")
_FAMILIES, _INPUTS, _EACH = ("own", "written tools", "near story"), 12, 30
_LEFT_OUT = "written tools"


def _texts() -> list[Text]:
    families = [family for family in _FAMILIES for _ in range(_EACH)]
    return [Text(family, family != "near story", "text") for family in families]


def _passages(texts: Sequence[Text], changed: str = "") -> Passages:
    """Two passages of each text; those of one family are other ones."""
    chance = np.random.default_rng(3)
    rows = chance.normal(size=(2 * len(texts), _INPUTS)).astype(np.float16)
    rows[::2, 0] += [2.0 * text.is_attack for text in texts]
    is_changed = np.repeat([text.family == changed for text in texts], 2)
    rows[is_changed] = -rows[is_changed]
    return Passages(rows, np.arange(0, 2 * len(texts) + 1, 2), np.zeros(2 * len(texts), bool))


def _rows(texts: Sequence[Text], changed: str = "") -> guard_fit.Rows:
    chance = random.Random(4)
    made = [[chance.sample(range(2, _INPUTS), 3) for _ in range(2)] for _ in texts]
    return [
        [np.array([number ^ (text.family == changed) for number in row], np.int32) for row in own]
        for text, own in zip(texts, made, strict=True)
    ]


def _known(texts: Sequence[Text]) -> np.ndarray:
    return np.array([[True, text.family != _LEFT_OUT] for text in texts])


def test_a_text_that_is_left_out_moves_no_weight_of_the_network() -> None:
    texts = _texts()
    plain, changed = (
        guard_network.fit(texts, _passages(texts, name), _known(texts)) for name in ("", _LEFT_OUT)
    )
    assert [
        np.array_equal(one.first, other.first) and one.base == other.base
        for one, other in zip(plain, changed, strict=True)
    ] == [False, True]


def test_a_text_that_is_left_out_moves_no_weight_of_the_linear_model() -> None:
    texts = _texts()
    plain, changed = (
        guard_fit.fit(texts, _rows(texts, name), _INPUTS, _known(texts)) for name in ("", _LEFT_OUT)
    )
    assert [one == other for one, other in zip(plain, changed, strict=True)] == [False, True]


def test_networks_are_the_same_whichever_are_trained_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = _texts()
    together = guard_network.fit(texts, _passages(texts), _known(texts))
    monkeypatch.setattr(guard_network, "_SIDE_BY_SIDE", 1)
    apart = guard_network.fit(texts, _passages(texts), _known(texts))
    for one, other in zip(together, apart, strict=True):
        assert np.array_equal(one.first, other.first)
        assert one.base == other.base


def _bases(factor: int | None) -> tuple[float, float]:
    """Of both models, where the first text has another draw with inputs so many times as large."""
    texts = _texts()
    found, rows = _passages(texts), _rows(texts)
    again: dict[int, int] = {}
    if factor is not None:
        again[0] = len(texts)
        vectors = np.concatenate([found.rows, factor * found.rows[:2]])
        first = np.append(found.first, len(vectors))
        found = Passages(vectors, first, np.zeros(len(vectors), bool))
        rows = [*rows, [factor * row for row in rows[0]]]
        texts = [*texts, texts[0]]
    (network, _) = guard_network.fit(texts, found, _known(texts), again)
    ((_, linear), _) = guard_fit.fit(texts, rows, _INPUTS, _known(texts), again)
    return network.base, linear


@pytest.mark.long  # three trainings; it is a tool of developers
def test_another_draw_of_a_text_is_taken_instead_of_it_and_never_beside_it() -> None:
    none, same, other = (_bases(factor) for factor in (None, 1, 0))
    assert same == none
    assert [one == two for one, two in zip(other, none, strict=True)] == [False, False]


def test_a_network_learns_what_the_attacks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_network, "_EPOCHS", 100)
    texts = _texts()
    found = _passages(texts)
    for network in guard_network.fit(texts, found, _known(texts)):
        scores = network.scores(found.rows).reshape(len(texts), 2).max(1)
        is_attack = np.array([text.is_attack for text in texts])
        assert scores[is_attack].mean() > scores[~is_attack].mean() + 0.5
