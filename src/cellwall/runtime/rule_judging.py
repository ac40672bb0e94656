"""The decision on an action by the rules of all policy files that apply to it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.files import FILE_READS, SECOND_HOME, FileOperation
from cellwall.core.packages import InstallPackages, packages_of
from cellwall.core.port_connections import ConnectPort
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.standing_grants import GrantsPort
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    TERMINAL_SHELL,
    Action,
    CallTool,
    FetchUrl,
    ProcessOperation,
    ReachHost,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    ToolResult,
    UseTool,
)
from cellwall.core.users_inside import SECOND_USER
from cellwall.core.verdict import Decision, Verdict, strictest
from cellwall.policy.calls import ToolCall, group_of
from cellwall.policy.engine import Policy, names_files
from cellwall.policy.links import targets
from cellwall.policy.subjects import Targets, only_itself
from cellwall.runtime import policy_places
from cellwall.runtime.policies import effective_policy, policy_without_files

INSIDE = "/workspace"
_ANY_LABEL = "any-name-at-all"


def judge_by_rules(
    action: Action,
    *,
    named: Sequence[str],
    environ: Mapping[str, str],
    is_observing: bool,
    grants: GrantsPort | None,
    protects_build_files: bool = False,
) -> Decision:
    """The decision by all policy files that apply to the action."""
    cwd = policy_places.project_folder(action)
    if _may_name_files(action.operation):
        policy = effective_policy(
            named=named,
            cwd=cwd,
            environ=environ,
            grants=grants,
            protects_build_files=protects_build_files,
        )
    else:
        policy = policy_without_files(named=named, cwd=cwd, environ=environ, grants=grants)
    decision = strictest(_judge_operation(policy, action), *_judge_domains(policy, action))
    if is_observing and decision.verdict is not Verdict.ALLOW:
        return _observe(decision)
    return decision


def _may_name_files(operation: object) -> bool:
    """Whether a rule about files may apply; it takes a third of the time of a decision to find
    those that protect Cellwall's own."""
    if isinstance(operation, CallServerTool):
        return names_files(operation.arguments)
    return not isinstance(operation, RunCode | ConnectPort)


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
        case ConnectPort(port):
            return policy.check(call_inside("Port", port=str(port)), links=only_itself)
        case ProcessOperation() | SetDomains() | ServeClient() as operation:
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
    # `~` is /root for the second user; a rule about `~` may mean the home of either user.
    homes = (INSIDE, SECOND_HOME) if command.user == SECOND_USER else (INSIDE,)
    found = [
        policy.check_argv(command.argv, cwd=command.cwd, home=home, links=only_itself)
        for home in homes
    ]
    return strictest(*found)


def _check_tool(
    policy: Policy, call: ToolCall, *, links: Targets = targets, outside: bool = False
) -> Decision:
    if group_of(call.tool) == "install":
        # A package that no rule names is judged by the checks of packages, which a tool of this
        # name, of an agent or a program, does not apply.
        reason = "packages are installed by a package manager in a sandbox, not by this tool"
        return Decision.built_in(Verdict.DENY, "default", reason)
    if group_of(call.tool) == "port":
        # Open without a rule, which a tool of this name, of an agent or a program, must not be.
        reason = "ports are those of servers inside a sandbox; this tool opens none of them"
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
    above = (policy_places.ADMINISTRATOR, policy_places.FLEET_POLICY_NAME)
    if is_unruled and decision.source not in above:
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
