"""Roles and what they permit, in the words that configuration, runtime and accounts share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ROLE_NAMES = ("guest", "user", "power-user", "administrator", "owner")
"""From the least to the most; `accounts/roles.toml` says what each of them may do."""
INTERFACE_NAMES = ("cli", "sdk", "hook", "mcp", "http")
"""The doors through which somebody asks."""
OWNER = "owner"


class Permission(StrEnum):
    """One thing that a role may or may not do."""

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
    """A name and all that it permits, what it inherits included."""

    name: str
    permissions: frozenset[Permission]
