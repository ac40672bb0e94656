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
    strongest = sorted(range(len(scores)), key=lambda number: -scores[number])
    strongest = strongest[: rank + 2 * beside + 1]
    left = []
    for number, score in enumerate(scores):
        others = [other for other in strongest if abs(other - number) > beside]
        if len(others) < rank:
            left.append(score)
            continue
        excess = max(0.0, scores[others[rank - 1]] - settings.floor)
        left.append(score - min(settings.most, settings.share * excess))
    return left
