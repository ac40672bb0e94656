"""Which policy files count here, and the policy they make together (POL-7).

   administrator   /etc/cellwall/policy.toml
   user            policy.toml in the folder of the user's configuration
   project         .cellwall/policy.toml, .claude/settings.json and .claude/settings.local.json, in
                   the working directory and in each folder above it
   session         what was named for this call; the user's and the project's are then left aside

A project's files come from whoever wrote the project. They can forbid; what they allow counts only
where the administrator's, the user's or the session's rules allow it as well, or where a person has
trusted that very content (`cellwall policy trust`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cellwall.core.home import state_path
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
from cellwall.policy.calls import ToolCall, parse_call
from cellwall.policy.calls import ToolCall as Call
from cellwall.policy.calls import from_json as read_call
from cellwall.policy.engine import Policy
from cellwall.policy.files import load_policy_file
from cellwall.policy.parse import parse_rule
from cellwall.policy.rules import OTHERWISE, Layer, Rule, Source
from cellwall.policy.subjects import only_itself
from cellwall.runtime import policy_places
from cellwall.runtime.policy_places import is_there, project_files, user_policy

__all__ = [
    "INSIDE",
    "WRITING",
    "Call",
    "Policy",
    "effective_policy",
    "parse_call",
    "places",
    "read_call",
    "ruled",
    "set_aside",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PolicyPlace:
    """A file that counts."""

    path: str
    layer: Layer


def places(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[PolicyPlace, ...]:
    """Those that are there; what was named must be."""
    found = [PolicyPlace(policy_places.ADMINISTRATOR, Layer.ADMINISTRATOR)]
    if named:
        found += [PolicyPlace(os.path.join(cwd, each), Layer.SESSION) for each in named]
    else:
        found.append(PolicyPlace(user_policy(environ), Layer.USER))
        found += [PolicyPlace(path, Layer.PROJECT) for path in project_files(cwd)]
    return tuple(each for each in found if each.layer is Layer.SESSION or is_there(each.path))


def effective_policy(*, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]) -> Policy:
    """Of all files that count; read again only when one of them has changed."""
    return _effective(named, cwd, environ).policy


def set_aside(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """The project's files whose allowing rules do not count, since nobody has trusted them."""
    return _effective(named, cwd, environ).aside


def _effective(named: Sequence[str], cwd: str, environ: Mapping[str, str]) -> _Loaded:
    found = places(named=named, cwd=cwd, environ=environ)
    is_project = any(each.layer is Layer.PROJECT for each in found)
    trust = policy_places.trust_stamp(environ) if is_project else None
    own = own_places(environ, found)
    return _loaded(found, _stamp(found), os.path.expanduser("~"), trust, own)


def _stamp(found: Sequence[PolicyPlace]) -> Stamp:
    stamps = []
    for each in found:
        try:
            status = os.stat(each.path)
        except OSError:  # told when it is read
            stamps.append((each.path, 0, 0, 0))
        else:
            stamps.append((each.path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


@dataclass(frozen=True, slots=True)
class _Loaded:
    policy: Policy
    aside: tuple[str, ...]


@lru_cache(maxsize=32)
def _loaded(
    found: tuple[PolicyPlace, ...],
    _: Stamp,
    home: str,
    trust: policy_places.TrustStamp | None,
    own: tuple[str, ...],
) -> _Loaded:
    files = [(each.path, load_policy_file(each.path, each.layer, home=home)) for each in found]
    is_allowed_above = any(
        rule.verdict is Verdict.ALLOW and rule.layer is not Layer.PROJECT and not rule.answers
        for _, file in files
        for rule in file.rules
    )
    trusted = frozenset() if trust is None else policy_places.read_trusted(trust)
    rules: list[Rule] = [_protecting(path) for path in own]
    aside = []
    for path, file in files:
        # The digest is of the text that was parsed: nothing can be put in between.
        is_trusted = (os.path.realpath(path), file.sha256) in trusted
        if file.layer is not Layer.PROJECT or is_trusted:
            rules += file.rules
            continue
        if is_allowed_above:  # it can only tighten; but a question is not for it to answer
            rules += [replace(rule, is_untrusted=True) for rule in file.rules if not rule.answers]
            continue
        # `otherwise` turns a denial into a question: that is no more for it to say than an allow.
        kept = [
            replace(rule, is_untrusted=True)
            for rule in file.rules
            if rule.verdict is not Verdict.ALLOW and rule.tool != OTHERWISE
        ]
        aside += [file.file] if len(kept) < len(file.rules) else []
        rules += kept
    return _Loaded(Policy.of(rules), tuple(aside))


def own_places(environ: Mapping[str, str], found: Sequence[PolicyPlace]) -> tuple[str, ...]:
    """What an agent must not write, wherever it lies: it judges or records the agent."""
    places = [state_path(environ), os.path.dirname(user_policy(environ)), _PACKAGE]
    places += [each.path for each in found if each.layer is not Layer.PROJECT]
    real = (os.path.realpath(path) for path in places)
    return tuple(dict.fromkeys((*places, *real)))


def _protecting(path: str) -> Rule:
    spelled = re.sub(r"([\\*?\[\]{}!])", r"\\\1", path)
    return parse_rule(
        f"Write(/{spelled})",
        verdict=Verdict.DENY,
        source=Source("built-in"),
        layer=Layer.BUILT_IN,
        reason="Cellwall's own program, rules, settings and record",
    )


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
