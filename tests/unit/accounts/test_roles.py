"""Roles are data, and of all that is said about somebody the strictest counts (RBAC-1)."""

from __future__ import annotations

from importlib import resources
from itertools import pairwise

import pytest

from cellwall.accounts.roles import Roles, read_roles, shipped_roles
from cellwall.core.errors import ConfigError, Denied
from cellwall.core.types import INTERFACE_NAMES, ROLE_NAMES, Permission, Principal

TEXT = resources.files("cellwall.accounts").joinpath("roles.toml").read_text("utf-8")
EXECUTE, ANSWER = Permission.SANDBOX_EXECUTE, Permission.APPROVALS_ANSWER


@pytest.mark.requirement("RBAC-1")
def test_each_role_may_do_all_that_the_one_below_may_and_more() -> None:
    roles = list(shipped_roles().values())
    assert [role.name for role in roles] == list(ROLE_NAMES)
    for below, above in pairwise(roles):
        assert below.permissions < above.permissions
    assert roles[-1].permissions == frozenset(Permission)


@pytest.mark.requirement("RBAC-1")
def test_what_each_role_may_do() -> None:
    own = {}
    before: frozenset[Permission] = frozenset()
    for role in shipped_roles().values():
        own[role.name] = sorted(permission.value for permission in role.permissions - before)
        before = role.permissions
    assert own == {
        "guest": ["files:read"],
        "user": ["chat:send", "files:write", "sandbox:execute", "skills:use", "tools:call"],
        "power-user": ["approvals:answer", "network:use", "packages:install", "secrets:use"],
        "administrator": [
            "audit:export",
            "audit:read",
            "channels:relay",
            "metrics:read",
            "policy:write",
            "sandbox:stop",
            "skills:approve",
        ],
        "owner": ["config:write", "users:manage"],
    }


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('inherits = "guest"', 'inherits = "owner"', "no chain"),
        ('inherits = "guest"', 'inherits = "user"', "no chain"),
        ('inherits = "guest"', 'inherits = "root"', "inherits an unknown role: root"),
        ('inherits = "guest"\n', "", "no chain"),
        ('permissions = ["files:read"]', 'inherits = "owner"\npermissions = ["files:read"]', "no chain"),
        ('["files:read"]', '["files:eat"]', "unknown permission: files:eat"),
        ('["files:read"]', "[3]", "unknown permission"),
        ('["files:read"]', "[]", "permits nothing"),
        ('["files:read"]', '"files:read"', "permits nothing"),
        ("[roles.guest]", "[roles.visitor]", "the roles are not"),
        ("[roles.guest]", "[roles.guest]\nextra = 1", "needs description"),
        ('"users:manage" = "say', '"users:mangle" = "say', "undescribed permissions"),
        ('"users:manage" = "say who has which role"', '"users:manage" = ""', "no description"),
        ("[permissions]", "[permits]", "undescribed permissions"),
        ("[permissions]", "[[permissions", "not valid TOML"),
    ],
)  # fmt: skip
def test_data_that_is_no_ladder_of_known_permissions_is_refused(
    old: str, new: str, problem: str
) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError, match=problem) as refused:
        read_roles(TEXT.replace(old, new, 1))
    assert refused.value.code == "CW-ROLES"


@pytest.mark.requirement("RBAC-1")
@pytest.mark.parametrize(
    ("roles", "who", "expected"),
    [
        (Roles(), Principal("me", "cli"), "owner"),
        (Roles(), Principal("me", "hook"), "owner"),
        (Roles(default="user"), Principal("me", "cli"), "user"),
        (Roles(users={"alice": "user"}), Principal("alice", "cli"), "user"),
        (Roles(users={"alice": "user"}), Principal("bob", "cli"), "owner"),
        (Roles(default="guest", users={"alice": "administrator"}), Principal("alice", "cli"), "administrator"),
        (Roles(interfaces={"hook": "user"}), Principal("me", "hook"), "user"),
        (Roles(interfaces={"hook": "user"}), Principal("me", "cli"), "owner"),
        (Roles(users={"alice": "guest"}, interfaces={"hook": "user"}), Principal("alice", "hook"), "guest"),
        (Roles(users={"alice": "owner"}, interfaces={"hook": "user"}), Principal("alice", "hook"), "user"),
        (Roles(), Principal("me", "http", "guest"), "guest"),
        (Roles(interfaces={"http": "user"}), Principal("me", "http", "owner"), "user"),
    ],
)  # fmt: skip
def test_the_strictest_of_user_interface_and_principal_counts(
    roles: Roles, who: Principal, expected: str
) -> None:
    assert roles.role_of(who) == shipped_roles()[expected]


@pytest.mark.requirement("RBAC-1")
def test_a_role_that_nobody_knows_permits_nothing() -> None:
    assert Roles().role_of(Principal("me", "cli", "root")).permissions == frozenset()


def test_unknown_names_are_refused_at_the_start() -> None:
    for changes in ({"default": "root"}, {"users": {"a": "root"}}, {"interfaces": {"cli": "root"}}):
        with pytest.raises(ConfigError):
            Roles(**changes)  # type: ignore[arg-type]  # plain keywords
    with pytest.raises(ConfigError):
        Roles(interfaces={"hok": "user"})
    assert Roles(interfaces=dict.fromkeys(INTERFACE_NAMES, "user")).default == "owner"


def test_what_a_role_lacks_is_told_by_name() -> None:
    Roles().require(Principal("me", "cli"), ANSWER)
    with pytest.raises(Denied, match="role user, which lacks approvals:answer") as refused:
        Roles(default="user").require(Principal("me", "cli"), ANSWER)
    assert refused.value.code == "CW-ROLE"
