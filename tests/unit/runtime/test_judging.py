"""Actions become calls in the words of rules; a person's own wish needs none."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from cellwall.accounts.roles import shipped_roles
from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Finding
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort, PortTraffic
from cellwall.core.snapshots import RestoreSnapshot, TakeSnapshot
from cellwall.core.tool_servers import CallServerTool, RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    Permission,
    Principal,
    ProcessOperation,
    ReachHost,
    RunCode,
    RunCommand,
    ServeClient,
    SetDomains,
    ToolResult,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
)
from cellwall.core.verdict import Verdict
from cellwall.runtime import policy_places
from cellwall.runtime.judging import RuledPolicy, missing_permissions, required_permissions

RULES = """
[permissions]
allow = ["Bash(ls *)", "Bash(sh *)", "Code(python)", "Read(./**)", "Write(out/**)", "search",
  "Install(pypi:requests)", "Install(pypi:rich>=14)", "Install(npm:vite>=7)"]
ask = ["Bash(git push *)"]
deny = ["Read(.env)"]
"""


async def _hold(*_: object) -> None:
    """Never called: these actions are only judged."""


CLIENT = ServeClient("agent", b"", _hold)


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(RULES)
    return str(path)


@pytest.fixture(autouse=True)
def _nobody_elses_rules(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_places, "ADMINISTRATOR", str(tmp_path / "none.toml"))
    monkeypatch.chdir(tmp_path)


def action(operation, interface="sdk", **more) -> Action:
    return Action(principal=Principal("ann", interface), operation=operation, **more)


def judge(made: Action, *, observe: bool = False, findings=()):
    return RuledPolicy((), observe, {}, None).judge(made, findings)


def test_what_a_person_asks_for_is_allowed_because_they_ask():
    decision = judge(action(RunCommand(("rm", "-rf", "x")), "cli"))
    assert (decision.verdict, decision.rule) == (Verdict.ALLOW, "explicit")


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("interface", ["hook", "mcp", "http", "somebody"])
def test_what_comes_from_an_agent_needs_a_rule(interface):
    assert judge(action(RunCommand(("ls",)), interface)).verdict is Verdict.DENY


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(
    ("operation", "verdict"),
    [
        (RunCommand(("ls", "-la")), "allow"),
        (RunCommand(("curl", "x")), "deny"),
        (RunCommand(("sh", "-c", "ls; curl x")), "deny"),
        (RunCommand(("sh", "-c", "ls")), "allow"),
        (RunCommand(("git", "push")), "ask"),
        (RunCommand(("$X",)), "deny"),
        (RunCode("python", b"1"), "allow"),
        (RunCode("javascript", b"1"), "deny"),
        (FileOperation("read", "a.txt"), "allow"),
        (FileOperation("read", ".env"), "deny"),
        (FileOperation("list", ""), "allow"),
        (FileOperation("write", "out/a"), "allow"),
        (FileOperation("write", "a"), "deny"),
        (FileOperation("move", "out/a", target="b"), "deny"),
        (FileOperation("move", "out/a", target="out/b"), "allow"),
        (FileOperation("remove", "a"), "deny"),
        (CallTool("search"), "allow"),
        (CallTool("other"), "deny"),
        (ProcessOperation("list"), "allow"),
        (UseTool("Bash", {"command": "ls"}, "/"), "allow"),
        (UseTool("Bash", {"command": "curl x"}, "/"), "deny"),
        (UseTool("Unknown", {}, "/"), "deny"),
        (UseTool("Bash", {}, "/"), "deny"),
        (UseTool("Bash", {"command": 7}, "/"), "deny"),
        (InstallPackages("pypi", ("requests>=2",)), "allow"),
        (InstallPackages("pypi", ("requests", "rich")), "deny"),
        (InstallPackages("npm", ("requests",)), "deny"),
        (InstallPackages("pypi", ("rich[jupyter]==14.1",)), "allow"),
        (InstallPackages("pypi", ("rich==13.0",)), "deny"),
        (InstallPackages("pypi", ("rich==14.*",)), "deny"),
        (InstallPackages("npm", ("vite@7.1.0",)), "allow"),
        (InstallPackages("npm", ("vite@6.1.0",)), "deny"),
        (InstallPackages("npm", ("vite@^7",)), "deny"),
    ],
)
def test_with_a_policy_everything_is_judged_by_it(rules, operation, verdict):
    assert judge(action(operation, policy=(rules,))).verdict.word == verdict


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    ("domains", "verdict"),
    [
        (("docs.example.com",), "allow"),
        (("GET docs.example.com/v1", "docs.example.com:8443"), "allow"),
        (("docs.example.com", "other.example.com"), "deny"),
        (("*.example.com",), "deny"),
    ],
)
def test_each_domain_of_a_client_outside_is_judged(tmp_path, domains, verdict):
    path = tmp_path / "clients.toml"
    path.write_text('[permissions]\nallow = ["WebFetch(domain:docs.example.com)"]\n')
    made = action(CLIENT, "cli", allow_domains=domains, policy=(str(path),))
    assert judge(made).verdict.word == verdict


@pytest.mark.requirement("POL-11")
@pytest.mark.parametrize(
    "extra",
    [
        {"dangerouslyDisableSandbox": True},
        {"dangerously_observe": True},
        {"policy": "/tmp/mine.toml"},
        {"permission_mode": "bypassPermissions"},
        {"verdict": "allow", "rule": "Bash"},
        {"tool": "Read", "cwd": "/", "home": "/"},
        {"skip": True, "force": True, "approved": True, "role": "owner"},
    ],
)
def test_nothing_that_an_agent_adds_to_a_call_changes_its_verdict(rules, extra):
    for command, verdict in (("ls", "allow"), ("git push", "ask"), ("curl x", "deny")):
        plain = action(UseTool("Bash", {"command": command}, "/"), "hook", policy=(rules,))
        dressed = action(
            UseTool("Bash", {**extra, "command": command}, "/"), "hook", policy=(rules,)
        )
        assert judge(plain) == judge(dressed)
        assert judge(dressed).verdict.word == verdict


def test_a_severe_finding_denies_whatever_is_allowed():
    severe = Finding("injection", "high", "said so")
    assert judge(action(RunCommand(("ls",)), "cli"), findings=[severe]).verdict is Verdict.DENY


@pytest.mark.requirement("POL-10")
def test_observed_only_it_goes_on_and_says_what_would_have_become_of_it(rules):
    made = action(UseTool("Bash", {"command": "curl x"}, "/"), "hook", policy=(rules,))
    decision = judge(made, observe=True)
    assert (decision.verdict, decision.rule) == (Verdict.ALLOW, "observe")
    assert decision.reason.startswith("would be denied: ")
    allowed = action(UseTool("Bash", {"command": "ls"}, "/"), "hook", policy=(rules,))
    assert judge(allowed, observe=True).rule == "Bash(ls *)"


@pytest.mark.requirement("POL-7")
def test_the_administrators_rules_hold_for_people_and_for_named_policies(
    tmp_path, monkeypatch, rules
):
    administrator = tmp_path / "admin.toml"
    administrator.write_text('[permissions]\nallow = ["Bash(git *)", "Bash(ls)"]\n')
    administrator.chmod(0o644)
    monkeypatch.setattr(policy_places, "ADMINISTRATOR", str(administrator))
    assert judge(action(RunCommand(("curl", "x")), "cli")).verdict is Verdict.DENY
    assert judge(action(RunCommand(("git", "status")), "cli")).verdict is Verdict.ALLOW
    named = {"policy": (rules,)}
    assert judge(action(RunCommand(("ls",)), "cli", **named)).verdict is Verdict.ALLOW
    assert judge(action(RunCommand(("ls", "-la")), "cli", **named)).verdict is Verdict.DENY
    assert judge(action(RunCommand(("git", "status")), "cli", **named)).verdict is Verdict.DENY


def test_a_policy_that_cannot_be_read_refuses(tmp_path):
    from cellwall.core.errors import ConfigError  # noqa: PLC0415

    for text in ("nonsense", '[permissions]\nallow = ["Bash("]', "[permission]\n"):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(ConfigError):
            judge(action(RunCommand(("ls",)), policy=(str(tmp_path / "bad.toml"),)))
    with pytest.raises(ConfigError):
        judge(action(RunCommand(("ls",)), policy=(str(tmp_path / "missing.toml"),)))


RUN = Action(principal=Principal("me", "sdk"), operation=RunCommand(("true",)))
P = Permission


def given(mode: WorkspaceMode) -> WorkspaceRequest:
    return WorkspaceRequest(mode, "/somewhere")


async def _no_hold(_connected: socket.socket) -> PortTraffic:
    return PortTraffic()


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
    ({"operation": ReachHost("a.example", 443, "CONNECT")}, {P.NETWORK_USE}),
    (
        {"operation": InstallPackages("pypi", ("requests",))},
        {P.SANDBOX_EXECUTE, P.PACKAGES_INSTALL, P.FILES_WRITE},
    ),
    ({"tools": ("add",)}, {P.SANDBOX_EXECUTE, P.TOOLS_CALL}),
    ({"skills": ("one",)}, {P.SANDBOX_EXECUTE, P.SKILLS_USE}),
    ({"operation": ProcessOperation("list")}, {P.SANDBOX_EXECUTE}),
    ({"operation": ConnectPort(8000, _no_hold)}, {P.SANDBOX_EXECUTE}),
    ({"operation": TakeSnapshot()}, {P.FILES_READ, P.FILES_WRITE}),
    ({"operation": RestoreSnapshot("snp_x")}, {P.FILES_READ, P.FILES_WRITE}),
    ({"operation": CallTool("add")}, {P.TOOLS_CALL}),
    *(
        ({"operation": FileOperation(name, "a")}, {P.FILES_READ})
        for name in ("read", "list", "stat", "exists", "download", "watch", "diff")
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
    ({"operation": ReceiveMessage("plain", "hi", "pair_1")}, {P.CHAT_SEND}),
    ({"operation": SendReply("plain", "hi", "pair_1")}, {P.CHAT_SEND}),
    ({"operation": UseAccount("work", "list_events")}, {P.NETWORK_USE, P.SECRETS_USE}),
    ({"operation": CLIENT}, {P.NETWORK_USE}),
    ({"operation": CLIENT, "secrets": ("A",)}, {P.NETWORK_USE, P.SECRETS_USE}),
    ({"operation": CallServerTool("time", "now", {})}, {P.TOOLS_CALL}),
    ({"operation": RunServer("time", ("true",), _hold)}, {P.SANDBOX_EXECUTE}),
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


@pytest.mark.requirement("FS-8")
def test_build_files_are_denied_to_agents_where_the_configuration_protects_them(tmp_path):
    path = tmp_path / "all.toml"
    path.write_text('[permissions]\nallow = ["Bash", "Write", "Edit"]\n')
    written = (
        UseTool("Write", {"file_path": "Makefile", "content": "x"}, str(tmp_path)),
        UseTool("Edit", {"file_path": "sub/package.json"}, str(tmp_path)),
        UseTool("Bash", {"command": "echo x >> conftest.py"}, str(tmp_path), is_inside=True),
        UseTool("Bash", {"command": "cp a.txt sub/PACKAGE.JSON"}, str(tmp_path), is_inside=True),
    )
    ordinary = UseTool("Write", {"file_path": "main.c", "content": "x"}, str(tmp_path))
    for is_on, verdict in ((True, Verdict.DENY), (False, Verdict.ALLOW)):
        policy = RuledPolicy((str(path),), False, {}, None, protects_build_files=is_on)
        assert [policy.judge(action(each, "mcp"), ()).verdict for each in written] == [verdict] * 4
        assert policy.judge(action(ordinary, "mcp"), ()).verdict is Verdict.ALLOW


@pytest.mark.requirement("NET-9", "POL-7")
def test_an_unknown_destination_is_asked_about_unless_a_rule_or_the_administrator_denies_it(
    tmp_path,
):
    def verdict_of(host: str) -> Verdict:
        found = RuledPolicy((str(path),), False, {}, None).judge(
            action(ReachHost(host, 443, "CONNECT"), "mcp"), ()
        )
        return found.verdict

    path = tmp_path / "own.toml"
    path.write_text('[permissions]\nallow = ["Bash"]\ndeny = ["WebFetch(domain:bad.example)"]\n')
    hosts = ("a.example", "bad.example", "169.254.169.254")
    assert [verdict_of(host) for host in hosts] == [Verdict.ASK, Verdict.DENY, Verdict.DENY]
    administrator = tmp_path / "none.toml"
    administrator.write_text('[permissions]\nallow = ["Bash", "WebFetch(domain:ok.example)"]\n')
    administrator.chmod(0o600)
    assert [verdict_of(host) for host in ("a.example", "ok.example")] == [
        Verdict.DENY,
        Verdict.ASK,
    ]
