"""What a role permits beside actions: changes of the rules, the skills and the host's files."""

from __future__ import annotations

from typing import assert_never

from cellwall.accounts.roles import Roles
from cellwall.config.models import Settings
from cellwall.core.roles import Permission, Role
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    FileOperation,
    Principal,
    ProcessOperation,
    RunCode,
    RunCommand,
    SetDomains,
    ToolResult,
    UseTool,
    WorkspaceMode,
)
from cellwall.core.verdict import Decision, Verdict


def roles_of(settings: Settings) -> Roles:
    """Who may do what, as configured."""
    roles = settings.roles
    return Roles(roles.default, roles.users, roles.interfaces)


def require(settings: Settings, who: Principal, permission: Permission) -> None:
    """Raises `Denied` unless the role of whoever asks permits it."""
    roles_of(settings).require(who, permission)


_READING_OPERATIONS = frozenset({"read", "list", "stat", "exists", "download", "watch"})
# An agent's own tools, by the names its host gives them. One that is not here is a tool like any.
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


def needed(action: Action) -> frozenset[Permission]:
    """All of them; what an action only might do counts as if it did."""
    found: set[Permission] = set()
    match action.operation:
        case RunCommand() | RunCode():
            found.add(Permission.SANDBOX_EXECUTE)
            found |= _of_workspace(action)
        case ProcessOperation():
            found.add(Permission.SANDBOX_EXECUTE)
        case FileOperation(name):
            found.add(
                Permission.FILES_READ if name in _READING_OPERATIONS else Permission.FILES_WRITE
            )
        case CallTool():
            found.add(Permission.TOOLS_CALL)
        case FetchUrl() | SetDomains():
            found.add(Permission.NETWORK_USE)
        case UseTool(tool):
            found.add(_OF_TOOL.get(tool, Permission.TOOLS_CALL))
            if tool == "Bash":
                found |= _of_shell(action.operation)
        case ToolResult():
            pass  # it has happened
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
    """Without walls a shell command can do whatever its host can, whatever its words say."""
    inside = {Permission.FILES_READ, Permission.FILES_WRITE}
    outside = {Permission.NETWORK_USE, Permission.PACKAGES_INSTALL}
    return inside if operation.is_inside else inside | outside


def _of_workspace(action: Action) -> set[Permission]:
    match action.workspace.mode:
        case WorkspaceMode.PRIVATE:
            return set()
        case WorkspaceMode.READ_ONLY | WorkspaceMode.COPY_ON_WRITE:
            return {Permission.FILES_READ}  # copies are taken over by another command
        case WorkspaceMode.READ_WRITE:
            return {Permission.FILES_READ, Permission.FILES_WRITE}
        case _ as unknown:
            assert_never(unknown)


def beyond(role: Role, action: Action) -> Decision | None:
    """The denial, if the role lacks something that the action needs."""
    lacking = needed(action) - role.permissions
    if not lacking:
        return None
    names = " and ".join(sorted(permission.value for permission in lacking))
    return Decision(
        Verdict.DENY,
        rule=f"role:{role.name}",
        reason=f"{action.principal.name} has the role {role.name}, which lacks {names}",
        source="built-in",
    )
