"""Logistic regression over sparse features, on the strongest passage of each text (NumPy alone)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from guard_families import Text

Rows = list[list[list[int]]]
"""Of each text, of each passage, the numbers of its features."""
Floats = np.ndarray

_MIN_COUNT = 12
_SEEDS = range(5)
_EPOCHS, _BATCH, _RATE, _DECAY, _PER_SET = 3, 64, 0.008, 0.6, 500
_MORE = {
    "own": 2500,
    "own direct": 1500,
    "own tools": 1000,
    "own forms": 1750,
    "near plain_forms": 800,
    "carrier cut": 3000,
    "carrier snippet": 1000,
    "near email": 800,
    "prompts roleplay": 1500,
}
_WEIGHT_OF_CLEAN, _PASSAGES_A_TEXT, _WEIGHT_OF_PASSAGES = 4.0, 30, 3.0
_FIRST_BASE = -2.0


def number_features(
    counted: Sequence[Sequence[Sequence[str]]], named: Sequence[Sequence[Sequence[str]]]
) -> tuple[list[str], Rows]:
    """The features that are frequent in the texts of training, and all texts by their numbers."""
    counts: dict[str, int] = {}
    for text in counted:
        for row in text:
            for name in row:
                counts[name] = counts.get(name, 0) + 1
    names = sorted(name for name, count in counts.items() if count >= _MIN_COUNT)
    at = {name: number for number, name in enumerate(names)}
    return names, [[[at[name] for name in row if name in at] for row in text] for text in named]


def passage_scores(rows: Rows, weights: Sequence[float], base: float) -> Floats:
    """The score of each passage, of all texts one after the other."""
    scores = [base + sum(weights[n] for n in row) for text in rows for row in text]
    return np.array(scores, np.float64)


def fit(texts: Sequence[Text], rows: Rows, features: int) -> tuple[list[float], float]:
    """Weights and base: the mean of several runs, which is less a matter of chance than one."""
    runs = [_Run(texts, rows, features, seed).train() for seed in _SEEDS]
    weights = np.mean([weights for weights, _ in runs], axis=0)
    return [float(each) for each in weights], float(np.mean([base for _, base in runs]))


class _Run:
    """One run of AdamW; the base is the last of the parameters."""

    def __init__(self, texts: Sequence[Text], rows: Rows, features: int, seed: int) -> None:
        self._labels = [float(text.is_attack) for text in texts]
        self._rows = [[np.array(row, dtype=np.int64) for row in text] for text in rows]
        self._chance = random.Random(seed)
        self._groups: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            self._groups.setdefault(text.family, []).append(number)
        self._parameters = np.zeros(features + 1)
        self._parameters[-1] = _FIRST_BASE
        self._means, self._squares = np.zeros(features + 1), np.zeros(features + 1)

    def train(self) -> tuple[Floats, float]:
        step = 0
        for _ in range(_EPOCHS):
            order = [
                number
                for family in sorted(self._groups)
                for number in self._sample(self._groups[family], family)
            ]
            self._chance.shuffle(order)
            steps = _EPOCHS * (len(order) // _BATCH + 1)
            for at in range(0, len(order), _BATCH):
                step += 1
                gradient = self._gradient(order[at : at + _BATCH])
                self._move(gradient, step, _RATE * max(0.03, 1 - step / steps))
        return self._parameters[:-1], float(self._parameters[-1])

    def _sample(self, own: list[int], family: str) -> list[int]:
        return self._chance.sample(own, min(len(own), _MORE.get(family, _PER_SET)))

    def _gradient(self, batch: Sequence[int]) -> Floats:
        """Of the strongest passage of each text, and of all passages of ordinary texts."""
        passages: list[Floats] = []
        owners: list[int] = []
        for owner, number in enumerate(batch):
            own = self._rows[number]
            chosen = (
                own if len(own) <= _PASSAGES_A_TEXT else self._chance.sample(own, _PASSAGES_A_TEXT)
            )
            passages += chosen
            owners += [owner] * len(chosen)
        size = len(self._parameters)
        if not passages:
            return np.zeros(size)
        flat = np.concatenate(passages)
        of = np.repeat(np.arange(len(passages)), [len(each) for each in passages])
        base = self._parameters[-1]
        scores = np.bincount(of, weights=self._parameters[flat], minlength=len(passages)) + base
        chances = 1 / (1 + np.exp(-scores))
        blame = np.zeros(len(passages))
        strongest: dict[int, int] = {}
        for passage, owner in enumerate(owners):
            if owner not in strongest or scores[passage] > scores[strongest[owner]]:
                strongest[owner] = passage
        for owner, passage in strongest.items():
            label = self._labels[batch[owner]]
            weight = 1.0 if label else _WEIGHT_OF_CLEAN
            blame[passage] += weight * (chances[passage] - (label * 0.98 + 0.01)) / len(batch)
        is_clean = np.array([not self._labels[batch[owner]] for owner in owners])
        if is_clean.any():
            blame[is_clean] += _WEIGHT_OF_PASSAGES * chances[is_clean] / is_clean.sum()
        gradient = np.bincount(flat, weights=blame[of], minlength=size)
        gradient[-1] = blame.sum()
        return gradient

    def _move(self, gradient: Floats, step: int, rate: float) -> None:
        self._means = 0.9 * self._means + 0.1 * gradient
        self._squares = 0.999 * self._squares + 0.001 * gradient * gradient
        self._parameters[:-1] *= 1 - rate * _DECAY
        scale = np.sqrt(self._squares / (1 - 0.999**step)) + 1e-8
        self._parameters -= rate * self._means / (1 - 0.9**step) / scale
