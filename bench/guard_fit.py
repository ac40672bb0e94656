"""Logistic regression over sparse features, on the strongest passage of each text (NumPy alone)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from guard_families import Text

Floats = np.ndarray
Rows = list[list[np.ndarray]]
"""Of each text, of each passage, the numbers of its features."""

_MIN_COUNT = 12
_SEEDS = range(5)
_EPOCHS, _BATCH, _RATE, _DECAY, _PER_SET = 3, 64, 0.008, 0.6, 500
_MORE = {
    "own": 4000,
    "own bare": 800,
    "own requests": 800,
    "own direct": 2400,
    "own tools": 1600,
    "own forms": 2800,
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
    return names, [
        [np.array([at[name] for name in row if name in at], np.int32) for row in text]
        for text in named
    ]


def passage_scores(rows: Rows, weights: Sequence[float], base: float) -> Floats:
    """The score of each passage, of all texts one after the other."""
    own = np.array(weights)
    return np.array([base + own[row].sum() for text in rows for row in text], np.float64)


def fit(
    texts: Sequence[Text],
    rows: Rows,
    features: int,
    known: Floats,
    again: Mapping[int, int] | None = None,
) -> list[tuple[list[float], float]]:
    """Weights and base for each column of `known`, which says what texts a model is trained on: the
    mean of several runs, which is less a matter of chance than one. `again`: the texts that have
    another draw, which is taken half of the time."""
    given = _Given(texts, _Flat.of(rows), features, known, again or {})
    with ProcessPoolExecutor(initializer=_keep, initargs=(given,)) as pool:
        runs = np.mean(list(pool.map(_train, _SEEDS)), axis=0)
    return [(own[:-1].tolist(), float(own[-1])) for own in runs]


@dataclass(frozen=True, slots=True)
class _Flat:
    """The features of all passages one after the other: a batch is a few operations, not a loop."""

    features: Floats
    sizes: Floats
    """Of each passage."""
    starts: Floats
    first: list[int]
    """The first passage of each text, and how many passages there are."""

    @classmethod
    def of(cls, rows: Rows) -> _Flat:
        passages = [row for text in rows for row in text]
        sizes = np.array([len(row) for row in passages], np.int64)
        first = np.cumsum([0, *(len(text) for text in rows)]).tolist()
        return cls(np.concatenate(passages), sizes, np.cumsum(sizes) - sizes, first)

    def of_passages(self, numbers: Floats) -> tuple[Floats, Floats]:
        """The features of these passages, and beside each which of the passages has it."""
        sizes = self.sizes[numbers]
        of = np.repeat(np.arange(len(numbers)), sizes)
        before = np.cumsum(sizes) - sizes
        return self.features[np.arange(len(of)) + (self.starts[numbers] - before)[of]], of


@dataclass(frozen=True, slots=True)
class _Given:
    texts: Sequence[Text]
    rows: _Flat
    features: int
    known: Floats
    again: Mapping[int, int]


_kept: list[_Given] = []
"""In a process that trains: features are too large to be sent with each job."""


def _keep(given: _Given) -> None:
    _kept[:] = [given]


def _train(seed: int) -> Floats:
    return _Run(_kept[0], seed).train()


class _Run:
    """One run of AdamW over models side by side; the base is the last of the parameters of each."""

    def __init__(self, given: _Given, seed: int) -> None:
        texts, known = given.texts, given.known
        self._labels = np.array([text.is_attack for text in texts], np.float64)
        self._rows, self._known = given.rows, known.astype(np.float64)
        self._again, drawn = given.again, set(given.again.values())
        self._chance = random.Random(seed)
        self._groups: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            if known[number].any() and number not in drawn:
                self._groups.setdefault(text.family, []).append(number)
        size = known.shape[1], given.features + 1
        self._parameters = np.zeros(size)
        self._parameters[:, -1] = _FIRST_BASE
        self._means, self._squares = np.zeros(size), np.zeros(size)

    def train(self) -> Floats:
        step = 0
        for _ in range(_EPOCHS):
            order = [
                number
                for family in sorted(self._groups)
                for number in self._sample(self._groups[family], family)
            ]
            order = [self._chance.choice((each, self._again.get(each, each))) for each in order]
            self._chance.shuffle(order)
            steps = _EPOCHS * (len(order) // _BATCH + 1)
            for at in range(0, len(order), _BATCH):
                step += 1
                gradient = self._gradient(order[at : at + _BATCH])
                self._move(gradient, step, _RATE * max(0.03, 1 - step / steps))
        return self._parameters

    def _sample(self, own: list[int], family: str) -> list[int]:
        return self._chance.sample(own, min(len(own), _MORE.get(family, _PER_SET)))

    def _chosen(self, text: int) -> Floats:
        every = range(self._rows.first[text], self._rows.first[text + 1])
        is_few = len(every) <= _PASSAGES_A_TEXT
        return np.array(every if is_few else self._chance.sample(every, _PASSAGES_A_TEXT), np.int64)

    def _gradient(self, batch: Sequence[int]) -> Floats:
        """Of the strongest passage of each text, and of all passages of ordinary texts."""
        chosen = [self._chosen(text) for text in batch]
        owner = np.repeat(np.arange(len(batch)), [len(each) for each in chosen])
        gradients = np.zeros_like(self._parameters)
        if not len(owner):
            return gradients
        flat, of = self._rows.of_passages(np.concatenate(chosen))
        labels, known = self._labels[list(batch)][owner], self._known[list(batch)]
        for own, gradient, is_known in zip(self._parameters, gradients, known.T, strict=True):
            scores = np.bincount(of, weights=own[flat], minlength=len(owner)) + own[-1]
            chances = 1 / (1 + np.exp(-scores))
            most = np.full(len(batch), -np.inf)
            np.maximum.at(most, owner, scores)
            tops = np.nonzero(scores == most[owner])[0]
            tops = tops[np.unique(owner[tops], return_index=True)[1]]
            tops = tops[is_known[owner[tops]] > 0]
            weight = np.where(labels[tops] > 0, 1.0, _WEIGHT_OF_CLEAN)
            blame = np.zeros(len(owner))
            blame[tops] = weight * (chances[tops] - (labels[tops] * 0.98 + 0.01))
            blame /= max(1.0, is_known.sum())
            is_clean = (labels == 0) & (is_known[owner] > 0)
            if is_clean.any():
                blame[is_clean] += _WEIGHT_OF_PASSAGES * chances[is_clean] / is_clean.sum()
            gradient[:] = np.bincount(flat, weights=blame[of], minlength=len(own))
            gradient[-1] = blame.sum()
        return gradients

    def _move(self, gradient: Floats, step: int, rate: float) -> None:
        self._means *= 0.9
        self._means += 0.1 * gradient
        self._squares *= 0.999
        self._squares += 0.001 * gradient * gradient
        self._parameters[:, :-1] *= 1 - rate * _DECAY
        scale = np.sqrt(self._squares / (1 - 0.999**step)) + 1e-8
        self._parameters -= rate * self._means / (1 - 0.9**step) / scale
