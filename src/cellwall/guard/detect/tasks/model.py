"""The weights of `weights.json`, and what they say of a sentence.

A linear model: trained by bench/train_tasks.py, offline; here it is a sum over a sentence's
features. How well it does is in docs/guard.md (GRD-10).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cellwall.guard.detect.tasks.features import Features, Sentence


@dataclass(frozen=True, slots=True)
class Model:
    """Weights by the name of a feature. Words and features that it does not know weigh nothing."""

    weights: dict[str, float]
    words: dict[str, float]
    verbs: dict[str, float]
    """Of the one word that asks."""
    gate: float
    """What a sentence must reach with its company before its surroundings are looked at."""
    threshold: float
    """What sentence and surroundings must reach together to be told."""

    def weigh_sentence(self, sentence: Sentence) -> float:
        """What it is worth by itself."""
        words = self.words
        worth = sum([words[word] for word in words.keys() & sentence.words])
        return worth + self.verbs.get(sentence.verb, 0.0) + self.weigh(sentence.features)

    def weigh(self, features: Features) -> float:
        weights = self.weights
        return sum([weights[name] * value for name, value in features.items() if name in weights])


def probability(weight: float) -> float:
    """That of an attack, were attacks as common as the rest."""
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, weight))))


@cache
def model() -> Model:
    """Read once, when it is first needed."""
    text = resources.files(__package__).joinpath("weights.json").read_text("utf-8")
    told = json.loads(text)
    return Model(
        weights=told["features"],
        words=told["words"],
        verbs=told["verbs"],
        gate=told["gate"],
        threshold=told["threshold"],
    )
