"""Probes of roles and rules: calls that are judged and recorded on a trial host, and never run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cellwall.accounts.roles import shipped_roles
from cellwall.admin.ability import Ability
from cellwall.admin.blast_radius import ProbeResult, ProbeState
from cellwall.admin.radius_probes import Unprobed
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action, Json, Principal, UseTool
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import group_of, parse_call
from cellwall.policy.rules import OTHERWISE, Layer, Rule
from cellwall.runtime.home import local_principal
from cellwall.runtime.judging import required_permissions
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.signed_grants import signed_grants

_BY_ROLE = "role:"
_TOOLS: tuple[tuple[str, Mapping[str, Json]], ...] = (
    ("Bash", {"command": "true"}),
    ("Read", {"file_path": "notes.txt"}),
    ("Write", {"file_path": "notes.txt", "content": ""}),
    ("WebFetch", {"url": "https://host.invalid/", "prompt": "read"}),
    ("mcp__probe__tool", {}),
)
"""One call for each kind of permission."""
_HARMLESS: Mapping[str, Json] = {"command": "true"}
_HARMFUL: Mapping[str, Json] = {"command": "sudo reboot"}
_ALLOWS_ALL = '[permissions]\nallow = ["Bash"]\n'
_MAX_EXAMPLES = 200


class PolicyTrials:
    """The probes that ask for a decision."""

    def __init__(self, host: TrialHost, token: str) -> None:
        self._host, self._token = host, token

    async def probe_role(self, line: Ability) -> ProbeResult:
        """Each kind of call, by a user whom no setting names; the control is a guest."""
        stranger = Principal(f"probe-{self._token}", "cli")
        role, wrong = shipped_roles()[line.bound], []
        for tool, given in _TOOLS:
            is_refused = await self._is_refused_by_role(stranger, tool, given)
            operation = UseTool(tool, given, os.getcwd())
            needed = required_permissions(Action(principal=stranger, operation=operation))
            if is_refused == (needed <= role.permissions):
                wrong.append(f"{tool} was {'refused' if is_refused else 'permitted'}")
        guest = Principal(stranger.name, "cli", role="guest")
        if not await self._is_refused_by_role(guest, *_TOOLS[0]):
            raise Unprobed("the control failed: a guest may run commands")
        return _result(wrong, f"calls of a new user were judged as those of {line.bound}")

    async def _is_refused_by_role(
        self, who: Principal, tool: str, given: Mapping[str, Json]
    ) -> bool:
        outcome = await self._judge(tool, given, who=who)
        return outcome.decision.rule.startswith(_BY_ROLE)

    async def probe_allowed(self, line: Ability) -> ProbeResult:
        """The examples of the rules; without any rule, a harmless command."""
        generous = (self._host.write_policy(f"all-{self._token}.toml", _ALLOWS_ALL),)
        rules = [each for each in self._rules() if each.verdict is Verdict.ALLOW]
        if rules:
            return await self._try_examples(rules, is_allowed=line.is_possible)
        found = await self._judge("Bash", _HARMLESS)
        control = await self._judge("Bash", _HARMLESS, files=generous)
        if not _is_allowed(control):
            raise Unprobed("the control failed: a rule refuses every command")
        is_observed = self._host.app.settings.policy.dangerously_observe
        wrong = (
            []
            if _is_allowed(found) == (line.is_possible or is_observed)
            else ["it was judged otherwise"]
        )
        return _result(wrong, "a harmless command was denied; under a rule that allows it, allowed")

    async def probe_restricted(self, line: Ability) -> ProbeResult:
        """A command that built-in rules deny and one that they do not, under a rule that allows
        both; then the examples of the user's own rules."""
        files = (
            *self._host.app.settings.policy.files,
            self._host.write_policy(f"generous-{self._token}.toml", _ALLOWS_ALL),
        )
        harmful = await self._judge("Bash", _HARMFUL, files=files)
        if not _is_allowed(await self._judge("Bash", _HARMLESS, files=files)):
            raise Unprobed("the control failed: a rule refuses every command")
        if _is_allowed(harmful) != line.is_possible:
            word = "allowed" if _is_allowed(harmful) else "denied"
            return _result([f"a command against built-in rules was {word}"], "")
        rules = [
            each
            for each in self._rules()
            if each.verdict is not Verdict.ALLOW and each.tool != OTHERWISE
        ]
        told = "a command against built-in rules was judged so, a harmless one was allowed"
        if not any(each.match for each in rules):
            return _result([], told)
        tried = await self._try_examples(rules, is_allowed=line.is_possible)
        return ProbeResult(tried.state, f"{told}; {tried.found}")

    async def probe_hosts(self, line: Ability) -> ProbeResult:
        """A fetch of each host that a rule names, and of one that none names; both only judged."""
        wrong: list[str] = []
        names = [each for each in line.members if each.startswith("domain:") and "*" not in each]
        if not names:
            raise Unprobed("no rule names one host")
        for each in names:
            host = each.removeprefix("domain:")
            if _is_allowed(await self._fetch(host)) != line.is_possible:
                wrong.append(f"{host} was judged otherwise")
        is_any = "every host" in line.members
        if _is_allowed(await self._fetch(f"{self._token}.example.com")) != is_any:
            wrong.append("a host that no rule names was judged otherwise")
        return _result(wrong, "a fetch of each was allowed, one of another host was not")

    async def _fetch(self, host: str) -> Outcome:
        return await self._judge("WebFetch", {"url": f"https://{host}/", "prompt": "read"})

    def _rules(self) -> list[Rule]:
        settings = self._host.app.settings
        policy = effective_policy(
            named=settings.policy.files,
            cwd=os.getcwd(),
            environ=self._host.environ,
            grants=signed_grants(self._host.app.store.home, settings),
            protects_build_files=settings.workspace.protects_build_files,
        )
        return [each for each in policy.rules if each.layer is not Layer.BUILT_IN]

    async def _try_examples(self, rules: Sequence[Rule], *, is_allowed: bool) -> ProbeResult:
        wrong, count = [], 0
        examples = [(rule, text) for rule in rules for text in rule.match if _is_call(rule)]
        if not examples:
            raise Unprobed(f"none of the {len(rules)} rules brings an example of a call (`match`)")
        for rule, text in examples[:_MAX_EXAMPLES]:
            is_whole = text.startswith((f"{rule.tool}(", "mcp__")) or text == rule.tool
            call = parse_call(text if is_whole else f"{rule.tool}({text})", cwd=os.getcwd())
            found = await self._judge(call.tool, dict(call.input))
            count += 1
            # A stricter rule may refuse what another one allows.
            if _is_allowed(found) != is_allowed and not (is_allowed and found.decision.rule):
                wrong.append(f"{rule.text}: {text[:60]} was {found.decision.verdict.word}")
        return _result(wrong, f"{count} examples of {len(rules)} rules were judged so")

    async def _judge(
        self,
        tool: str,
        given: Mapping[str, Json],
        *,
        who: Principal | None = None,
        files: tuple[str, ...] = (),
    ) -> Outcome:
        operation = UseTool(tool, given, os.getcwd(), is_inside=True)
        action = Action(principal=who or local_principal("hook"), operation=operation, policy=files)
        outcome = await self._host.app.runtime.perform(action)
        if outcome.error is not None and outcome.decision.rule == "":
            raise _cause(outcome)
        return outcome


def _cause(outcome: Outcome) -> CellwallError:
    assert outcome.error is not None  # noqa: S101  # by the caller
    return outcome.error.to_exception()


def _is_call(rule: Rule) -> bool:
    return group_of(rule.tool) != "install"


def _is_allowed(outcome: Outcome) -> bool:
    return outcome.decision.verdict is Verdict.ALLOW


def _result(wrong: Sequence[str], told: str) -> ProbeResult:
    if wrong:
        return ProbeResult(ProbeState.CONTRADICTED, "; ".join(wrong[:5]))
    return ProbeResult(ProbeState.CONFIRMED, told)
