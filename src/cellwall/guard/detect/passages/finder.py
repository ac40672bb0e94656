"""Finds passages that instruct the model which reads a text, by a classifier (GRD-10)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from cellwall.core.outcomes import Severity
from cellwall.guard.ctext.passages import Passages, SurroundingsRecord
from cellwall.guard.detect.passages.isolation import isolated
from cellwall.guard.detect.passages.lexicon import cues
from cellwall.guard.detect.passages.reading import passage_of, read_passages, reader
from cellwall.guard.detect.passages.scores import PassageModel, model
from cellwall.guard.detect.passages.surroundings import shape_bits, shape_of
from cellwall.guard.detect.passages.traits import trait_numbers
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
_MANY_WORDS, _FEW_KINDS = 80, 0.1
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


def find(text: str, lower: bytes | None = None) -> PassageFinding:
    """Hits of rule "passage.instruction" in a text, in its order. `lower`: the text in lower case,
    character by character, in UTF-8, where it is known."""
    if len(text) < _MIN_CHARACTERS:
        return PassageFinding(traits=shape_of(text))
    known, shape = model(), shape_of(text)
    shift = known.shift(shape)
    bits = of_parts = shape_bits(shape)
    parts, read = suspect_parts(text, lower), list[tuple[Passages, SurroundingsRecord]]()
    for start, end in parts:
        checkpoint()
        passages = read_passages(text[start:end])
        surroundings = reader().surroundings(passages, bits)
        of_parts |= surroundings.traits
        read.append((passages, surroundings))
    found = [
        _Candidate(passages, number, start, score)
        for (start, _), (passages, _), scores in zip(
            parts, read, known.scores(_within_budget(read)), strict=True
        )
        for number, score in zip(passages.chosen, scores, strict=True)
    ]
    compared = isolated([each.score for each in found], known.isolation)
    standing = [score - shift for score in compared]
    hits = [
        hit
        for each, score in zip(found, standing, strict=True)
        if (hit := _hit(each, score, known, alone=each.score - shift)) is not None
    ]
    best = max(standing, default=-math.inf)
    # Attack: one instruction a thousand times, so that none of them stands out.
    is_strong = any(each.score >= known.certain for each in found)
    # Of a text without candidates it says nothing.
    is_far = -math.inf < best < known.denial and not is_strong
    # Attack: many decoys beside the passage that matters. Of too many, neighbours become one.
    return PassageFinding(
        limit_hits(hits, _MAX_HITS),
        trait_numbers().text_named(of_parts),
        assents=best >= known.assent or is_strong,
        denies=is_far and not any(_is_repeated(text[start:end]) for start, end in parts),
    )


def _within_budget(
    parts: Iterable[tuple[Passages, SurroundingsRecord]],
) -> Iterator[tuple[Passages, SurroundingsRecord]]:
    for part in parts:
        checkpoint()
        yield part


def _is_repeated(text: str) -> bool:
    """Attack: one word a hundred times beside the passage that matters, so that the means of its
    surroundings are like those of no text, and the network's score says nothing."""
    words = text.lower().split()
    return len(words) >= _MANY_WORDS and len(set(words)) <= _FEW_KINDS * len(words)


def suspect_parts(text: str, lower: bytes | None = None) -> list[tuple[int, int]]:
    """What is read of a text, in lower case `lower`: all of a short one, and of a long one the
    surroundings of the phrases that instructions to a model have. A classifier over everything
    would take most of a scan."""
    if len(text) <= _SHORT_CHARACTERS:
        return [(0, len(text))]
    if lower is None:
        lower = lowered(text).encode("utf-8", "surrogatepass")
    places = _places(lower, is_ascii=len(lower) == len(text))
    parts: list[tuple[int, int]] = []
    for at in places:
        start, end = max(0, at - _AROUND_CHARACTERS), min(len(text), at + _AROUND_CHARACTERS)
        if parts and start <= parts[-1][1] and end - parts[-1][0] <= _SHORT_CHARACTERS:
            parts[-1] = parts[-1][0], end
        else:
            parts.append((max(start, parts[-1][1]) if parts else start, end))
    return parts


def _places(data: bytes, *, is_ascii: bool) -> list[int]:
    """Where the cues stand, in characters; of those that stand close together, the first."""
    # Attack: thousands of cues before the passage that matters. None is left out; where each of
    # them is read, the budget of the scan ends it, and the text is not shown.
    ends = [end for _, end in _cue_index().places(data, len(data), apart_bytes=_CLOSE_BYTES)]
    if is_ascii:
        return ends
    found: list[int] = []
    seen, characters = 0, 0
    for end in ends:
        characters += len(data[seen:end].decode("utf-8", "ignore"))
        seen = end
        found.append(characters)
    return found


@cache
def _cue_index() -> WordIndex:
    return WordIndex([cue.encode() for cue in cues()])


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A passage that passed the gate, and the place of the part that it was read in."""

    passages: Passages
    number: int
    offset: int
    score: float
    """By itself, before it is compared with the others."""


def _hit(found: _Candidate, score: float, known: PassageModel, *, alone: float) -> Hit | None:
    """`score` is that among the others, `alone` without them. Attack: decoys all over the text, so
    that no instruction stands out; a passage that is likely by itself is at least low."""
    if score < known.weak and alone < known.likely:
        return None
    severity: Severity = (
        "high" if score >= known.certain else "medium" if score >= known.likely else "low"
    )
    passage = passage_of(found.passages, found.number)
    if len(found.passages) == 1:
        if _ASKS.isdisjoint(passage.traits):
            return None
        if _SPEAKS_TO_MODEL.isdisjoint(passage.traits):
            severity = "low"
    return Hit(
        category="instruction",
        severity=severity,
        rule="passage.instruction",
        message="Instructs the model that reads this text (classifier).",
        start=found.offset + passage.start,
        end=found.offset + passage.end,
        score=round(_probability(score - known.likely), 4),
    )


def _probability(weight: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, weight))))
