"""Step 4 of the path: an action becomes a call in the words of rules, and is judged by them.

What agents ask for, through a hook or a protocol, is always judged by rules. A person who types a
command or embeds Cellwall has allowed what they ask for by asking, unless they name a policy or the
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
        is_by_a_person = action.principal.interface in _BY_A_PERSON
        if is_by_a_person and not is_given(named):
            reason = f"asked for explicitly by {action.principal.name}"
            return _ours(Verdict.ALLOW, "explicit", reason)
        # The engine and all that it knows of programs: only where there are rules.
        from cellwall.runtime.policies import ruled

        try:
            return ruled(action, named=named, environ=self.environ, is_observing=self.is_observing)
        except ConfigError as error:
            raise error if is_by_a_person else _untold(error) from None


def _untold(error: ConfigError) -> ConfigError:
    """For a model: the mistake quotes a file, which may be a stranger's, and tells its path."""
    return ConfigError(
        "a policy file that counts here cannot be used, so nothing is allowed",
        hint="A person sees why, in this folder, with `cellwall policy check 'Bash(ls)'`.",
        code=error.code,
        detail=error.message,
    )


def _ours(verdict: Verdict, rule: str, reason: str) -> Decision:
    return Decision(verdict, rule, reason, "built-in")
