"""The figures that are shown and compared: words, unit, direction and aim, from catalogue.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

CATALOGUE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a bench."""

    bench: str
    name: str
    says: str
    unit: str
    """`x` is a ratio of two parties in the same run."""
    is_higher_better: bool = False
    aim: float | None = None
    beside: str = ""
    """Another figure of the same bench, shown in the same row: the absolute time of a ratio."""
    beside_unit: str = "ms"
    step_of: str = ""
    """The call whose time the figure is a part of; such figures have a table of their own."""

    @property
    def is_ratio(self) -> bool:
        return self.unit == "x"

    def shown(self, value: float) -> str:
        return show(value, self.unit)

    def is_reached(self, value: float) -> bool | None:
        """Whether the aim is reached; None without an aim."""
        if self.aim is None:
            return None
        return value >= self.aim if self.is_higher_better else value <= self.aim


def show(value: float, unit: str) -> str:
    """Three digits that count, with the unit."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    text = f"{value:,.{digits}f}"
    return f"{text}x" if unit == "x" else f"{text} {unit}"


def read_catalogue(path: Path = CATALOGUE) -> list[Figure]:
    """All figures, in the order of the file."""
    stored = tomllib.loads(path.read_text("utf-8"))
    return [
        Figure(bench, name, **entry)
        for bench, entries in stored.items()
        for name, entry in entries.items()
    ]
