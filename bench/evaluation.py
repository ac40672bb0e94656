"""Measures a guard on a data set: what it finds, what it finds wrongly, and where it errs most.

Pure: rows and a judge come in, figures go out. `evaluate_guard` reads the file and draws the curve.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cellwall.core.errors import BadInput
from cellwall.core.types import Json

_EXCERPT_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One text of a data set, and whether it holds an attack."""

    text: str
    is_attack: bool
    kind: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a guard says of one text."""

    score: float
    is_flagged: bool
    """Whether it would act on it, as it is set."""


Judge = Callable[[str], Judgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a threshold would give. What there is nothing of has no rate."""

    threshold: float
    recall: float | None
    false_positive_rate: float | None
    precision: float | None

    def to_json(self) -> dict[str, Json]:
        return {
            "threshold": round(self.threshold, 4),
            "recall": _rounded(self.recall),
            "false_positive_rate": _rounded(self.false_positive_rate),
            "precision": _rounded(self.precision),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Flagged texts of one kind."""

    kind: str
    is_attack: bool
    flagged: int
    total: int

    def to_json(self) -> dict[str, Json]:
        return {
            "kind": self.kind,
            "label": int(self.is_attack),
            "flagged": self.flagged,
            "total": self.total,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """A row that was judged wrongly."""

    number: int
    """Its place in the data set, from 1."""
    score: float
    kind: str
    excerpt: str

    def to_json(self) -> dict[str, Json]:
        return {
            "row": self.number,
            "score": round(self.score, 4),
            "kind": self.kind,
            "excerpt": self.excerpt,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What came out. The rates are those of the guard as it is set; the curve is of its scores."""

    attacks: int
    clean: int
    recall: float | None
    false_positive_rate: float | None
    precision: float | None
    shares: tuple[Share, ...]
    curve: tuple[Point, ...]
    misses: tuple[Error, ...]
    """Attacks that were let through, the least suspected first."""
    alarms: tuple[Error, ...]
    """Clean texts that were flagged, the most suspected first."""

    def to_json(self) -> dict[str, Json]:
        return {
            "attacks": self.attacks,
            "clean": self.clean,
            "recall": _rounded(self.recall),
            "false_positive_rate": _rounded(self.false_positive_rate),
            "precision": _rounded(self.precision),
            "shares": [each.to_json() for each in self.shares],
            "curve": [each.to_json() for each in self.curve],
            "misses": [each.to_json() for each in self.misses],
            "alarms": [each.to_json() for each in self.alarms],
        }


def rows(lines: Iterable[str]) -> Iterator[Row]:
    """Rows of a JSONL file: {"text", "label": 0 or 1, "kind"?, "group"?}; empty lines are left out.

    Raises `BadInput` with the number of the first line that is no row.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            raise _bad(number, "is not JSON") from None
        if not isinstance(told, dict) or not isinstance(told.get("text"), str):
            raise _bad(number, 'has no "text"')
        label = told.get("label")
        if label not in (0, 1):
            raise _bad(number, 'has no "label" of 0 or 1')
        yield Row(
            text=told["text"],
            is_attack=bool(label),
            kind=str(told.get("kind", "")),
            group=str(told.get("group", "")),
        )


def measure(
    data: Iterable[Row], judge: Judge, *, max_errors: int = 10, max_points: int = 200
) -> Evaluation:
    """Judges every row once. Texts are not kept: of a wrong one, its beginning."""
    scores: dict[bool, list[float]] = {True: [], False: []}
    flagged: dict[tuple[str, bool], list[bool]] = {}
    wrong: dict[bool, list[Error]] = {True: [], False: []}
    for number, row in enumerate(data, 1):
        told = judge(row.text)
        scores[row.is_attack].append(told.score)
        flagged.setdefault((row.kind, row.is_attack), []).append(told.is_flagged)
        if told.is_flagged != row.is_attack:
            excerpt = " ".join(row.text[: 4 * _EXCERPT_CHARACTERS].split())[:_EXCERPT_CHARACTERS]
            error = Error(number=number, score=told.score, kind=row.kind, excerpt=excerpt)
            wrong[row.is_attack].append(error)
    found = sum(sum(each) for (_, is_attack), each in flagged.items() if is_attack)
    alarms = sum(sum(each) for (_, is_attack), each in flagged.items() if not is_attack)
    return Evaluation(
        attacks=len(scores[True]),
        clean=len(scores[False]),
        recall=_rate(found, len(scores[True])),
        false_positive_rate=_rate(alarms, len(scores[False])),
        precision=_rate(found, found + alarms),
        shares=tuple(
            Share(kind=kind, is_attack=is_attack, flagged=sum(each), total=len(each))
            for (kind, is_attack), each in sorted(flagged.items())
        ),
        curve=_curve(scores[True], scores[False], max_points),
        misses=tuple(sorted(wrong[True], key=lambda each: each.score)[:max_errors]),
        alarms=tuple(sorted(wrong[False], key=lambda each: -each.score)[:max_errors]),
    )


def _curve(attacks: Sequence[float], clean: Sequence[float], most: int) -> tuple[Point, ...]:
    """One point for each score that occurs, or for as many as there may be."""
    attacks, clean = sorted(attacks), sorted(clean)
    values = sorted({*attacks, *clean})
    step = max(1, -(-len(values) // max(1, most)))
    points = []
    for threshold in values[::step]:
        found = len(attacks) - bisect_left(attacks, threshold)
        alarms = len(clean) - bisect_left(clean, threshold)
        points.append(
            Point(
                threshold=threshold,
                recall=_rate(found, len(attacks)),
                false_positive_rate=_rate(alarms, len(clean)),
                precision=_rate(found, found + alarms),
            )
        )
    return tuple(points)


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _bad(number: int, what: str) -> BadInput:
    return BadInput(
        f"line {number} of the data set {what}",
        hint='Write one object on each line, such as {"text": "...", "label": 0}.',
    )
