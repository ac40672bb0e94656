"""What the guard says of a text, and what is done about it (GRD-2, GRD-3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cellwall.core.outcomes import Finding, Severity
from cellwall.core.types import Json
from cellwall.guard.mark import Mode

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


Treatments = Mapping[Severity, Treatment]

_INPUT: Treatments = {
    "low": Treatment.ALLOW,
    "medium": Treatment.NEUTRALISE,
    "high": Treatment.BLOCK,
    "critical": Treatment.BLOCK,
}
# A page or a log is worth reading without the sentence that attacks; what also names a secret or
# a way out is worth nothing.
_OUTPUT: Treatments = {
    "low": Treatment.ALLOW,
    "medium": Treatment.NEUTRALISE,
    "high": Treatment.NEUTRALISE,
    "critical": Treatment.BLOCK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """How strict it is. The defaults are those of the production profile."""

    input: Treatments = field(default_factory=lambda: _INPUT)
    output: Treatments = field(default_factory=lambda: _OUTPUT)
    marking: Mode = "delimit"
    max_shown_characters: int = 200_000
    """Of one text that a model is shown; of more the middle is left out."""
    max_characters: int = 4 << 20
    """Of one text; what is beyond is not looked at, and so not shown to a model."""
    denied_code: tuple[str, ...] = ()
    """Rules of the screening of code whose findings refuse it; `*` at the end stands for any."""
    code_patterns: tuple[str, ...] = ()
    """Patterns for code of every language, each behind its severity: `high document\\.cookie`."""
    hide_personal_data: bool = False

    def treatments(self, kind: Kind) -> Treatments:
        return self.input if kind == "input" else self.output
