"""A linear model over the named features of passages (GRD-10).

Features are named by `features.describe`; here they are added up without making their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cellwall.guard.detect.passages.features import PassageTraits, Surroundings

WEIGHT_DIGITS = 3
"""Decimals of each weight; an exact sum has no more."""

Pairs = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A weight for each feature."""

    weights: Mapping[str, float]
    base: float
    both: Pairs = field(default_factory=dict)
    """The weights of two traits of one passage, by the names of both."""
    within: Pairs = field(default_factory=dict)
    """The weights of a trait of a passage and a trait of its text."""
    by: Pairs = field(default_factory=dict)
    """The weights of a trait of a passage and a trait of the passage beside it."""

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            for joint, pairs in ((" & ", self.both), (" in ", self.within), (" by ", self.by)):
                left, found, right = name.partition(joint)
                if found:
                    pairs.setdefault(left, {})[right] = weight

    def scorer(self, text: Surroundings) -> LinearScorer:
        return LinearScorer(self, text)


class LinearScorer:
    """Scores the passages of one text: what the text adds to a trait is added up once."""

    def __init__(self, model: LinearModel, text: Surroundings) -> None:
        self._model, self._text = model, text
        weights = model.weights
        self._base = model.base + sum(weights.get(name, 0.0) for name in text.traits)
        self._in_text: dict[str, float] = {}

    def score(self, placed: PassageTraits) -> float:
        # Traits are sets, whose order differs from process to process, and so does the last digit
        # of a sum: a text at a limit would be found in one process and not in the next.
        return round(self._of(placed), WEIGHT_DIGITS)

    def _of(self, placed: PassageTraits) -> float:
        model, total = self._model, self._base
        weights, paired = model.weights, placed.paired
        total += sum(weights.get(name, 0.0) for name in placed.own)
        total += sum(weights.get(f"beside {name}", 0.0) for name in placed.beside)
        for at, name in enumerate(paired):
            total += self._within_text(name)
            row = model.both.get(name)
            if row is not None:
                for other in paired[at + 1 :]:
                    if other in row:
                        total += row[other]
            row = model.by.get(name)
            if row is not None:
                for other in placed.beside:
                    if other in row:
                        total += row[other]
        return total

    def _within_text(self, name: str) -> float:
        known = self._in_text.get(name)
        if known is None:
            row = self._model.within.get(name, {})
            known = sum(row.get(where, 0.0) for where in self._text.traits)
            self._in_text[name] = known
        return known
