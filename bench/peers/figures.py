"""Medians, ratios and counts. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

VERDICTS = ("held", "through", "n/a")
Grouped: TypeAlias = dict[str, dict[str, dict[str, str]]]


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile in milliseconds; the percentile is a value that was measured."""
    ordered = sorted(seconds)
    at = max(math.ceil(0.95 * len(ordered)) - 1, 0)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 2),
        "p95_ms": round(ordered[at] * 1000, 2),
        "runs": len(ordered),
    }


def ratio(times: Mapping[str, Any], peer: str, work: str, figure: str = "p50_ms") -> float | None:
    """The figure over the median of the bare process in the same run."""
    try:
        return float(times[peer][work][figure]) / float(times["bare"][work]["p50_ms"])
    except KeyError:
        return None


def grouped(verdicts: Mapping[str, Mapping[str, str]]) -> Grouped:
    """By layer and verdict: the names, with the reason of each that was not held."""
    found: Grouped = {}
    for attack, entry in sorted(verdicts.items()):
        layer = found.setdefault(entry["layer"], {verdict: {} for verdict in VERDICTS})
        reason = "" if entry["verdict"] == "held" else entry["reason"]
        layer[entry["verdict"]][attack.partition("/")[2]] = reason
    return found


def count_verdicts(verdicts: Grouped) -> dict[str, dict[str, int]]:
    """By layer: how many attacks were held, went through, or were not applicable."""
    return {
        layer: {verdict: len(names) for verdict, names in by_verdict.items()}
        for layer, by_verdict in verdicts.items()
    }


def as_lines(found: Mapping[str, Any]) -> str:
    """JSON with a line for each entry of the second level, so that a diff shows what changed."""
    parts = []
    for name, value in found.items():
        entries = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"
