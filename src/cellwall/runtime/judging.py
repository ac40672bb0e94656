"""Step 4 of the path: an action becomes a call in the words of rules, and is judged by them.

What agents ask for, through a hook or a protocol, is always judged by rules. A person who types a
command or embeds Cellwall has allowed what they ask for by asking, unless they name a policy or the
administrator has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.core.types import Action
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.policy_places import is_given

_BY_A_PERSON = frozenset({"cli", "sdk"})
_SEVERE = SEVERITIES.index("high")


@dataclass(frozen=True, slots=True)
class RuledPolicy:
    """Keeps `PolicyPort`; the files behind it are read again when they change."""

    named: tuple[str, ...]
    """Policy files that the configuration names."""
    is_observing: bool
    environ: Mapping[str, str]

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision:
        """No match is DENY; findings of the guard can only make it stricter."""
        for finding in findings:
            if SEVERITIES.index(finding.severity) >= _SEVERE:
                rule = f" ({finding.rule})" if finding.rule else ""
                return _ours(
                    Verdict.DENY, "guard", f"the guard refuses it: {finding.message}{rule}"
                )
        named = action.policy or self.named
        if action.principal.interface in _BY_A_PERSON and not is_given(named):
            reason = f"asked for explicitly by {action.principal.name}"
            return _ours(Verdict.ALLOW, "explicit", reason)
        # The engine and all that it knows of programs: only where there are rules.
        from cellwall.runtime.ruling import ruled  # noqa: PLC0415  # see above

        return ruled(action, named=named, environ=self.environ, is_observing=self.is_observing)


def _ours(verdict: Verdict, rule: str, reason: str) -> Decision:
    return Decision(verdict, rule, reason, "built-in")
