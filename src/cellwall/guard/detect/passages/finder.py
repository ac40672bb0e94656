"""Finds passages that instruct the model which reads a text, with a linear model (GRD-10).

The weights come from `bench/guard_train.py`. They are checked by hash, and the lexicon by a hash in
the weights: a model that cannot be loaded is an error, never a silent absence.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from cellwall.core.errors import CellwallError
from cellwall.guard.detect.passages.features import (
    TextPassage,
    candidates,
    cues,
    describe,
    read,
)
from cellwall.guard.detect.scoring import limit_hits
from cellwall.guard.normalise.characters import lowered
from cellwall.guard.report import Hit
from cellwall.parsing.budget import checkpoint
from cellwall.parsing.matching import WordIndex

WEIGHTS_SHA256 = "bb6a9d767973aef9a1a4c1f49e2f2328e3b7d8902c14159b82f1626c3e7b4102"
"""Of weights.json; `bench/guard_train.py --write` prints it."""
MAX_MODEL_BYTES = 8_000_000
_MAX_HITS = 128
_MIN_CHARACTERS = 24
_SHORT_CHARACTERS = 4_000
_AROUND_CHARACTERS = 400
_CLOSE_BYTES = 100
_ASKS = frozenset(
    ("order", "order inside", "you", "me", "modal", "please", "ends question", "role", "marker")
)
"""Without any of these, a text of one passage is a list of words."""
_SPEAKS_TO_MODEL = frozenset(
    {"override", "machine", "role", "leak", "instr", "quiet", "ai", "marker", "you"}
)
"""Without any of these, a text of one passage is a command or a remark, and at most doubtful."""


@dataclass(frozen=True, slots=True)
class PassageModel:
    """A weight for each feature, and the scores from which a passage is reported."""

    weights: Mapping[str, float]
    base: float
    weak: float
    likely: float
    certain: float

    def score(self, features: Iterable[str]) -> float:
        weights = self.weights
        return self.base + sum(weights[name] for name in set(features) if name in weights)


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
    return PassageModel(
        told["features"], told["base"], told["weak"], told["likely"], told["certain"]
    )


def _damaged() -> CellwallError:
    return CellwallError(
        "the guard's classifier is missing or damaged, so no text can be looked at",
        hint="Install Cellwall anew.",
        code="CW-NO-CLASSIFIER",
    )


@dataclass(frozen=True, slots=True)
class PassageFinding:
    """What the classifier says of a text."""

    hits: tuple[Hit, ...] = ()
    is_for_reader: bool = False
    """Whether the text as a whole instructs its reader, as a system prompt or a manual for agents
    does."""
    is_likely: bool = False
    """Whether any passage is likely to instruct a model."""


def find(text: str) -> PassageFinding:
    """Hits of rule "passage.instruction" in a text, in its order."""
    if len(text) < _MIN_CHARACTERS:
        return PassageFinding()
    known = model()
    hits: list[Hit] = []
    is_likely = False
    is_for_reader = False
    for start, end in suspect_parts(text):
        checkpoint()
        passages, surroundings = read(text[start:end])
        is_for_reader = is_for_reader or "text to a reader" in surroundings.traits
        for number in candidates(passages):
            score = known.score(describe(passages, number, surroundings))
            if score >= known.weak:
                hit = _hit(passages[number], score, known, start)
                if len(passages) == 1:
                    if _ASKS.isdisjoint(passages[0].traits):
                        continue
                    if _SPEAKS_TO_MODEL.isdisjoint(passages[0].traits):
                        hit = replace(hit, severity="low")
                hits.append(hit)
                is_likely = is_likely or score >= known.likely
    # Attack: many decoys beside the passage that matters. Of too many, neighbours become one.
    return PassageFinding(limit_hits(hits, _MAX_HITS), is_for_reader, is_likely)


def suspect_parts(text: str) -> list[tuple[int, int]]:
    """What is read of a text: all of a short one, and of a long one the surroundings of the phrases
    that instructions to a model have. A classifier over everything would take most of a scan."""
    if len(text) <= _SHORT_CHARACTERS:
        return [(0, len(text))]
    places = _places(text)
    parts: list[tuple[int, int]] = []
    for at in places:
        start, end = max(0, at - _AROUND_CHARACTERS), min(len(text), at + _AROUND_CHARACTERS)
        if parts and start <= parts[-1][1] and end - parts[-1][0] <= _SHORT_CHARACTERS:
            parts[-1] = parts[-1][0], end
        else:
            parts.append((max(start, parts[-1][1]) if parts else start, end))
    return parts


def _places(text: str) -> list[int]:
    """Where the cues stand, in characters; of those that stand close together, the first."""
    data = lowered(text).encode("utf-8", "surrogatepass")
    found: list[int] = []
    seen, characters = 0, 0
    # Attack: thousands of cues before the passage that matters. None is left out; where each of
    # them is read, the budget of the scan ends it, and the text is not shown.
    for _, end in _cue_index().places(data, len(data), apart_bytes=_CLOSE_BYTES):
        characters += len(data[seen:end].decode("utf-8", "ignore"))
        seen = end
        found.append(characters)
    return found


@cache
def _cue_index() -> WordIndex:
    return WordIndex([cue.encode() for cue in cues()])


def _hit(passage: TextPassage, score: float, known: PassageModel, offset: int) -> Hit:
    is_certain, is_likely = score >= known.certain, score >= known.likely
    return Hit(
        category="instruction",
        severity="high" if is_certain else "medium" if is_likely else "low",
        rule="passage.instruction",
        message="Instructs the model that reads this text (classifier).",
        start=offset + passage.start,
        end=offset + passage.end,
        score=round(_probability(score - known.likely), 4),
    )


def _probability(weight: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, weight))))
