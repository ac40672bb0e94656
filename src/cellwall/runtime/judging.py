"""Steps 2 and 4: what the role of a principal permits (RBAC-1), and the decision on an action.

Permissions are checked before the policy and before any question: no rule, no person's yes and no
isolation layer grants what the role of the principal lacks (RBAC-2).

Requests of agents, through a hook or a protocol, are always judged by rules. A person who types a
command or embeds Cellwall has allowed it by asking, unless the person names a policy or the
administrator has one.
"""

# ruff: noqa: PLC0415  # late imports: the policy engine loads only where rules judge

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from cellwall.accounts.roles import Roles
from cellwall.config.models import Settings
from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.files import FILE_READS, FileOperation
from cellwall.core.outcomes import SEVERITIES, Finding
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort
from cellwall.core.ports import RolesPort
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.standing_grants import GrantsPort
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    Permission,
    Principal,
    ProcessOperation,
    ReachHost,
    Role,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    ToolResult,
    UseTool,
    WorkspaceMode,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.policy_places import is_given


def roles_of(settings: Settings) -> Roles:
    """The roles as configured."""
    roles = settings.roles
    return Roles(roles.default, roles.users, roles.interfaces)


def require(settings: Settings, who: Principal, permission: Permission) -> None:
    """Raise `Denied` unless the role of the principal holds the permission."""
    roles_of(settings).require(who, permission)


# An agent's own tools, by the names that its host uses. Any other tool needs TOOLS_CALL.
_OF_TOOL = {
    "Bash": Permission.SANDBOX_EXECUTE,
    "Read": Permission.FILES_READ,
    "Glob": Permission.FILES_READ,
    "Grep": Permission.FILES_READ,
    "LS": Permission.FILES_READ,
    "NotebookRead": Permission.FILES_READ,
    "Write": Permission.FILES_WRITE,
    "Edit": Permission.FILES_WRITE,
    "MultiEdit": Permission.FILES_WRITE,
    "NotebookEdit": Permission.FILES_WRITE,
    "WebFetch": Permission.NETWORK_USE,
    "WebSearch": Permission.NETWORK_USE,
}


def required_permissions(action: Action) -> frozenset[Permission]:  # noqa: C901, PLR0912  # one case for each operation
    """All permissions that an action needs; an effect that is only possible counts as certain."""
    found: set[Permission] = set()
    match action.operation:
        case RunCommand() | RunCode() | RunServer():
            found.add(Permission.SANDBOX_EXECUTE)
            found |= _of_workspace(action)
        case InstallPackages():
            found |= {Permission.SANDBOX_EXECUTE, Permission.PACKAGES_INSTALL}
            found.add(Permission.FILES_WRITE)
        case ProcessOperation() | ConnectPort():
            found.add(Permission.SANDBOX_EXECUTE)
        case FileOperation(name):
            found.add(Permission.FILES_READ if name in FILE_READS else Permission.FILES_WRITE)
        case TakeSnapshot() | RestoreSnapshot():
            found |= {Permission.FILES_READ, Permission.FILES_WRITE}
        case CallTool() | CallServerTool():
            found.add(Permission.TOOLS_CALL)
        case FetchUrl() | SetDomains() | ReachHost() | ServeClient():
            found.add(Permission.NETWORK_USE)
        case ReceiveMessage() | SendReply():
            found.add(Permission.CHAT_SEND)
        case UseTool(tool):
            found.add(_OF_TOOL.get(tool, Permission.TOOLS_CALL))
            if tool == "Bash":
                found |= _of_shell(action.operation)
        case UseAccount():
            found |= {Permission.NETWORK_USE, Permission.SECRETS_USE}
        case ToolResult():
            pass  # the tool has already run
        case _ as unknown:
            assert_never(unknown)
    for requested, permission in (
        (action.allow_domains, Permission.NETWORK_USE),
        (action.registries, Permission.PACKAGES_INSTALL),
        (action.secrets, Permission.SECRETS_USE),
        (action.tools, Permission.TOOLS_CALL),
        (action.skills, Permission.SKILLS_USE),
    ):
        if requested:
            found.add(permission)
    return frozenset(found)


def _of_shell(operation: UseTool) -> set[Permission]:
    """Outside a sandbox a shell command can do all that its host can, whatever its text."""
    inside = {Permission.FILES_READ, Permission.FILES_WRITE}
    outside = {Permission.NETWORK_USE, Permission.PACKAGES_INSTALL}
    return inside if operation.is_inside else inside | outside


def _of_workspace(action: Action) -> set[Permission]:
    match action.workspace.mode:
        case WorkspaceMode.PRIVATE:
            return set()
        case WorkspaceMode.READ_ONLY | WorkspaceMode.COPY_ON_WRITE:
            return {Permission.FILES_READ}  # `cellwall apply` writes the changes back
        case WorkspaceMode.READ_WRITE:
            return {Permission.FILES_READ, Permission.FILES_WRITE}
        case _ as unknown:
            assert_never(unknown)


def missing_permissions(role: Role, action: Action) -> Decision | None:
    """The denial, if the role lacks a permission that the action needs."""
    lacking = required_permissions(action) - role.permissions
    if not lacking:
        return None
    names = " and ".join(sorted(permission.value for permission in lacking))
    reason = f"{action.principal.name} has the role {role.name}, which lacks {names}"
    return Decision.built_in(Verdict.DENY, f"role:{role.name}", reason)


_BY_A_PERSON = frozenset({"cli", "sdk"})
_SEVERE = SEVERITIES.index("high")


@dataclass(frozen=True, slots=True)
class RuledPolicy:
    """Implements `PolicyPort`; policy files are read again when they change."""

    named: tuple[str, ...]
    """Policy files that the configuration names."""
    is_observing: bool
    environ: Mapping[str, str]
    grants: GrantsPort | None
    """The signatures of the approver; None: no key is configured."""
    protects_build_files: bool = False

    def judge(self, action: Action, findings: Sequence[Finding]) -> Decision:
        """No match is DENY; findings of the guard can only make the verdict stricter."""
        for finding in findings:
            if SEVERITIES.index(finding.severity) >= _SEVERE:
                rule = f" ({finding.rule})" if finding.rule else ""
                reason = f"the guard refused it: {finding.message}{rule}"
                return Decision.built_in(Verdict.DENY, "guard", reason)
        named = action.policy or self.named
        is_by_a_person = action.principal.interface in _BY_A_PERSON
        if is_by_a_person and not is_given(named, self.environ):
            reason = f"asked for explicitly by {action.principal.name}"
            return Decision.built_in(Verdict.ALLOW, "explicit", reason)
        from cellwall.runtime.rule_judging import judge_by_rules

        try:
            return judge_by_rules(
                action,
                named=named,
                environ=self.environ,
                is_observing=self.is_observing,
                grants=self.grants,
                protects_build_files=self.protects_build_files,
            )
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


def effective_role(roles: RolesPort, action: Action) -> Role:
    """The role of the principal; an unnamed principal has none."""
    if not action.principal.name:
        raise BadInput("the action names no principal")
    return roles.role_of(action.principal)


def with_role(role: Role, action: Action) -> Action:
    """The action bound to the role, which then also binds the tool calls that follow from it."""
    who = action.principal
    if who.role == role.name:
        return action
    return replace(action, principal=replace(who, role=role.name))
