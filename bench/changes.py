"""What got better or worse between two runs. Pure.

A figure is compared by the ratio of its medians. The tolerance is the spread of the passes of both
runs, the wider one, so that a noisy figure has to change more than it does by itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from catalogue import Figure
from host import is_same_host
from stored_run import StoredRun

_LEAST_TOLERANCE = 1.05
_TOLERANCE_OF_ONE_PASS = 1.25
"""The spread of a figure that was measured once is not known."""


class Direction(StrEnum):
    """How a figure changed, beyond its tolerance."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in two runs."""

    figure: Figure
    old: float
    new: float
    tolerance: float
    """The ratio, over 1, within which a figure counts as unchanged."""

    @property
    def ratio(self) -> float:
        return self.new / self.old if self.old else 1.0

    @property
    def direction(self) -> Direction:
        gain = self.ratio if self.figure.is_higher_better else 1 / self.ratio
        if gain > self.tolerance:
            return Direction.BETTER
        return Direction.WORSE if gain < 1 / self.tolerance else Direction.SAME

    def line(self) -> str:
        """For people."""
        return (
            f"{self.direction:6} {self.figure.bench + ' ' + self.figure.name:58} "
            f"{self.figure.shown(self.old):>12} -> {self.figure.shown(self.new):<12} "
            f"{self.ratio:5.2f}x (tolerance {self.tolerance:.2f}x)"
        )


def compare(
    old: StoredRun, new: StoredRun, figures: Iterable[Figure]
) -> tuple[list[Change], list[str]]:
    """The figures that both runs have, and the names of those that cannot be compared.

    A ratio is one of parties in the same run, so it is compared between any two hosts; an absolute
    time or rate only between runs on the same kind of host.
    """
    changes, left_out = [], []
    for figure in figures:
        if figure.bench not in old.benches or figure.bench not in new.benches:
            continue
        before = old.benches[figure.bench].figures.get(figure.name)
        after = new.benches[figure.bench].figures.get(figure.name)
        if not before or not after:
            continue
        hosts = old.host_of(figure.bench), new.host_of(figure.bench)
        if not (figure.is_ratio or is_same_host(*hosts)):
            left_out.append(f"{figure.bench} {figure.name}")
            continue
        medians = statistics.median(before), statistics.median(after)
        if min(medians) <= 0:  # a difference of two times may be none
            left_out.append(f"{figure.bench} {figure.name}")
            continue
        tolerance = _LEAST_TOLERANCE * max(spread(before), spread(after))
        changes.append(Change(figure, *medians, tolerance))
    return changes, left_out


def spread(values: Sequence[float]) -> float:
    """The largest value over the smallest."""
    if len(values) < 2 or min(values) <= 0:
        return _TOLERANCE_OF_ONE_PASS
    return max(values) / min(values)


def report(changes: Sequence[Change], left_out: Sequence[str]) -> str:
    """What changed, the worst first; a count of the rest."""
    lines = []
    for direction in (Direction.WORSE, Direction.BETTER):
        chosen = [each for each in changes if each.direction is direction]
        lines += [each.line() for each in sorted(chosen, key=lambda each: each.ratio)]
    counts = {way: sum(each.direction is way for each in changes) for way in Direction}
    lines.append(", ".join(f"{count} {way}" for way, count in counts.items()))
    if left_out:
        lines.append(f"not compared (another kind of host, or no time): {', '.join(left_out)}")
    return "\n".join(lines)
