"""What the guard does about what it finds (GRD-3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cellwall.core.outcomes import Severity
from cellwall.guard.mark import Mode
from cellwall.guard.report import Kind, Treatment

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
