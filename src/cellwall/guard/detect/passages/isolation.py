"""How far a passage stands out among the others of its text (GRD-2).

A system prompt or a manual for agents has many passages that instruct; data with an attack has a
few, side by side. So what the stronger passages elsewhere in the text score is taken off.
Attack: instructions as decoys around the one that matters. What is taken off has a limit, and a
passage that is likely by itself is still reported as low.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSettings:
    """With what a passage is compared, and how much of it counts."""

    rank: int
    """Which of the other passages is compared with, counted from the strongest."""
    beside: int
    """So many candidates on each side belong to the same attack."""
    floor: float
    share: float
    most: float
    """What is taken off at most."""


def isolated(scores: Sequence[float], settings: IsolationSettings) -> list[float]:
    """The scores of the candidates of a text, less what others elsewhere score; linear."""
    rank, beside = settings.rank, settings.beside
    strongest = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    strongest = strongest[: rank + 2 * beside + 1]
    taken = _taken(scores, strongest, settings)
    left = [score - taken for score in scores]
    # Of those beside the strongest others are compared with.
    for middle in strongest[:rank]:
        for number in range(max(0, middle - beside), min(len(scores), middle + beside + 1)):
            others = [other for other in strongest if abs(other - number) > beside]
            left[number] = scores[number] - _taken(scores, others, settings)
    return left


def _taken(scores: Sequence[float], others: Sequence[int], settings: IsolationSettings) -> float:
    """What is taken off for others elsewhere, the strongest first."""
    if len(others) < settings.rank:
        return 0.0
    excess = max(0.0, scores[others[settings.rank - 1]] - settings.floor)
    return min(settings.most, settings.share * excess)
