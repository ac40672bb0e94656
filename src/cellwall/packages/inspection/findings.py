"""What the inspection of an artifact reports, and how popularity weighs on a finding (PKG-1)."""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.core.verdict import Verdict

NOT_INSPECTED = "not-inspected"
"""The code of a finding: a part of the artifact was not read, for the lack of time or its size."""


@dataclass(frozen=True, slots=True)
class ArtifactFinding:
    """One property of an artifact; `verdict` for a package that is not widely used.

    `is_proof`: no honest package has this property, so the number of users is no answer to it.
    Every hijacked package was popular.
    """

    code: str
    verdict: Verdict
    text: str
    is_proof: bool = False

    def weigh(self, *, is_widely_used: bool) -> Verdict:
        """Many people have looked at a widely used package: their answer is taken."""
        return Verdict.ALLOW if is_widely_used and not self.is_proof else self.verdict
