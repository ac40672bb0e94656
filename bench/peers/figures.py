"""Medians, ratios and counts. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

VERDICTS = ("held", "through", "n/a")


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


def count_verdicts(verdicts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """By layer: how many attacks were held, went through, or were not applicable."""
    counts: dict[str, dict[str, int]] = {}
    for entry in verdicts.values():
        layer = counts.setdefault(entry["layer"], dict.fromkeys(VERDICTS, 0))
        layer[entry["verdict"]] += 1
    return counts


def gone_through(verdicts: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """By layer: the names of the attacks that went through."""
    names: dict[str, list[str]] = {}
    for attack, entry in sorted(verdicts.items()):
        if entry["verdict"] == "through":
            names.setdefault(entry["layer"], []).append(attack.partition("/")[2])
    return names
