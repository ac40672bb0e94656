"""Step 4: the decision on an action, by guard findings, explicit request or policy rules.

Requests of agents, through a hook or a protocol, are always judged by rules. A person who types a
command or embeds Cellwall has allowed it by asking, unless the person names a policy or the
administrator has one.
"""

# ruff: noqa: PLC0415  # late imports: the policy engine loads only where rules judge

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.errors import ConfigError
from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.core.types import Action
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.policy_places import is_given

_BY_A_PERSON = frozenset({"cli", "sdk"})
_SEVERE = SEVERITIES.index("high")


@dataclass(frozen=True, slots=True)
class RuledPolicy:
    """Implements `PolicyPort`; policy files are read again when they change."""

    named: tuple[str, ...]
    """Policy files that the configuration names."""
    is_observing: bool
    environ: Mapping[str, str]

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision:
        """No match is DENY; findings of the guard can only make the verdict stricter."""
        for finding in findings:
            if SEVERITIES.index(finding.severity) >= _SEVERE:
                rule = f" ({finding.rule})" if finding.rule else ""
                return _ours(
                    Verdict.DENY, "guard", f"the guard refused it: {finding.message}{rule}"
                )
        named = action.policy or self.named
        is_by_a_person = action.principal.interface in _BY_A_PERSON
        if is_by_a_person and not is_given(named):
            reason = f"asked for explicitly by {action.principal.name}"
            return _ours(Verdict.ALLOW, "explicit", reason)
        from cellwall.runtime.policies import ruled

        try:
            return ruled(action, named=named, environ=self.environ, is_observing=self.is_observing)
        except ConfigError as error:
            raise error if is_by_a_person else _without_detail(error) from None


def _without_detail(error: ConfigError) -> ConfigError:
    """For a model: the full message quotes a file, which may be hostile, and shows its path."""
    return ConfigError(
        "a policy file that applies here is invalid, so nothing is allowed",
        hint="A person sees the reason in this folder with `cellwall policy check 'Bash(ls)'`.",
        code=error.code,
        detail=error.message,
    )


def _ours(verdict: Verdict, rule: str, reason: str) -> Decision:
    return Decision(verdict, rule, reason, "built-in")
