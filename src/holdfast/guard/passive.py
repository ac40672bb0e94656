"""A guard that adds nothing and takes nothing away; the place where screening will stand.

It is honest about that: it reports no finding, so nobody can mistake it for a wall.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.types import Action, Finding, RunResult


class PassiveGuard:
    """Finds nothing and changes nothing."""

    def screen(self, action: Action) -> Sequence[Finding]:  # noqa: ARG002  # the port's shape
        return ()

    def clean(self, action: Action, result: RunResult) -> RunResult:  # noqa: ARG002  # as above
        return result
