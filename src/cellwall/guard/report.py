"""What the guard says of a text, and what is done about it (GRD-2, GRD-3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from cellwall.core.outcomes import Finding, Severity
from cellwall.core.types import Json

Kind = Literal["input", "output"]
"""What a person or an agent says to a model or wants to be done; what a tool brings back."""


class Treatment(StrEnum):
    """What becomes of a text, from the mildest to the strictest; the strictest wins (GRD-3)."""

    ALLOW = "allow"
    ANNOTATE = "annotate"
    NEUTRALISE = "neutralise"
    ASK = "ask"
    BLOCK = "block"

    @property
    def rank(self) -> int:
        return _ORDER.index(self)


_ORDER = tuple(Treatment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One thing that a detector saw in one text, before severities become treatments.

    `start` and `end` are characters of the text that the detector was given; whoever gave it a
    view of another text translates them back.
    """

    category: str
    severity: Severity
    rule: str
    message: str
    start: int
    end: int
    score: float
    """How sure it is that this is an attack, between 0 and 1."""
    via: tuple[str, ...] = ()
    """Encodings that were opened to see it, from the outside in."""

    def finding(self, where: str = "") -> Finding:
        """As it is told."""
        return Finding(
            self.category,
            self.severity,
            self.message,
            rule=self.rule,
            span=(self.start, self.end),
            decoded_from=self.via,
            where=where,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found in a text, what is done about it, and the text as it may be shown."""

    verdict: Treatment
    score: float
    """Of all findings together, between 0 and 1."""
    findings: tuple[Finding, ...]
    text: str
    """With what was found defused, where that is the verdict; empty where it is to block."""
    is_complete: bool = True
    """Whether all of it was looked at; what is beyond the bounds was not, and is not in `text`."""

    def to_json(self) -> dict[str, Json]:
        return {
            "verdict": self.verdict.value,
            "score": round(self.score, 4),
            "findings": [finding.to_json() for finding in self.findings],
            "text": self.text,
            "is_complete": self.is_complete,
        }
