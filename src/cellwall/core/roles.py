"""Roles and permissions, shared by configuration, runtime and accounts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ROLE_NAMES = ("guest", "user", "power-user", "administrator", "owner")
"""In ascending order; `accounts/roles.toml` lists the permissions of each."""
INTERFACE_NAMES = ("cli", "sdk", "hook", "mcp", "http")
"""The interfaces through which a principal can act."""
OWNER = "owner"


class Permission(StrEnum):
    """One permission."""

    FILES_READ = "files:read"
    FILES_WRITE = "files:write"
    SANDBOX_EXECUTE = "sandbox:execute"
    TOOLS_CALL = "tools:call"
    SKILLS_USE = "skills:use"
    SKILLS_APPROVE = "skills:approve"
    NETWORK_USE = "network:use"
    SECRETS_USE = "secrets:use"
    PACKAGES_INSTALL = "packages:install"
    APPROVALS_ANSWER = "approvals:answer"
    AUDIT_READ = "audit:read"
    AUDIT_EXPORT = "audit:export"
    POLICY_WRITE = "policy:write"
    CONFIG_WRITE = "config:write"
    USERS_MANAGE = "users:manage"


@dataclass(frozen=True, slots=True)
class Role:
    """A role with all its permissions, inherited ones included."""

    name: str
    permissions: frozenset[Permission]
