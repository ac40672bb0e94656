"""What a finding can be about (GRD-2), and how much each kind may say on its own."""

from __future__ import annotations

from collections.abc import Mapping

from cellwall.core.outcomes import SEVERITIES, Severity

CAPS: Mapping[str, float] = {
    "injection": 0.97,
    "jailbreak": 0.95,
    "role-marker": 0.85,
    "system-prompt": 0.95,
    "exfiltration": 0.97,
    "tool-call": 0.9,
    "delimiter": 0.9,
    "code-injection": 0.8,
    # Odd characters alone are the lot of some scripts, of emoji and of careless editors.
    "hidden": 0.6,
    "beacon": 0.9,
    "many-shot": 0.8,
    "urgency": 0.7,
    "task": 0.8,
}
"""How sure a whole category can make, however often it is seen: a hundred role markers are one
transcript, and none of them is an order."""

CATEGORIES = tuple(CAPS)

SCORES: Mapping[Severity, float] = {"low": 0.2, "medium": 0.5, "high": 0.8, "critical": 0.95}
"""Of a rule that states none."""


def rank(severity: Severity) -> int:
    """Its place among all, from the mildest."""
    return SEVERITIES.index(severity)


def raised(severity: Severity, steps: int) -> Severity:
    """That many steps up, or down, within what there is."""
    return SEVERITIES[min(len(SEVERITIES) - 1, max(0, rank(severity) + steps))]
