"""A linear model over the features of a passage, and the check of its files (GRD-10).

The weights are checked by hash, and the lexicon by a hash in the weights: a model that cannot be
loaded is an error, never a silent absence.
Features are named by `features.describe`; here they are added up without making their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from cellwall.core.errors import CellwallError
from cellwall.guard.detect.passages.features import PassageTraits, Surroundings, TextPassage, place

WEIGHTS_SHA256 = "b4ca4c723015e284be28bfde86bc6b98e935e133d07e0c31c9a021e0f5aebe2f"
"""Of weights.json; `bench/guard_train.py --write` writes it, and bench/guard_data/MANIFEST.toml has
it too."""

MAX_MODEL_BYTES = 8_000_000

WEIGHT_DIGITS = 3
"""Decimals of each weight; an exact sum has no more."""

Pairs = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class PassageModel:
    """A weight for each feature, and the scores from which a passage is reported."""

    weights: Mapping[str, float]
    base: float
    denial: float
    """Below this, the classifier contradicts what a rule has found."""
    weak: float
    assent: float
    """From here on, the classifier supports what a rule has found."""
    likely: float
    certain: float
    _both: Pairs = field(default_factory=dict)
    _within: Pairs = field(default_factory=dict)
    _by: Pairs = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            for joint, pairs in ((" & ", self._both), (" in ", self._within), (" by ", self._by)):
                left, found, right = name.partition(joint)
                if found:
                    pairs.setdefault(left, {})[right] = weight

    def scorer(self, passages: Sequence[TextPassage], text: Surroundings) -> PassageScorer:
        return PassageScorer(self, passages, text)


class PassageScorer:
    """Scores the passages of one text: what the text adds to a trait is added up once."""

    def __init__(
        self, model: PassageModel, passages: Sequence[TextPassage], text: Surroundings
    ) -> None:
        self._model, self._passages, self._text = model, passages, text
        weights = model.weights
        self._base = model.base + sum(weights.get(name, 0.0) for name in text.traits)
        self._in_text: dict[str, float] = {}

    def score(self, number: int) -> float:
        # Traits are sets, whose order differs from process to process, and so does the last digit
        # of a sum: a text at a limit would be found in one process and not in the next.
        total = self._of(place(self._passages, number, self._text))
        return round(total, WEIGHT_DIGITS)

    def _of(self, placed: PassageTraits) -> float:
        model, total = self._model, self._base
        weights, paired = model.weights, placed.paired
        total += sum(weights.get(name, 0.0) for name in placed.own)
        total += sum(weights.get(f"beside {name}", 0.0) for name in placed.beside)
        for at, name in enumerate(paired):
            total += self._within_text(name)
            row = model._both.get(name)  # noqa: SLF001  # the scorer is part of the model
            if row is not None:
                for other in paired[at + 1 :]:
                    if other in row:
                        total += row[other]
            row = model._by.get(name)  # noqa: SLF001  # as above
            if row is not None:
                for other in placed.beside:
                    if other in row:
                        total += row[other]
        return total

    def _within_text(self, name: str) -> float:
        known = self._in_text.get(name)
        if known is None:
            row = self._model._within.get(name, {})  # noqa: SLF001  # as above
            known = sum(row.get(where, 0.0) for where in self._text.traits)
            self._in_text[name] = known
        return known


@cache
def model() -> PassageModel:
    """The shipped model."""
    return parse_model(_shipped("weights.json"), _shipped("lexicon.toml"))


def _shipped(name: str) -> bytes:
    """A file of the model; empty if it cannot be read."""
    file = resources.files("cellwall.guard.detect.passages") / name
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_MODEL_BYTES)
    except OSError:
        return b""


def parse_model(data: bytes, lexicon: bytes) -> PassageModel:
    """The model, or `CellwallError` if the data is not what was trained."""
    if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
        raise _damaged()
    told = json.loads(data)
    # Attack: without its words the model finds nothing, and says so of every text.
    if hashlib.sha256(lexicon).hexdigest() != told["lexicon_sha256"]:
        raise _damaged()
    limits = (told[name] for name in ("denial", "weak", "assent", "likely", "certain"))
    return PassageModel(told["features"], told["base"], *limits)


def _damaged() -> CellwallError:
    return CellwallError(
        "the guard's classifier is missing or damaged, so no text can be looked at",
        hint="Install Cellwall anew.",
        code="CW-NO-CLASSIFIER",
    )
