"""A network with one hidden layer over passages, trained on texts (NumPy alone).

A text counts by its strongest passage. Where the place of an attack is known, only its passages may
be the strongest, and the others count as ordinary. Networks that are trained without some of the
texts are trained together: the passages are gathered once for all of them, and a text that one of
them does not know moves none of its weights.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np
from guard_families import Text
from guard_passages import Passages

Floats = np.ndarray

SEEDS = (0, 1, 2)
HIDDEN = 48
"""Of the network of one seed; the shipped one has those of all seeds side by side."""
_EPOCHS, _BATCH, _RATE, _DECAY, _PER_SET = 6, 64, 0.003, 1.2, 500
_MORE = {
    "own": 4800,
    "own bare": 800,
    "own requests": 800,
    "own direct": 2400,
    "own tools": 1600,
    "own forms": 2800,
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
_DROPPED, _OF = 128, 256
"""How many inputs of how many are left out. A byte of chance decides each: a float for each took a
third of the time of training."""
_WARM_STEPS = 60
_STEP_OF_GRADIENT = 2.0**-26
"""Gradients are rounded to it: processors add up in different orders, and without rounding the last
bit of a sum would in time change all weights."""
_FIRST_BASE = -2.0
_AS_ROWS = 20_000
_SIDE_BY_SIDE = 7
"""So many networks at most are trained by one process."""


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


def fit(
    texts: Sequence[Text], found: Passages, known: Floats, again: Mapping[int, int] | None = None
) -> list[Network]:
    """A network for each column of `known`, which says what texts it is trained on: the mean of
    several networks, which is less a matter of chance than one. `again`: the texts that have
    another draw, which is taken half of the time."""
    columns = range(0, known.shape[1], _SIDE_BY_SIDE)
    jobs = list(product(SEEDS, columns))
    given = _Given(texts, found, known, again or {})
    with ProcessPoolExecutor(initializer=_keep, initargs=(given,)) as pool:
        parts = dict(zip(jobs, pool.map(_train, jobs), strict=True))
    runs = [[each for at in columns for each in parts[seed, at]] for seed in SEEDS]
    return [
        Network(
            np.concatenate([run.first for run in own], axis=1),
            np.concatenate([run.bias for run in own]),
            np.concatenate([run.last for run in own]) / len(own),
            float(np.mean([run.base for run in own])),
        )
        for own in zip(*runs, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Given:
    texts: Sequence[Text]
    found: Passages
    known: Floats
    again: Mapping[int, int]


_kept: list[_Given] = []
"""In a process that trains: passages are too large to be sent with each job."""


def _keep(given: _Given) -> None:
    _kept[:] = [given]


def _train(job: tuple[int, int]) -> list[Network]:
    return _Run(_kept[0], *job).train()


class _Run:
    """One run of AdamW over the networks of some columns, side by side."""

    def __init__(self, given: _Given, seed: int, column: int) -> None:
        texts, found = given.texts, given.found
        known = given.known[:, column : column + _SIDE_BY_SIDE]
        self._found, self._chance = found, random.Random(seed)
        self._known = known.astype(np.float64)
        self._noise = np.random.default_rng(seed)
        self._labels = np.array([each.is_attack for each in texts], np.float64)
        self._is_placed = np.array([each.start >= 0 for each in texts])
        # Of all columns: which of them are trained side by side must change no order.
        is_usable = given.known.any(1) & (np.diff(found.first) > 0)
        self._again = {one: other for one, other in given.again.items() if is_usable[other]}
        drawn = set(given.again.values())
        self._groups: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            if is_usable[number] and number not in drawn:
                self._groups.setdefault(text.family, []).append(number)
        inputs, networks = found.rows.shape[1], known.shape[1]
        first = self._noise.normal(size=(inputs, HIDDEN)).astype(np.float64) * 0.08
        last = self._noise.normal(size=HIDDEN).astype(np.float64) * 0.3
        self._values = {
            "first": np.tile(first, (1, networks)),
            "bias": np.zeros(networks * HIDDEN, np.float64),
            "last": np.tile(last, networks),
            "base": np.full(networks, _FIRST_BASE, np.float64),
        }
        self._means = {name: np.zeros_like(each) for name, each in self._values.items()}
        self._squares = {name: np.zeros_like(each) for name, each in self._values.items()}

    def train(self) -> list[Network]:
        sizes = [min(len(own), _MORE.get(name, _PER_SET)) for name, own in self._groups.items()]
        steps, step = _EPOCHS * (sum(sizes) // _BATCH + 1), 0
        for _ in range(_EPOCHS):
            order = [
                number
                for family in sorted(self._groups)
                for number in self._sample(self._groups[family], family)
            ]
            order = [self._chance.choice((each, self._again.get(each, each))) for each in order]
            self._chance.shuffle(order)
            for at in range(0, len(order), _BATCH):
                step += 1
                gradient = self._gradient(order[at : at + _BATCH])
                warm = min(1.0, step / _WARM_STEPS)
                self._move(gradient, step, _RATE * warm * max(0.03, 1 - step / steps))
        values = self._values
        return [
            Network(
                values["first"][:, at : at + HIDDEN],
                values["bias"][at : at + HIDDEN],
                values["last"][at : at + HIDDEN],
                float(base),
            )
            for at, base in zip(range(0, len(values["bias"]), HIDDEN), values["base"], strict=True)
        ]

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
        self._drop(rows)
        hidden = rows @ self._values["first"] + self._values["bias"]
        hidden[hidden < 0] = 0
        networks = self._known.shape[1]
        by_network = hidden.reshape(len(at), networks, HIDDEN)
        last = self._values["last"].reshape(networks, HIDDEN)
        scores = (by_network * last).sum(2) + self._values["base"]
        blame = self._blame(np.array(batch), at, owner, scores)
        inner = (blame[:, :, None] * last).reshape(hidden.shape) * (hidden > 0)
        gradient = {
            "first": rows.T @ inner,
            "bias": inner.sum(0),
            "last": np.einsum("nfh,nf->fh", by_network, blame).ravel(),
            "base": blame.sum(0),
        }
        return {
            name: np.round(each / _STEP_OF_GRADIENT) * _STEP_OF_GRADIENT
            for name, each in gradient.items()
        }

    def _drop(self, values: Floats) -> None:
        """Some inputs are left out by chance, so that no single one decides."""
        chance = np.frombuffer(self._noise.bytes(values.size), np.uint8).reshape(values.shape)
        values *= chance >= _DROPPED
        values *= _OF / (_OF - _DROPPED)

    def _blame(self, batch: Floats, at: Floats, owner: Floats, scores: Floats) -> Floats:
        """Of each passage, for each network."""
        chances = 1 / (1 + np.exp(-np.clip(scores, -30, 30)))
        labels, is_placed = self._labels[batch][owner], self._is_placed[batch][owner]
        known, is_inside = self._known[batch], self._found.is_inside[at]
        able = np.where((~is_placed | is_inside)[:, None], scores, -np.inf)
        starts = np.nonzero(np.diff(owner, prepend=-1))[0]
        most = np.maximum.reduceat(able, starts, axis=0)[owner]
        is_top = (able == most) & np.isfinite(able)
        weight = np.where(labels > 0, 1.0, _WEIGHT_OF_CLEAN)[:, None]
        wrong = chances - (labels * 0.98 + 0.01)[:, None]
        blame: Floats = is_top * weight * wrong * known[owner] / np.maximum(known.sum(0), 1)
        is_clean = ((labels == 0) | (is_placed & ~is_inside))[:, None] * known[owner]
        blame += _WEIGHT_OF_PASSAGES * chances * is_clean / np.maximum(is_clean.sum(0), 1)
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
