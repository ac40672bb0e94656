"""Finds passages that instruct the model which reads a text, with a linear model (GRD-10)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from cellwall.guard.detect.passages.features import TextPassage, candidates, read, shape_of
from cellwall.guard.detect.passages.lexicon import cues
from cellwall.guard.detect.passages.scores import PassageModel, model
from cellwall.guard.detect.scoring import limit_hits
from cellwall.guard.normalise.characters import lowered
from cellwall.guard.report import Hit
from cellwall.parsing.budget import checkpoint
from cellwall.parsing.matching import WordIndex

_MAX_HITS = 128
_MIN_CHARACTERS = 24
_SHORT_CHARACTERS = 8_000
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
class PassageFinding:
    """What the classifier says of a text."""

    hits: tuple[Hit, ...] = ()
    traits: frozenset[str] = frozenset()
    """What the text is as a whole."""
    assents: bool = False
    """Whether any passage may instruct a model, so that a rule that says so is believed."""
    denies: bool = False
    """Whether no passage comes near to it, so that a rule needs more than its wording."""


def find(text: str) -> PassageFinding:
    """Hits of rule "passage.instruction" in a text, in its order."""
    if len(text) < _MIN_CHARACTERS:
        return PassageFinding(traits=shape_of(text))
    known, shape = model(), shape_of(text)
    hits: list[Hit] = []
    traits, best = set(shape), -math.inf
    for start, end in suspect_parts(text):
        checkpoint()
        passages, surroundings = read(text[start:end], shape)
        traits |= surroundings.traits
        scorer = known.scorer(passages, surroundings)
        for number in candidates(passages):
            score = scorer.score(number)
            best = max(best, score)
            if score >= known.weak:
                hit = _hit(passages[number], score, known, start)
                if len(passages) == 1:
                    if _ASKS.isdisjoint(passages[0].traits):
                        continue
                    if _SPEAKS_TO_MODEL.isdisjoint(passages[0].traits):
                        hit = replace(hit, severity="low")
                hits.append(hit)
    # Attack: many decoys beside the passage that matters. Of too many, neighbours become one.
    return PassageFinding(
        limit_hits(hits, _MAX_HITS),
        frozenset(traits),
        assents=best >= known.assent,
        denies=-math.inf < best < known.denial,  # of a text without candidates it says nothing
    )


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
