"""Roles of principals and their permissions (RBAC-1). Pure, but for reading roles.toml once.

Settings can only lower a role: of all that apply to a principal, the strictest counts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from cellwall.core.errors import ConfigError, Denied
from cellwall.core.types import (
    INTERFACE_NAMES,
    OWNER,
    REMOTE_INTERFACES,
    ROLE_NAMES,
    Permission,
    Principal,
    Role,
)

_KEYS = frozenset({"description", "inherits", "permissions"})


def read_roles(text: str) -> Mapping[str, Role]:
    """The roles in ascending order; raises `ConfigError` if they do not form a chain."""
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        raise _bad(f"not valid TOML: {error}") from None
    _check_described(data.get("permissions"))
    tables = data.get("roles")
    if not isinstance(tables, dict) or set(tables) != set(ROLE_NAMES):
        raise _bad(f"the roles are not {', '.join(ROLE_NAMES)}")
    for name, table in tables.items():
        _check_table(name, table)
    return _ladder(tables)


def _check_described(described: object) -> None:
    known = {permission.value for permission in Permission}
    if not isinstance(described, dict) or set(described) != known:
        odd = sorted(set(described) ^ known) if isinstance(described, dict) else sorted(known)
        raise _bad(f"unknown or undescribed permissions: {', '.join(odd)}")
    if not all(isinstance(reason, str) and reason for reason in described.values()):
        raise _bad("a permission has no description")


def _check_table(name: str, table: object) -> None:
    if not isinstance(table, dict) or not {"description", "permissions"} <= set(table) <= _KEYS:
        raise _bad(f"{name} needs description and permissions, and may have inherits")
    granted = table["permissions"]
    if not isinstance(granted, list) or not granted:
        raise _bad(f"{name} permits nothing of its own")
    known = {permission.value for permission in Permission}
    unknown = [each for each in granted if not isinstance(each, str) or each not in known]
    if unknown:
        raise _bad(f"{name} has an unknown permission: {unknown[0]}")
    parent = table.get("inherits")
    if parent is not None and parent not in ROLE_NAMES:
        raise _bad(f"{name} inherits an unknown role: {parent}")


def _ladder(tables: Mapping[str, Any]) -> Mapping[str, Role]:
    """Each role inherits the one before. Siblings or a cycle would have no strictest role."""
    roles: dict[str, Role] = {}
    below: str | None = None
    granted: frozenset[Permission] = frozenset()
    for name in ROLE_NAMES:
        if tables[name].get("inherits") != below:
            raise _bad(f"{name} does not inherit {below or 'nothing'}, so the roles form no chain")
        granted |= {Permission(each) for each in tables[name]["permissions"]}
        roles[name] = Role(name, granted)
        below = name
    return roles


def _bad(problem: str) -> ConfigError:
    return ConfigError(
        f"the role definitions are invalid: {problem}",
        hint="Reinstall Cellwall; the file is part of it.",
        code="CW-ROLES",
    )


@cache
def shipped_roles() -> Mapping[str, Role]:
    """The roles of `roles.toml`."""
    return read_roles(
        resources.files("cellwall.accounts").joinpath("roles.toml").read_text("utf-8")
    )


@dataclass(frozen=True, slots=True)
class Roles:
    """Implements `RolesPort` by the configured roles of users and interfaces."""

    default: str = OWNER
    """The role of users that are not named, except over the network: there an account has a role
    of its own, and a principal without one is a guest."""
    users: Mapping[str, str] = field(default_factory=dict)
    interfaces: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Role] = field(default_factory=shipped_roles)

    def __post_init__(self) -> None:
        for name in (self.default, *self.users.values(), *self.interfaces.values()):
            if name not in self.known:
                raise ConfigError(f"{name[:60]!r} is not a role", code="CW-ROLES")
        for name in self.interfaces:
            if name not in INTERFACE_NAMES:
                raise ConfigError(f"{name[:60]!r} is not an interface", code="CW-ROLES")

    def role_of(self, principal: Principal) -> Role:
        """The strictest role of the principal, its user and its interface."""
        is_remote = principal.interface in REMOTE_INTERFACES
        default = principal.role if is_remote else self.default
        names = {principal.role, self.users.get(principal.name, default)}
        bound = self.interfaces.get(principal.interface)
        if bound is not None:
            names.add(bound)
        if not names <= self.known.keys():
            return Role(principal.role, frozenset())  # an unknown role permits nothing
        role = next(role for name, role in self.known.items() if name in names)  # the least first
        if principal.scopes is None:
            return role
        return Role(role.name, role.permissions & principal.scopes)

    def require(self, principal: Principal, permission: Permission) -> None:
        """Raise `Denied` unless the role of the principal holds the permission."""
        role = self.role_of(principal)
        if permission not in role.permissions:
            raise Denied(
                f"{principal.name} has the role {role.name}, which lacks {permission.value}",
                hint="The owner of this machine assigns roles in [roles] of the configuration.",
                code="CW-ROLE",
            )
