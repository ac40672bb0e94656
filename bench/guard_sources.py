"""What recall to expect of attacks from a source that nobody here has seen.

A *source* is who made the attacks: a collection with all its sets, one author of the texts in
bench/guard_data/written, or the makers of one package (guard_found). It is left out of training
whole and scored at the threshold that the kinds of ordinary texts give. Sources weigh alike,
however many sets they have, and the interval is that of drawing other sources, not other texts.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guard_families import OperatingPoint, Share, Text, origin

_AT_ONCE = {"written ": 3, "found ": 9}
"""Authors, and packages, that are left out together: each fold trains both models."""
_DRAWS = 4000
_OUTER = 0.025


def author(family: str) -> str:
    """Of `written tools`, `near written tools` and `found tools`; empty for other families."""
    name = family.removeprefix("near ")
    return next((name.removeprefix(head) for head in _AT_ONCE if name.startswith(head)), "")


def author_folds(texts: Sequence[Text]) -> list[frozenset[str]]:
    """The families of the authors that are left out together."""
    made = []
    for head, at_once in _AT_ONCE.items():
        names = sorted({text.family for text in texts if text.family.startswith(head)})
        step = -(-len(names) // at_once)
        made += [
            frozenset(f"{near}{name}" for name in names[at::step] for near in ("", "near "))
            for at in range(step)
        ]
    return made


@dataclass(frozen=True, slots=True)
class Expected:
    """The mean over sources, with the interval of drawing other sources."""

    sources: Mapping[str, float]
    """The recall of each source; of a collection, the mean over its sets."""
    near: Mapping[str, Share]
    """Of each author, how many ordinary texts that stand near to the attacks are flagged."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.sources.values())

    @property
    def interval(self) -> tuple[float, float]:
        chance, values = random.Random(0), list(self.sources.values())
        means = sorted(
            statistics.fmean(chance.choices(values, k=len(values))) for _ in range(_DRAWS)
        )
        return means[int(_OUTER * _DRAWS)], means[int((1 - _OUTER) * _DRAWS) - 1]


def expected(point: OperatingPoint, texts: Sequence[Text], scores: Sequence[float]) -> Expected:
    """Of the sets that were measured, and the authors' texts with their scores."""
    sets: dict[str, list[float]] = {}
    for family, share in point.families.items():
        sets.setdefault(origin(family), []).append(share.rate)
    sources = {name: statistics.fmean(rates) for name, rates in sets.items()}
    flagged: dict[str, list[bool]] = {}
    for text, score in zip(texts, scores, strict=True):
        flagged.setdefault(text.family, []).append(score > point.threshold)
    near = {}
    for family, found in sorted(flagged.items()):
        share = Share(sum(found), len(found))
        if family.startswith("near "):
            near[author(family)] = share
        else:
            sources[f"author of {author(family)}"] = share.rate
    return Expected(sources, near)


def render(found: Expected) -> str:
    """A line for each source, and the mean."""
    low, high = found.interval
    lines = [
        f"mean recall over {len(found.sources)} sources {found.mean:.1%} ({low:.1%} to {high:.1%})"
    ]
    lines += [f"{name:36} {rate:7.1%}" for name, rate in sorted(found.sources.items())]
    lines += [
        f"near ordinary texts of {name:13} {share.rate:7.1%}" for name, share in found.near.items()
    ]
    return "\n".join(lines)
