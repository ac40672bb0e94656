"""Detects attacks on the model that will read a text (GRD-2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from cellwall.guard.detect import passages, structure, tasks
from cellwall.guard.detect.rule_packs import Pack, RuleIndex, shipped_packs
from cellwall.guard.detect.scoring import (
    ABOUT,
    combine_scores,
    limit_hits,
    merge_hits,
    raise_disguised,
    weigh_by_context,
)
from cellwall.guard.detect.sweep import Spot, Sweep, Vocabulary, trim_spot
from cellwall.guard.normalise import View, unfold
from cellwall.guard.report import Hit, Kind
from cellwall.parsing.budget import checkpoint


@dataclass(frozen=True, slots=True)
class Detection:
    """The hits in a text."""

    hits: tuple[Hit, ...]
    """In text order; positions are characters."""
    score: float
    """Combined score, between 0 and 1."""
    is_complete: bool
    """False if a limit was reached before the end of the text."""


class Detector:
    """Runs rules, structure and task detectors over every view of a text. Thread-safe."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self._rules = RuleIndex(packs)
        self._vocabulary = Vocabulary(chain(self._rules.words, structure.WORDS, ABOUT))

    @classmethod
    def shipped(cls, extra: Sequence[Pack] = ()) -> Detector:
        """With the shipped rules and those of `extra`."""
        return cls((*shipped_packs(), *extra))

    def find(self, text: str, *, kind: Kind = "output") -> Detection:
        """All hits in a text, in bounded time for every text."""
        # (1) Normalise the text and decode everything inside it.
        unfolded = unfold(text)
        hits = list(unfolded.hits)
        # (2) Detect in each view; translate positions back.
        for view in unfolded.views:
            checkpoint()
            hits += self._in_view(view, kind)
        # (3) Merge per place and category; raise what was disguised.
        hits_found = raise_disguised(limit_hits(merge_hits(hits)))
        return Detection(hits_found, combine_scores(hits_found), unfolded.is_complete)

    def _in_view(self, view: View, kind: Kind) -> Iterator[Hit]:
        sweep = self._vocabulary.sweep(view)
        found: list[Hit] = []
        if sweep.stretches:  # all rules and detectors need a keyword
            spots = weigh_by_context(
                sweep, chain(self._rules.find(sweep), structure.find(sweep, kind))
            )
            found = _as_hits(sweep, [trim_spot(spot, sweep.data) for spot in spots])
        if kind == "output":
            # A request by a person is a task, not an attack.
            found += tasks.find(view)
            found = list(passages.vote(found, passages.find(view.plain, view.lower)))
        for hit in limit_hits(merge_hits(found)):
            start, end = view.span(hit.start, hit.end)
            yield replace(hit, start=start, end=end, via=view.via)


def _as_hits(sweep: Sweep, spots: Sequence[Spot]) -> list[Hit]:
    """Spots as hits: positions in characters of the view instead of bytes."""
    at = sweep.characters(offset for spot in spots for offset in (spot.start, spot.end))
    return [
        Hit(
            category=spot.category,
            severity=spot.severity,
            rule=spot.rule,
            message=spot.message,
            start=at[spot.start],
            end=at[spot.end],
            score=spot.score,
        )
        for spot in spots
    ]
