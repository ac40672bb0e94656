"""Which permissions an action needs (RBAC-1), for every kind of action there is."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from cellwall.accounts.roles import shipped_roles
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    FileOperation,
    Permission,
    Principal,
    ProcessOperation,
    RunCode,
    RunCommand,
    SetDomains,
    ToolResult,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
)
from cellwall.core.verdict import Verdict
from cellwall.runtime.permissions import missing_permissions, required_permissions

RUN = Action(principal=Principal("me", "sdk"), operation=RunCommand(("true",)))
P = Permission


def given(mode: WorkspaceMode) -> WorkspaceRequest:
    return WorkspaceRequest(mode, "/somewhere")


CASES = [
    ({}, {P.SANDBOX_EXECUTE}),
    ({"operation": RunCode("python", b"1")}, {P.SANDBOX_EXECUTE}),
    ({"workspace": given(WorkspaceMode.READ_ONLY)}, {P.SANDBOX_EXECUTE, P.FILES_READ}),
    ({"workspace": given(WorkspaceMode.COPY_ON_WRITE)}, {P.SANDBOX_EXECUTE, P.FILES_READ}),
    ({"workspace": given(WorkspaceMode.READ_WRITE)}, {P.SANDBOX_EXECUTE, P.FILES_READ, P.FILES_WRITE}),
    ({"allow_domains": ("a.example",)}, {P.SANDBOX_EXECUTE, P.NETWORK_USE}),
    ({"secrets": ("TOKEN",)}, {P.SANDBOX_EXECUTE, P.SECRETS_USE}),
    ({"operation": FetchUrl("https://a.example/")}, {P.NETWORK_USE}),
    ({"operation": SetDomains(())}, {P.NETWORK_USE}),
    ({"tools": ("add",)}, {P.SANDBOX_EXECUTE, P.TOOLS_CALL}),
    ({"skills": ("one",)}, {P.SANDBOX_EXECUTE, P.SKILLS_USE}),
    ({"operation": ProcessOperation("list")}, {P.SANDBOX_EXECUTE}),
    ({"operation": CallTool("add")}, {P.TOOLS_CALL}),
    *(
        ({"operation": FileOperation(name, "a")}, {P.FILES_READ})
        for name in ("read", "list", "stat", "exists", "download", "watch")
    ),
    *(
        ({"operation": FileOperation(name, "a")}, {P.FILES_WRITE})
        for name in ("write", "make_dir", "move", "remove", "upload")
    ),
    (
        {"operation": UseTool("Bash", {}, "/")},
        {P.SANDBOX_EXECUTE, P.FILES_READ, P.FILES_WRITE, P.NETWORK_USE, P.PACKAGES_INSTALL},
    ),
    (
        {"operation": UseTool("Bash", {}, "/", is_inside=True)},
        {P.SANDBOX_EXECUTE, P.FILES_READ, P.FILES_WRITE},
    ),
    ({"operation": UseTool("Read", {}, "/")}, {P.FILES_READ}),
    ({"operation": UseTool("Edit", {}, "/")}, {P.FILES_WRITE}),
    ({"operation": UseTool("WebFetch", {}, "/")}, {P.NETWORK_USE}),
    ({"operation": UseTool("mcp__a__b", {}, "/")}, {P.TOOLS_CALL}),
    ({"operation": ToolResult("Bash", None)}, set()),
]  # fmt: skip


@pytest.mark.requirement("RBAC-1")
@pytest.mark.parametrize(("changes", "expected"), CASES)
def test_what_an_action_needs(changes: dict[str, object], expected: set[Permission]) -> None:
    assert required_permissions(replace(RUN, **changes)) == expected


def test_every_kind_of_action_is_in_the_table() -> None:
    kinds = set(get_args(get_type_hints(Action)["operation"]))
    assert {type(changes.get("operation", RUN.operation)) for changes, _ in CASES} == kinds
    names = set(get_args(get_type_hints(FileOperation)["name"]))
    operations = [
        operation
        for changes, _ in CASES
        if isinstance(operation := changes.get("operation"), FileOperation)
    ]
    assert {operation.name for operation in operations} == names


@pytest.mark.requirement("RBAC-1")
def test_what_a_role_lacks_is_a_denial_that_names_both() -> None:
    role = shipped_roles()["guest"]
    decision = missing_permissions(role, replace(RUN, allow_domains=("a.example",)))
    assert decision is not None
    assert (decision.verdict, decision.rule) == (Verdict.DENY, "role:guest")
    assert decision.reason == (
        "me has the role guest, which lacks network:use and sandbox:execute"
    )  # fmt: skip
    assert missing_permissions(shipped_roles()["user"], RUN) is None
