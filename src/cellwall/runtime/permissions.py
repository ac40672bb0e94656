"""Step 2: the permissions that an action or a change needs, and whether a role holds them (RBAC-1).

Checked before the policy and before any question: no rule, no person's yes and no isolation layer
grants what the role of the principal lacks (RBAC-2).
"""

from __future__ import annotations

from typing import assert_never

from cellwall.accounts.roles import Roles
from cellwall.config.models import Settings
from cellwall.core.types import (
    FILE_READS,
    Action,
    CallTool,
    FetchUrl,
    FileOperation,
    Permission,
    Principal,
    ProcessOperation,
    Role,
    RunCode,
    RunCommand,
    SetDomains,
    ToolResult,
    UseTool,
    WorkspaceMode,
)
from cellwall.core.verdict import Decision, Verdict


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


def required_permissions(action: Action) -> frozenset[Permission]:
    """All permissions that an action needs; an effect that is only possible counts as certain."""
    found: set[Permission] = set()
    match action.operation:
        case RunCommand() | RunCode():
            found.add(Permission.SANDBOX_EXECUTE)
            found |= _of_workspace(action)
        case ProcessOperation():
            found.add(Permission.SANDBOX_EXECUTE)
        case FileOperation(name):
            found.add(Permission.FILES_READ if name in FILE_READS else Permission.FILES_WRITE)
        case CallTool():
            found.add(Permission.TOOLS_CALL)
        case FetchUrl() | SetDomains():
            found.add(Permission.NETWORK_USE)
        case UseTool(tool):
            found.add(_OF_TOOL.get(tool, Permission.TOOLS_CALL))
            if tool == "Bash":
                found |= _of_shell(action.operation)
        case ToolResult():
            pass  # the tool has already run
        case _ as unknown:
            assert_never(unknown)
    for wanted, permission in (
        (action.allow_domains, Permission.NETWORK_USE),
        (action.secrets, Permission.SECRETS_USE),
        (action.tools, Permission.TOOLS_CALL),
        (action.skills, Permission.SKILLS_USE),
    ):
        if wanted:
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
    return Decision(
        Verdict.DENY,
        rule=f"role:{role.name}",
        reason=f"{action.principal.name} has the role {role.name}, which lacks {names}",
        source="built-in",
    )
