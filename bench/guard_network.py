"""A network with one hidden layer over passages, trained on texts (NumPy alone).

A text counts by its strongest passage. Where the place of an attack is known, only its passages may
be the strongest, and the others count as ordinary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from guard_families import Text
from guard_passages import Passages

Floats = np.ndarray

SEEDS = (0, 1, 2)
HIDDEN = 32
"""Of the network of one seed; the shipped one has those of all seeds side by side."""
_EPOCHS, _BATCH, _RATE, _DECAY, _PER_SET = 4, 64, 0.003, 1.2, 500
_MORE = {
    "own": 3000,
    "own direct": 1500,
    "own tools": 1000,
    "own forms": 1750,
    "near plain_forms": 800,
    "carrier cut": 2500,
    "carrier snippet": 1000,
    "prompts roleplay": 1500,
    "near about": 800,
    "near email": 800,
    "near story": 800,
    "carrier agents": 800,
    "carrier readme": 600,
}
_PASSAGES_A_TEXT, _WEIGHT_OF_CLEAN, _WEIGHT_OF_PASSAGES = 16, 4.0, 3.0
_DROPPED, _OF = 90, 256
"""How many inputs of how many are left out. A byte of chance decides each: a float for each took a
third of the time of training."""
_WARM_STEPS = 60
_STEP_OF_GRADIENT = 2.0**-26
"""Gradients are rounded to it: processors add up in different orders, and without rounding the last
bit of a sum would in time change all weights."""
_FIRST_BASE = -2.0
_AS_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Network:
    first: Floats
    bias: Floats
    last: Floats
    base: float

    def scores(self, rows: Floats) -> Floats:
        parts = [
            np.maximum(rows[at : at + _AS_ROWS].astype(np.float64) @ self.first + self.bias, 0)
            @ self.last
            for at in range(0, len(rows), _AS_ROWS)
        ]
        return np.concatenate([np.zeros(0, np.float64), *parts]) + self.base


def fit(texts: Sequence[Text], found: Passages, kept: Sequence[int]) -> Network:
    """Trained on the texts with these numbers: the mean of several networks, which is less a matter
    of chance than one."""
    runs = [_Run(texts, found, kept, seed).train() for seed in SEEDS]
    return Network(
        np.concatenate([run.first for run in runs], axis=1),
        np.concatenate([run.bias for run in runs]),
        np.concatenate([run.last for run in runs]) / len(runs),
        float(np.mean([run.base for run in runs])),
    )


class _Run:
    """One run of AdamW."""

    def __init__(
        self, texts: Sequence[Text], found: Passages, kept: Sequence[int], seed: int
    ) -> None:
        self._found, self._chance = found, random.Random(seed)
        self._noise = np.random.default_rng(seed)
        self._labels = np.array([each.is_attack for each in texts], np.float64)
        self._is_placed = np.array([each.start >= 0 for each in texts])
        self._groups: dict[str, list[int]] = {}
        for number in kept:
            if found.first[number + 1] > found.first[number]:
                self._groups.setdefault(texts[number].family, []).append(number)
        inputs = found.rows.shape[1]
        self._values = {
            "first": self._noise.normal(size=(inputs, HIDDEN)).astype(np.float64) * 0.08,
            "bias": np.zeros(HIDDEN, np.float64),
            "last": self._noise.normal(size=HIDDEN).astype(np.float64) * 0.3,
            "base": np.array([_FIRST_BASE], np.float64),
        }
        self._means = {name: np.zeros_like(each) for name, each in self._values.items()}
        self._squares = {name: np.zeros_like(each) for name, each in self._values.items()}

    def train(self) -> Network:
        sizes = [min(len(own), _MORE.get(name, _PER_SET)) for name, own in self._groups.items()]
        steps, step = _EPOCHS * (sum(sizes) // _BATCH + 1), 0
        for _ in range(_EPOCHS):
            order = [
                number
                for family in sorted(self._groups)
                for number in self._sample(self._groups[family], family)
            ]
            self._chance.shuffle(order)
            for at in range(0, len(order), _BATCH):
                step += 1
                gradient = self._gradient(order[at : at + _BATCH])
                warm = min(1.0, step / _WARM_STEPS)
                self._move(gradient, step, _RATE * warm * max(0.03, 1 - step / steps))
        values = self._values
        return Network(values["first"], values["bias"], values["last"], float(values["base"][0]))

    def _sample(self, own: list[int], family: str) -> list[int]:
        return self._chance.sample(own, min(len(own), _MORE.get(family, _PER_SET)))

    def _chosen(self, text: int) -> Sequence[int]:
        start, end = int(self._found.first[text]), int(self._found.first[text + 1])
        if end - start <= _PASSAGES_A_TEXT:
            return range(start, end)
        inside = start + np.nonzero(self._found.is_inside[start:end])[0][:8]
        return sorted({*self._chance.sample(range(start, end), _PASSAGES_A_TEXT), *inside.tolist()})

    def _gradient(self, batch: Sequence[int]) -> dict[str, Floats]:
        chosen = [self._chosen(text) for text in batch]
        at = np.concatenate([np.array(each) for each in chosen])
        owner = np.repeat(np.arange(len(batch)), [len(each) for each in chosen])
        rows = self._found.rows[at].astype(np.float64)
        rows *= self._kept_of(rows.shape)
        before = rows @ self._values["first"] + self._values["bias"]
        kept = self._kept_of(before.shape)
        hidden = np.maximum(before, 0) * kept
        scores = hidden @ self._values["last"] + self._values["base"][0]
        blame = self._blame(np.array(batch), at, owner, scores)
        inner = np.outer(blame, self._values["last"]) * (before > 0) * kept
        gradient = {
            "first": rows.T @ inner,
            "bias": inner.sum(0),
            "last": hidden.T @ blame,
            "base": np.array([blame.sum()]),
        }
        return {
            name: np.round(each / _STEP_OF_GRADIENT) * _STEP_OF_GRADIENT
            for name, each in gradient.items()
        }

    def _kept_of(self, shape: tuple[int, ...]) -> Floats:
        """Some inputs are left out by chance, so that no single one decides."""
        chance = np.frombuffer(self._noise.bytes(math.prod(shape)), np.uint8).reshape(shape)
        return (chance >= _DROPPED) * np.float64(_OF / (_OF - _DROPPED))

    def _blame(self, batch: Floats, at: Floats, owner: Floats, scores: Floats) -> Floats:
        chances = 1 / (1 + np.exp(-np.clip(scores, -30, 30)))
        labels, is_placed = self._labels[batch], self._is_placed[batch][owner]
        is_inside = self._found.is_inside[at]
        able = np.where(~is_placed | is_inside, scores, -np.inf)
        most = np.full(len(batch), -np.inf, np.float64)
        np.maximum.at(most, owner, able)
        tops = np.nonzero((able == most[owner]) & np.isfinite(able))[0]
        _, firsts = np.unique(owner[tops], return_index=True)
        tops = tops[firsts]
        label = labels[owner[tops]]
        blame = np.zeros(len(at), np.float64)
        weight = np.where(label > 0, 1.0, _WEIGHT_OF_CLEAN)
        blame[tops] += weight * (chances[tops] - (label * 0.98 + 0.01)) / len(batch)
        is_clean = (labels[owner] == 0) | (is_placed & ~is_inside)
        if is_clean.any():
            blame[is_clean] += _WEIGHT_OF_PASSAGES * chances[is_clean] / is_clean.sum()
        return blame

    def _move(self, gradient: dict[str, Floats], step: int, rate: float) -> None:
        for name in self._values:
            value, own, means, squares = (
                self._values[name],
                gradient[name],
                self._means[name],
                self._squares[name],
            )
            means += 0.1 * (own - means)
            squares += 0.001 * (own * own - squares)
            if name == "first":
                value *= 1 - rate * _DECAY
            scale = np.sqrt(squares / (1 - 0.999**step)) + 1e-8
            value -= (rate / (1 - 0.9**step)) * means / scale
