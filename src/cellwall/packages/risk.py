"""The risk of a package as a number and one line that a person reads. Pure.

The number adds up what the steps found, from 0 (nothing) to 10. The verdict does not depend on the
number: each reason has a verdict of its own, and the strictest counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cellwall.packages.evidence import EvidenceStep, PackageVerdict

MAX_POINTS = 10

# By code: the points, and the words of the line. Codes of rules and licenses are no risk.
_FINDINGS = {
    "malicious": (10, "reported as malicious"),
    "quarantined": (10, "quarantined"),
    "unknown": (8, "not on the registry"),
    "provenance-lost": (5, "provenance lost"),
    "maintainers-replaced": (4, "all maintainers replaced"),
    "new-project": (3, "new project"),
    "too-young": (3, "young version"),
    "age-unknown": (3, "unknown age"),
    "yanked": (3, "yanked"),
    "source-only": (2, "built from source"),
    "not-built": (2, "built from source"),
    "own-build": (2, "built from source"),
    "vulnerable": (2, "known vulnerability"),
    "publisher-changed": (2, "new publisher"),
    "archived": (1, "archived project"),
    "deprecated": (1, "deprecated"),
    "feed": (1, "feed missing or old"),
}
_NAME_POINTS = 4
_ARTIFACT_POINTS = 6


@dataclass(frozen=True, slots=True)
class Risk:
    """`points` of 10, and why."""

    points: int
    causes: tuple[str, ...]

    @property
    def line(self) -> str:
        why = f": {', '.join(self.causes)}" if self.causes else ""
        return f"risk {self.points} of {MAX_POINTS}{why}"


def risk_of(verdict: PackageVerdict) -> Risk:
    """The risk of a package with this verdict; what a rule answered counts as well."""
    found = dict(_points(verdict))
    return Risk(min(MAX_POINTS, sum(found.values())), tuple(found))


def _points(verdict: PackageVerdict) -> Iterable[tuple[str, int]]:
    for reason in (*verdict.reasons, *verdict.answered):
        if reason.step is EvidenceStep.NAME:
            yield f"resembles {verdict.suggestion or 'a popular name'}", _NAME_POINTS
        elif reason.step is EvidenceStep.ARTIFACT:
            yield "suspicious content", _ARTIFACT_POINTS
        elif reason.code in _FINDINGS:
            points, words = _FINDINGS[reason.code]
            yield words, points
