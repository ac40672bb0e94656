"""The simplest honest policy: a person who types a command has allowed that command.

It allows the actions of interfaces where the person at the keyboard is the one who asks, and denies
everything else. Rules for what an agent asks for are another policy behind the same port.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.types import Action, Finding
from holdfast.core.verdict import Decision, Verdict

_BY_A_PERSON = frozenset({"cli", "sdk"})


class ExplicitPolicy:
    """Allows what was asked for explicitly; no match is a denial."""

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision:
        if any(finding.severity == "high" for finding in findings):
            return Decision(Verdict.DENY, "guard", "the guard found something severe", "built-in")
        if action.allow_domains:
            return Decision(
                Verdict.DENY,
                "no-egress",
                "this version has no way out of the sandbox, not even to allowed domains",
                "built-in",
            )
        if action.principal.interface in _BY_A_PERSON:
            reason = f"asked for explicitly by {action.principal.name}"
            return Decision(Verdict.ALLOW, "explicit", reason, "built-in")
        return Decision(Verdict.DENY, "default", "no rule allows this", "built-in")
