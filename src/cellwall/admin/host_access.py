"""Whether the rules let sandboxes reach a host, and the one rule that would change it (NET-2).

A host is reached where two things agree: the rules allow it, and the sandbox was started with it or
was given it since. This module is about the rules. A rule is proposed only where it would change
the verdict: no rule of a file lifts what a stricter layer denies.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace

from cellwall.admin.rule_preview import RulePreview, preview_rule, rules_with
from cellwall.core.errors import BadInput, Denied
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Json, Permission, Principal
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.engine import Policy, judge_call
from cellwall.policy.rules import Layer
from cellwall.policy.subjects import only_itself
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.policies import PolicyPlace
from cellwall.runtime.policy_file import add_rule
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.rule_judging import call_inside
from cellwall.runtime.rule_proposals import propose

_TOOL = "WebFetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """A rule that would let sandboxes reach a host, and the file that would get it."""

    text: str
    also_allows: str
    answers: str
    """The asking rule that it answers; empty where no rule asks."""
    place: PolicyPlace

    @property
    def file(self) -> str:
        """The name of the file, without its folder."""
        return os.path.basename(self.place.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAccess:
    """The verdict of the rules on a host."""

    host: str
    decision: Decision
    layer: str
    """The layer of the rule that decided; empty where none did."""
    proposal: HostRule | None = None
    obstacle: str = ""
    """Why no rule would change the verdict; empty where one would, or none is needed."""

    @property
    def is_allowed(self) -> bool:
        return self.decision.verdict is Verdict.ALLOW

    @property
    def shown_sha256(self) -> str:
        """Names what a person was shown: the verdict, the rule and its file."""
        rule, decision = self.proposal, self.decision
        shown = [self.host, decision.verdict.word, decision.rule, decision.source]
        if rule is not None:
            shown += [rule.text, rule.answers, rule.place.path, rule.place.layer.word]
        return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def host_access(host: str, *, policy: Policy, place: PolicyPlace | None) -> HostAccess:
    """What the rules say about the host. `place` is None where the service has no file of rules."""
    url = f"https://{host}/"
    decision = policy.check(call_inside(_TOOL, url=url), links=only_itself)
    layer = next(
        (
            each.layer.word
            for each in policy.rules
            if (each.text, str(each.source)) == (decision.rule, decision.source)
        ),
        "",
    )
    found = HostAccess(host=host, decision=decision, layer=layer)
    if found.is_allowed:
        return found
    if place is None:
        obstacle = "the policy that is shipped with the service cannot be changed"
        return replace(found, obstacle=obstacle)
    proposals = propose(_TOOL, url, decision)
    if not proposals:
        return replace(found, obstacle="no rule is proposed for an address or an unusual name")
    answers = decision.rule if decision.verdict is Verdict.ASK and layer else ""
    rule = HostRule(
        text=proposals[0].rule,
        also_allows=proposals[0].also_allows,
        answers=answers,
        place=place,
    )
    after = _judge_with(rule, url, policy)
    if after.verdict is Verdict.ALLOW:
        return replace(found, proposal=rule)
    return replace(found, obstacle=_obstacle(after, layer, place.layer))


def _judge_with(rule: HostRule, url: str, policy: Policy) -> Decision:
    book = rules_with(rule.text, answers=rule.answers, policy=policy, layer=rule.place.layer)
    return judge_call(book, call_inside(_TOOL, url=url), only_itself)


def _obstacle(after: Decision, layer: str, own: Layer) -> str:
    by = f"the {layer} layer" if layer else "another layer"
    if layer == own.word:
        by = "another rule of the same file or layer"
    return f"{by} is stricter: {after.reason}"


def preview_host_rule(rule: HostRule, *, app: App, policy: Policy) -> RulePreview:
    """What the rule would have allowed in the last week."""
    return preview_rule(
        rule.text,
        answers=rule.answers,
        policy=policy,
        layer=rule.place.layer,
        home=app.store.home,
        keys=app.keys,
    )


def allow_host(access: HostAccess, *, shown_sha256: str, app: App, who: Principal) -> bool:
    """Write the proposed rule; False where the file has it already.

    `access` is of this moment, `shown_sha256` of what the person saw: a policy that was changed in
    between is shown again first.
    """
    require(app.settings, who, Permission.POLICY_WRITE)
    if access.shown_sha256 != shown_sha256:
        raise BadInput(
            "the rules about this host are not those that were shown",
            hint="Read the page again, then allow the host.",
            code="CW-PRECONDITION",
        )
    if app.settings.approvals.key:
        raise Denied(
            "a rule for a host needs the passphrase of the approver",
            hint="Write it into the policy file on the machine of the service, then: cellwall "
            "policy trust",
            code="CW-APPROVER-PASSPHRASE",
        )
    rule = access.proposal
    if rule is None:
        raise BadInput(
            f"no rule would change the verdict on {access.host}",
            hint=access.obstacle or "The rules allow it already.",
            code="CW-NO-EFFECT",
        )
    known: dict[str, Json] = {
        "host": access.host,
        "rule": rule.text,
        "layer": rule.place.layer.word,
    }
    change = AdminChange(EventKind.CONFIG, "allow host", access.host, known)
    with change.recorded(app.audit, who) as outcome:
        is_new = add_rule(
            rule.place.path, rule.text, reason=f"allowed by {who.name}", answers=rule.answers
        )
        outcome["is_new"] = is_new
    return is_new
