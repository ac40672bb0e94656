"""What one detector saw in one view, before it is known what else is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cellwall.core.outcomes import Severity

MAX_SPOTS = 300
"""Of one rule or detector in one view."""
_BEFORE_SENTENCE = b" \t\r\n.?:;,>\"'"
_FULL_STOP = "。".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """As a `Hit`, with its place in bytes of the view's folded text."""

    category: str
    severity: Severity
    rule: str
    message: str
    start: int
    end: int
    score: float


def without_flood(spots: Iterable[Spot], end: int) -> Iterator[Spot]:
    """The first of them; if there are more, one that reaches to `end` stands for all others.

    So a flood costs little, and still no attack behind it is left out of the report.
    """
    for count, spot in enumerate(spots, 1):
        if count > MAX_SPOTS:
            yield replace(spot, end=max(spot.end, end))
            return
        yield spot


def trimmed(spot: Spot, data: bytes) -> Spot:
    """Without the end of the sentence before it, by which a pattern knew that a new one begins.

    What is found is taken out by sentences (GRD-3), and the one before has done nothing.
    """
    text = data[spot.start : spot.end]
    rest = text.lstrip(_BEFORE_SENTENCE).removeprefix(_FULL_STOP).lstrip(_BEFORE_SENTENCE)
    return replace(spot, start=spot.end - len(rest)) if rest else spot
