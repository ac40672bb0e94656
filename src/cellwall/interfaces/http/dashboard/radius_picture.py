"""The blast radius as a picture: one sector for each verb, a dot for each line.

A full dot inside the wall is something that code can do, an open dot outside something that it
cannot. What a `dangerously_` setting allows lies on the wall, as a diamond. Geometry only; the
template draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cellwall.admin.blast_radius import VERBS, Ability, BlastRadius

WIDTH, HEIGHT = 420, 340
CENTRE = (WIDTH / 2, HEIGHT / 2)
WALL_RADIUS = 96.0
_INSIDE_RADII = (34.0, 55.0, 76.0)
_OUTSIDE_RADII = (113.0, 129.0)
_LABEL_RADIUS = 148.0
_SPACING = 13.0
_SECTOR = 2 * math.pi / len(VERBS)
_FILLED = 0.82
"""The share of a sector that holds dots."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One line of the radius."""

    x: float
    y: float
    kind: Literal["can", "cannot", "weak"]
    ability: Ability


@dataclass(frozen=True, slots=True)
class SectorLabel:
    """The verb and its counts, beside its sector."""

    x: float
    y: float
    anchor: Literal["start", "middle", "end"]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RadiusPicture:
    """Everything to draw, and the same in words for people who do not see it."""

    dots: tuple[Dot, ...]
    labels: tuple[SectorLabel, ...]
    borders: tuple[tuple[float, float], ...]
    """The end of each line between two sectors, on the wall."""
    words: str


def draw(radius: BlastRadius) -> RadiusPicture:
    """The picture of a radius."""
    dots: list[Dot] = []
    labels: list[SectorLabel] = []
    words: list[str] = []
    for number, verb in enumerate(VERBS):
        middle = number * _SECTOR - math.pi / 2
        lines = radius.of(verb)
        weak = [each for each in lines if each.is_weakened]
        can = [each for each in lines if each.is_possible and not each.is_weakened]
        cannot = [each for each in lines if not each.is_possible]
        dots += (Dot(*place, "can", each) for each, place in _placed(can, middle, _INSIDE_RADII))
        dots += (
            Dot(*place, "cannot", each) for each, place in _placed(cannot, middle, _OUTSIDE_RADII)
        )
        dots += (Dot(*place, "weak", each) for each, place in _placed(weak, middle, (WALL_RADIUS,)))
        counts = f"{len(can) + len(weak)} can, {len(cannot)} cannot"
        labels.append(_label(middle, verb, counts))
        words.append(f"{verb}: {counts}" + (f", {len(weak)} weakened" if weak else ""))
    borders = [_at((number - 0.5) * _SECTOR - math.pi / 2, WALL_RADIUS) for number in range(6)]
    return RadiusPicture(tuple(dots), tuple(labels), tuple(borders), "; ".join(words))


def _placed(
    lines: Sequence[Ability], middle: float, radii: Sequence[float]
) -> Iterator[tuple[Ability, tuple[float, float]]]:
    """Dots on arcs of a sector, from the inner one; where all arcs are full, the last one takes the
    rest more densely."""
    left = list(lines)
    for radius in radii:
        holds = max(int(radius * _SECTOR * _FILLED / _SPACING), 1)
        row, left = (left, []) if radius == radii[-1] else (left[:holds], left[holds:])
        step = min(_SPACING / radius, _SECTOR * _FILLED / max(len(row), 1))
        for number, each in enumerate(row):
            yield each, _at(middle + (number - (len(row) - 1) / 2) * step, radius)


def _label(middle: float, verb: str, counts: str) -> SectorLabel:
    """Beside a sector the counts stand below each other: a phone is narrow."""
    x, y = _at(middle, _LABEL_RADIUS)
    side = math.cos(middle)
    if abs(side) < 0.1:
        return SectorLabel(x, y, "middle", (verb.capitalize(), counts))
    anchor: Literal["start", "end"] = "start" if side > 0 else "end"
    return SectorLabel(x, y - 10, anchor, (verb.capitalize(), *counts.split(", ")))


def _at(angle: float, radius: float) -> tuple[float, float]:
    x, y = CENTRE
    return round(x + radius * math.cos(angle), 1), round(y + radius * math.sin(angle), 1)
