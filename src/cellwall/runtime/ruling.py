"""An action as calls in the words of rules, and what the rules say of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    FileOperation,
    ProcessOperation,
    RunCode,
    RunCommand,
    SetDomains,
    ToolResult,
    UseTool,
)
from cellwall.core.verdict import Decision, Verdict, strictest
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from cellwall.policy.subjects import only_itself
from cellwall.runtime.policies import effective_policy

INSIDE = "/workspace"
_ANY_LABEL = "any-name-at-all"
WRITING = frozenset({"write", "make_dir", "move", "remove", "upload"})


def ruled(
    action: Action, *, named: Sequence[str], environ: Mapping[str, str], is_observing: bool
) -> Decision:
    """By all policy files that count for it."""
    cwd = action.operation.cwd if isinstance(action.operation, UseTool) else os.getcwd()
    policy = effective_policy(named=named, cwd=cwd, environ=environ)
    decision = strictest(_judged(policy, action), *_ways_out(policy, action))
    if is_observing and decision.verdict is not Verdict.ALLOW:
        return _observed(decision)
    return decision


def _judged(policy: Policy, action: Action) -> Decision:
    match action.operation:
        case UseTool(tool, given, cwd) as use:
            call = ToolCall(tool, given, cwd, os.path.expanduser("~"))
            return policy.check(call, outside=not use.is_inside)
        case RunCommand(argv, cwd):
            return policy.check_argv(argv, cwd=cwd, home=INSIDE, links=only_itself)
        case RunCode(language):
            return policy.check(_inside("Code", language=language), links=only_itself)
        case FileOperation() as operation:
            tool = "Write" if operation.name in WRITING else "Read"
            paths = [operation.path, *([operation.target] if operation.target else [])]
            found = [
                policy.check(_inside(tool, file_path=path or "."), links=only_itself)
                for path in paths
            ]
            return strictest(*found)
        case CallTool(name, _, given):
            return policy.check(ToolCall(name, given, INSIDE, INSIDE), links=only_itself)
        case ProcessOperation() | SetDomains():
            return _ours(Verdict.ALLOW, "session", "it is about what was allowed to run")
        case FetchUrl(url):
            return policy.check(_inside("WebFetch", url=url), links=only_itself)
        case ToolResult():
            return _ours(Verdict.DENY, "default", "a result is not asked for")


def _ways_out(policy: Policy, action: Action) -> list[Decision]:
    """Each domain as a fetch from it."""
    rules = [text.rpartition(" ")[2].partition("/")[0] for text in action.allow_domains]
    hosts = [host for rule in rules for host in _meant_by(rule, policy)]
    return [policy.check(_inside("WebFetch", url=f"https://{host}/")) for host in hosts]


def _meant_by(rule: str, policy: Policy) -> list[str]:
    """Below a wildcard any name may be meant: one that no rule names, which only a rule as wide
    allows, and each that a rule names there, since the strictest wins."""
    if not rule.startswith("*."):
        return [rule]
    above = rule.partition(":")[0].removeprefix("*")
    named = [each.specifier for each in policy.rules if each.specifier and each.tool == "WebFetch"]
    hosts = [name.removeprefix("domain:").replace("*", _ANY_LABEL) for name in named]
    return [rule.replace("*", _ANY_LABEL), *(host for host in hosts if host.endswith(above))]


def _inside(tool: str, **given: str) -> ToolCall:
    return ToolCall(tool, given, INSIDE, INSIDE)


def _observed(decision: Decision) -> Decision:
    """Only looked at: it goes on, and the record says what would have become of it."""
    would = "asked about" if decision.verdict is Verdict.ASK else "denied"
    told = f" by {decision.rule} ({decision.source})" if decision.rule else ""
    reason = f"would be {would}: {decision.reason}{told}"
    return replace(decision, verdict=Verdict.ALLOW, rule="observe", reason=reason)


def _ours(verdict: Verdict, rule: str, reason: str) -> Decision:
    return Decision(verdict, rule, reason, "built-in")
