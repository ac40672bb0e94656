"""Small line plots as SVG, without a library. Pure.

Colours suit a light and a dark page; each curve has its name beside its end, so that no colour
alone tells curves apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 520, 40, 330
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00"),
    *("#56b4e9", "#7f3c8d", "#e68310", "#5b7a3a"),
)
_LABEL_PX = 15


@dataclass(frozen=True, slots=True)
class Curve:
    """One named line."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with both axes named. The vertical axis begins at 0."""

    title: str
    x_name: str
    y_name: str
    curves: tuple[Curve, ...]
    is_x_logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class _Scale:
    least: float
    most: float
    first_px: float
    last_px: float
    is_logarithmic: bool = False

    def px(self, value: float) -> float:
        ends = self.least, self.most, value
        low, high, at = map(math.log10, ends) if self.is_logarithmic else ends
        share = (at - low) / (high - low)
        return round(self.first_px + share * (self.last_px - self.first_px), 1)


def draw(plot: Plot) -> str:
    """The plot as a document of its own."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(plot.title)}" font-family="sans-serif" font-size="12">'
    )
    parts = [
        head,
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 22, plot.title, size=15),
    ]
    points = [point for curve in plot.curves for point in curve.points]
    if not points:
        parts.append(_text(_LEFT, _HEIGHT / 2, "no stored figures"))
        return "\n".join([*parts, "</svg>", ""])
    across = _x_scale(plot, [x for x, _ in points])
    ticks = _ticks(max(y for _, y in points))
    up = _Scale(0, ticks[-1], _BOTTOM, _TOP)
    parts += _axes(plot, across, up, ticks)
    ends = _label_places([up.px(curve.points[-1][1]) for curve in plot.curves])
    for place, curve in enumerate(plot.curves):
        parts += _line(curve, across, up, _COLOURS[place % len(_COLOURS)], ends[place])
    return "\n".join([*parts, "</svg>", ""])


def _x_scale(plot: Plot, values: list[float]) -> _Scale:
    if not plot.is_x_logarithmic:
        return _Scale(0, max(values), _LEFT, _RIGHT)
    positive = [max(value, 1e-3) for value in values]
    return _Scale(min(positive) * 0.9, max(positive) * 1.1, _LEFT, _RIGHT, is_logarithmic=True)


def _ticks(most: float) -> list[float]:
    """From 0 to the first step that is not below the largest value; four to six of them."""
    rough = (most or 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    return [step * number for number in range(math.ceil((most or 1.0) / step - 1e-9) + 1)]


def _x_ticks(plot: Plot, across: _Scale) -> list[float]:
    if plot.is_x_logarithmic:
        powers = range(-3, 6)
        marks = [base * 10.0**power for power in powers for base in (1, 2, 5)]
        return [mark for mark in marks if across.least <= mark <= across.most]
    return sorted({x for curve in plot.curves for x, _ in curve.points})


def _axes(plot: Plot, across: _Scale, up: _Scale, ticks: list[float]) -> list[str]:
    parts = []
    for tick in ticks:
        y = up.px(tick)
        parts.append(f'<path d="M{_LEFT} {y}H{_RIGHT}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    last_px = -math.inf
    for tick in _x_ticks(plot, across):
        x = across.px(tick)
        if x - last_px >= 24:  # else numbers would lie on each other
            parts.append(_text(x, _BOTTOM + 16, f"{tick:g}", anchor="middle"))
            last_px = x
    parts.append(f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" stroke="#444444" fill="none"/>')
    parts.append(_text((_LEFT + _RIGHT) / 2, _HEIGHT - 14, plot.x_name, anchor="middle"))
    turn = f"rotate(-90 14 {(_TOP + _BOTTOM) / 2})"
    parts.append(
        f'<text x="14" y="{(_TOP + _BOTTOM) / 2}" text-anchor="middle" fill="#222222" '
        f'transform="{turn}">{escape(plot.y_name)}</text>'
    )
    return parts


def _line(curve: Curve, across: _Scale, up: _Scale, colour: str, label_y: float) -> list[str]:
    least = across.least if across.is_logarithmic else -math.inf
    places = [f"{across.px(max(x, least))},{up.px(y)}" for x, y in curve.points]
    return [
        f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>',
        _text(_RIGHT + 12, label_y + 4, curve.name, fill=colour),
    ]


def _label_places(wanted: list[float]) -> list[float]:
    """Heights near the ends of the curves, a line apart, so that no two names overlap."""
    places = [0.0] * len(wanted)
    next_free = float(_TOP)
    for index in sorted(range(len(wanted)), key=lambda at: wanted[at]):
        places[index] = max(wanted[index], next_free)
        next_free = places[index] + _LABEL_PX
    return places


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = "#222222", size: int = 12
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
