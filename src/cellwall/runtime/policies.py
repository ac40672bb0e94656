"""The policy files that apply to an action, merged (POL-7), and the decision by their rules.

   administrator   /etc/cellwall/policy.toml
   user            policy.toml in the folder of the user's configuration
   project         .cellwall/policy.toml, .claude/settings.json and .claude/settings.local.json, in
                   the working directory and in each folder above it
   session         files named for this call; the user's and the project's are then ignored

A project's files come from the author of the project, who may be hostile. They can forbid. What
they allow applies only where the rules of the administrator, the user or the session allow it as
well, or where a person has trusted that exact content (`cellwall policy trust`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cellwall.core.files import FILE_READS, FileOperation
from cellwall.core.home import cache_path, state_path
from cellwall.core.packages import InstallPackages, packages_of
from cellwall.core.port_connections import ConnectPort
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    TERMINAL_SHELL,
    Action,
    CallTool,
    FetchUrl,
    ProcessOperation,
    ReachHost,
    ReceiveMessage,
    RunCode,
    RunCommand,
    SendReply,
    ServeClient,
    SetDomains,
    ToolResult,
    UseAccount,
    UseTool,
)
from cellwall.core.verdict import Decision, Verdict, strictest
from cellwall.policy.calls import ToolCall, group_of, parse_call
from cellwall.policy.calls import ToolCall as Call
from cellwall.policy.calls import from_json as read_call
from cellwall.policy.engine import Policy, names_files, registries_in
from cellwall.policy.links import targets
from cellwall.policy.policy_file import load_policy_file
from cellwall.policy.protected_rules import build_file_rules
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import OTHERWISE, Layer, Rule, Source, closes_layer
from cellwall.policy.subjects import Targets, only_itself
from cellwall.runtime import policy_places
from cellwall.runtime.policy_places import is_there, project_files, user_policy

__all__ = [
    "INSIDE",
    "Call",
    "Layer",
    "Policy",
    "PolicyPlace",
    "approved_rules_place",
    "effective_policy",
    "judge_by_rules",
    "parse_call",
    "places",
    "policy_without_files",
    "read_call",
    "registries_in",
    "set_aside",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PolicyPlace:
    """A policy file that applies, and its layer."""

    path: str
    layer: Layer


def places(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[PolicyPlace, ...]:
    """The policy files that exist; a file named for the session must exist."""
    found = [PolicyPlace(policy_places.ADMINISTRATOR, Layer.ADMINISTRATOR)]
    if named:
        found += [PolicyPlace(os.path.join(cwd, each), Layer.SESSION) for each in named]
    else:
        found.append(PolicyPlace(user_policy(environ), Layer.USER))
        found += [PolicyPlace(path, Layer.PROJECT) for path in project_files(cwd)]
    return tuple(each for each in found if each.layer is Layer.SESSION or is_there(each.path))


def approved_rules_place(named: Sequence[str], environ: Mapping[str, str]) -> PolicyPlace:
    """The file that gets the rules that a person approves, and its layer."""
    layer = Layer.SESSION if named else Layer.USER
    return PolicyPlace(policy_places.approved_rules_file(named, environ), layer)


def effective_policy(
    *,
    named: Sequence[str] = (),
    cwd: str,
    environ: Mapping[str, str],
    protects_build_files: bool = False,
) -> Policy:
    """The merged policy of all files that apply; read again only after a change."""
    return _effective(named, cwd, environ, protects_build_files=protects_build_files).policy


def policy_without_files(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> Policy:
    """The same for what names no file, such as each package of an installer: without the rules that
    protect Cellwall's own files, whose paths take longest to find."""
    found = places(named=named, cwd=cwd, environ=environ)
    return _load_places(found, environ, (), protects_build_files=False).policy


def set_aside(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """The project's files whose allow rules are ignored, since no person has trusted them."""
    return _effective(named, cwd, environ, protects_build_files=False).aside


def _effective(
    named: Sequence[str], cwd: str, environ: Mapping[str, str], *, protects_build_files: bool
) -> _Loaded:
    found = places(named=named, cwd=cwd, environ=environ)
    own = own_places(environ, found)
    return _load_places(found, environ, own, protects_build_files=protects_build_files)


def _load_places(
    found: tuple[PolicyPlace, ...],
    environ: Mapping[str, str],
    own: tuple[str, ...],
    *,
    protects_build_files: bool,
) -> _Loaded:
    is_project = any(each.layer is Layer.PROJECT for each in found)
    trust = policy_places.trust_stamp(environ) if is_project else None
    home = os.path.expanduser("~")
    return _load(found, _stamp(found), home, trust, own, protects_build_files=protects_build_files)


def _stamp(found: Sequence[PolicyPlace]) -> Stamp:
    stamps = []
    for each in found:
        try:
            status = os.stat(each.path)
        except OSError:  # reported when the file is read
            stamps.append((each.path, 0, 0, 0))
        else:
            stamps.append((each.path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


@dataclass(frozen=True, slots=True)
class _Loaded:
    policy: Policy
    aside: tuple[str, ...]


@lru_cache(maxsize=32)
def _load(
    found: tuple[PolicyPlace, ...],
    _: Stamp,
    home: str,
    trust: policy_places.TrustStamp | None,
    own: tuple[str, ...],
    *,
    protects_build_files: bool,
) -> _Loaded:
    files = [(each.path, load_policy_file(each.path, each.layer, home=home)) for each in found]
    is_allowed_above = any(
        rule.layer is not Layer.PROJECT and closes_layer(rule)
        for _, file in files
        for rule in file.rules
    )
    trusted = frozenset() if trust is None else policy_places.read_trusted(trust)
    rules: list[Rule] = [_protecting(path) for path in own]
    rules += build_file_rules() if protects_build_files else ()
    aside = []
    for path, file in files:
        # The digest is of the text that was parsed: no file can be swapped in between.
        is_trusted = (os.path.realpath(path), file.sha256) in trusted
        if file.layer is not Layer.PROJECT or is_trusted:
            rules += file.rules
            continue
        if is_allowed_above:  # it can only tighten, and must not answer a question
            rules += [replace(rule, is_untrusted=True) for rule in file.rules if not rule.answers]
            continue
        # `otherwise` turns a denial into a question: it loosens, as an allow does.
        kept = [
            replace(rule, is_untrusted=True)
            for rule in file.rules
            if rule.verdict is not Verdict.ALLOW and rule.tool != OTHERWISE
        ]
        aside += [file.file] if len(kept) < len(file.rules) else []
        rules += kept
    return _Loaded(Policy.of(rules), tuple(aside))


def own_places(environ: Mapping[str, str], found: Sequence[PolicyPlace]) -> tuple[str, ...]:
    """Paths that an agent must not write: they judge or log the agent."""
    # Attack: a rule set planted in the cache makes the guard and the redaction find nothing.
    places = [state_path(environ), cache_path(environ)]
    places += [os.path.dirname(user_policy(environ)), _PACKAGE]
    places += [each.path for each in found if each.layer is not Layer.PROJECT]
    real = (_real_path(path) for path in places)
    return tuple(dict.fromkeys((*places, *real)))


def _real_path(path: str) -> str:
    """As `os.path.realpath`, by the kernel: for each action, and Python asks it for each part."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not there, or not reachable
        return os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # no /proc
        return os.path.realpath(path)
    finally:
        os.close(descriptor)


def _protecting(path: str) -> Rule:
    spelled = re.sub(r"([\\*?\[\]{}!])", r"\\\1", path)
    return parse_rule(
        f"Write(/{spelled})",
        verdict=Verdict.DENY,
        source=Source("built-in"),
        layer=Layer.BUILT_IN,
        reason="Cellwall's own program, rules, settings and audit log",
    )


INSIDE = "/workspace"
_ANY_LABEL = "any-name-at-all"


def judge_by_rules(
    action: Action,
    *,
    named: Sequence[str],
    environ: Mapping[str, str],
    is_observing: bool,
    protects_build_files: bool = False,
) -> Decision:
    """The decision by all policy files that apply to the action."""
    cwd = action.operation.cwd if isinstance(action.operation, UseTool) else os.getcwd()
    if _may_name_files(action.operation):
        policy = effective_policy(
            named=named, cwd=cwd, environ=environ, protects_build_files=protects_build_files
        )
    else:
        policy = policy_without_files(named=named, cwd=cwd, environ=environ)
    decision = strictest(_judge_operation(policy, action), *_judge_domains(policy, action))
    if is_observing and decision.verdict is not Verdict.ALLOW:
        return _observe(decision)
    return decision


def _may_name_files(operation: object) -> bool:
    """Whether a rule about files may apply; it takes a third of the time of a decision to find
    those that protect Cellwall's own."""
    if isinstance(operation, CallServerTool):
        return names_files(operation.arguments)
    return not isinstance(operation, RunCode)


def _judge_operation(  # noqa: C901, PLR0911  # one case for each operation
    policy: Policy, action: Action
) -> Decision:
    match action.operation:
        case UseTool(tool, arguments, cwd) as use:
            call = ToolCall(tool, arguments, cwd, os.path.expanduser("~"))
            return _check_tool(policy, call, outside=not use.is_inside)
        case RunCommand() as command:
            return _judge_command(policy, command)
        case RunCode(language):
            return policy.check(call_inside("Code", language=language), links=only_itself)
        case FileOperation() as operation:
            tool = "Read" if operation.name in FILE_READS else "Write"
            paths = [operation.path, *([operation.target] if operation.target else [])]
            found = [
                policy.check(call_inside(tool, file_path=path or "."), links=only_itself)
                for path in paths
            ]
            return strictest(*found)
        case TakeSnapshot() | RestoreSnapshot() as operation:
            return policy.check(call_inside(operation.tool), links=only_itself)
        case CallTool(name, _, arguments):
            return _check_tool(policy, ToolCall(name, arguments, INSIDE, INSIDE), links=only_itself)
        case ProcessOperation() | ConnectPort() | SetDomains() | ServeClient() as operation:
            # Where it may go is judged beside this, for each domain.
            is_client = isinstance(operation, ServeClient)
            reason = "its domains are allowed" if is_client else "the process was allowed to run"
            return Decision.built_in(Verdict.ALLOW, "session", reason)
        case ReachHost() as host:
            return _judge_unknown(policy, host)
        case FetchUrl() | InstallPackages() | CallServerTool() | RunServer() as reach:
            return _judge_reach(policy, reach)
        case ReceiveMessage(channel) | SendReply(channel):
            return policy.check(call_inside("Chat", channel=channel), links=only_itself)
        case UseAccount(account, name):
            return policy.check(call_inside(name, account=account), links=only_itself)
        case ToolResult():
            return Decision.built_in(Verdict.DENY, "default", "a tool result is not a request")


def _judge_command(policy: Policy, command: RunCommand) -> Decision:
    if command.terminal is not None and command.argv == TERMINAL_SHELL:
        return policy.check(call_inside("Terminal"), links=only_itself)
    return policy.check_argv(command.argv, cwd=command.cwd, home=INSIDE, links=only_itself)


def _check_tool(
    policy: Policy, call: ToolCall, *, links: Targets = targets, outside: bool = False
) -> Decision:
    if group_of(call.tool) == "install":
        # A package that no rule names is judged by the checks of packages, which a tool of this
        # name, of an agent or a program, does not apply.
        reason = "packages are installed by a package manager in a sandbox, not by this tool"
        return Decision.built_in(Verdict.DENY, "default", reason)
    return policy.check(call, links=links, outside=outside)


def _judge_reach(
    policy: Policy, operation: FetchUrl | InstallPackages | CallServerTool | RunServer
) -> Decision:
    if isinstance(operation, CallServerTool):
        call = ToolCall(operation.rule_name, operation.arguments, INSIDE, INSIDE)
        return policy.check(call, links=only_itself)
    if isinstance(operation, RunServer):
        if operation.url:
            return policy.check(call_inside("WebFetch", url=operation.url), links=only_itself)
        return policy.check_argv(operation.argv, cwd=INSIDE, home=INSIDE, links=only_itself)
    if isinstance(operation, InstallPackages):
        calls = [call_inside("Install", package=each) for each in packages_of(operation)]
        return strictest(*(policy.check(call, links=only_itself) for call in calls))
    return policy.check(call_inside("WebFetch", url=operation.url), links=only_itself)


def _judge_unknown(policy: Policy, operation: ReachHost) -> Decision:
    """A denial of a rule holds; where no rule names the host, the configuration has a person asked.
    The administrator's rules are above the configuration: what they do not allow stays denied."""
    url = f"https://{operation.destination}/"
    decision = policy.check(call_inside("WebFetch", url=url), links=only_itself)
    is_unruled = decision.verdict is Verdict.DENY and decision.rule == "default"
    if is_unruled and decision.source != policy_places.ADMINISTRATOR:
        return replace(decision, verdict=Verdict.ASK)
    return decision


def _judge_domains(policy: Policy, action: Action) -> list[Decision]:
    """Each allowed domain, judged as a fetch from it."""
    rules = [text.rpartition(" ")[2].partition("/")[0] for text in action.allow_domains]
    hosts = [host for rule in rules for host in _hosts_of(rule, policy)]
    return [policy.check(call_inside("WebFetch", url=f"https://{host}/")) for host in hosts]


def _hosts_of(rule: str, policy: Policy) -> list[str]:
    """The hosts to judge for a domain rule. A wildcard stands for a host that no rule names, which
    only a rule as wide allows, and for each host that a rule names, since the strictest wins."""
    if not rule.startswith("*."):
        return [rule]
    above = rule.partition(":")[0].removeprefix("*")
    named = [each.specifier for each in policy.rules if each.specifier and each.tool == "WebFetch"]
    hosts = [name.removeprefix("domain:").replace("*", _ANY_LABEL) for name in named]
    return [rule.replace("*", _ANY_LABEL), *(host for host in hosts if host.endswith(above))]


def call_inside(tool: str, **arguments: str) -> ToolCall:
    """A call by code in a sandbox."""
    return ToolCall(tool, arguments, INSIDE, INSIDE)


def _observe(decision: Decision) -> Decision:
    """Observe mode: the action runs, and the log says what would have been decided."""
    would = "asked about" if decision.verdict is Verdict.ASK else "denied"
    by_rule = f" by {decision.rule} ({decision.source})" if decision.rule else ""
    reason = f"would be {would}: {decision.reason}{by_rule}"
    return replace(decision, verdict=Verdict.ALLOW, rule="observe", reason=reason)
