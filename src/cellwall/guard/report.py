"""The report on a text, its treatments, and the settings of the guard (GRD-2, GRD-3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from cellwall.core.outcomes import Finding, Severity
from cellwall.core.types import Json
from cellwall.guard.mark import Mode

Kind = Literal["input", "output"]
"""Input: text or requests from a person or an agent. Output: what a tool returns."""


class TextTreatment(StrEnum):
    """What is done with a text, from mildest to strictest; the strictest wins (GRD-3)."""

    ALLOW = "allow"
    ANNOTATE = "annotate"
    NEUTRALISE = "neutralise"
    ASK = "ask"
    BLOCK = "block"

    @property
    def rank(self) -> int:
        return _ORDER.index(self)


_ORDER = tuple(TextTreatment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One detection in one text, before severities become treatments.

    `start` and `end` are characters of the text given to the detector; the caller translates
    positions in a view back to the original.
    """

    category: str
    severity: Severity
    rule: str
    message: str
    start: int
    end: int
    score: float
    """Confidence that this is an attack, between 0 and 1."""
    via: tuple[str, ...] = ()
    """Encodings that were decoded to reach it, outermost first."""

    def finding(self, where: str = "") -> Finding:
        """The hit as a `Finding` of the public API."""
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
    """Findings in a text, the treatment, and the text as it may be shown."""

    verdict: TextTreatment
    score: float
    """Combined confidence of all findings, between 0 and 1."""
    findings: tuple[Finding, ...]
    text: str
    """Neutralised if the verdict says so; empty if the verdict is to block."""
    is_complete: bool = True
    """False if part of the text exceeded a limit; that part is not in `text` either."""

    def to_json(self) -> dict[str, Json]:
        return {
            "verdict": self.verdict.value,
            "score": round(self.score, 4),
            "findings": [finding.to_json() for finding in self.findings],
            "text": self.text,
            "is_complete": self.is_complete,
        }


Treatments = Mapping[Severity, TextTreatment]

_INPUT: Treatments = {
    "low": TextTreatment.ALLOW,
    "medium": TextTreatment.NEUTRALISE,
    "high": TextTreatment.BLOCK,
    "critical": TextTreatment.BLOCK,
}
# A page or a log is still useful without the attacking sentence; a text that also targets a secret
# or names a destination for it is not.
_OUTPUT: Treatments = {
    "low": TextTreatment.ALLOW,
    "medium": TextTreatment.NEUTRALISE,
    "high": TextTreatment.NEUTRALISE,
    "critical": TextTreatment.BLOCK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """Strictness of the guard. The defaults are those of the production profile."""

    input: Treatments = field(default_factory=lambda: _INPUT)
    output: Treatments = field(default_factory=lambda: _OUTPUT)
    marking: Mode = "delimit"
    max_shown_characters: int = 200_000
    """Limit for one text shown to a model; the middle of a longer text is left out."""
    max_characters: int = 4 << 20
    """Limit for one text; the rest is not scanned, and so not shown to a model."""
    denied_code: tuple[str, ...] = ()
    """Code screening rules whose findings deny the action; a trailing `*` matches any rest."""
    code_patterns: tuple[str, ...] = ()
    """Patterns for code of every language, each behind its severity: `high document\\.cookie`."""
    hide_personal_data: bool = False

    def treatments(self, kind: Kind) -> Treatments:
        return self.input if kind == "input" else self.output
