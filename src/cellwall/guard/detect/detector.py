"""Finds what a text tries to do to the model that will read it (GRD-2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from cellwall.guard.detect import structure, tasks
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
    """What was found in a text."""

    hits: tuple[Hit, ...]
    """In the order of the text, in characters of it."""
    score: float
    """Of all of them together, between 0 and 1."""
    is_complete: bool
    """Whether all of the text was looked at."""


class Detector:
    """Rules, structure and tasks over every reading of a text. One can serve many threads."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self._rules = RuleIndex(packs)
        self._vocabulary = Vocabulary(chain(self._rules.words, structure.WORDS, ABOUT))

    @classmethod
    def shipped(cls, extra: Sequence[Pack] = ()) -> Detector:
        """The rules that come with Cellwall, and those of `extra`."""
        return cls((*shipped_packs(), *extra))

    def find(self, text: str, *, kind: Kind = "output") -> Detection:
        """Everything suspicious in a text. Whatever the text is, this answers in bounded time."""
        # (1) The text itself, and everything that it can be decoded to.
        unfolded = unfold(text)
        hits = list(unfolded.hits)
        # (2) What is seen in each of them, translated back.
        for view in unfolded.views:
            checkpoint()
            hits += self._in_view(view, kind)
        # (3) One finding for each place and kind; what is hidden weighs more.
        told = raise_disguised(limit_hits(merge_hits(hits)))
        return Detection(told, combine_scores(told), unfolded.is_complete)

    def _in_view(self, view: View, kind: Kind) -> Iterator[Hit]:
        sweep = self._vocabulary.sweep(view)
        spots = weigh_by_context(sweep, chain(self._rules.find(sweep), structure.find(sweep, kind)))
        found = _as_hits(sweep, [trim_spot(spot, sweep.data) for spot in spots])
        if kind == "output":
            # What a person asks for is a task, and no attack for that.
            found += tasks.find(view)
        for hit in limit_hits(merge_hits(found)):
            start, end = view.span(hit.start, hit.end)
            yield replace(hit, start=start, end=end, via=view.via)


def _as_hits(sweep: Sweep, spots: Sequence[Spot]) -> list[Hit]:
    """In characters of the view instead of bytes."""
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
