"""Actions become calls in the words of rules; a person's own wish needs none."""

from __future__ import annotations

import pytest

from cellwall.core.outcomes import Finding
from cellwall.core.types import (
    Action,
    CallTool,
    FileOperation,
    Principal,
    ProcessOperation,
    RunCode,
    RunCommand,
    UseTool,
)
from cellwall.core.verdict import Verdict
from cellwall.runtime import policy_places
from cellwall.runtime.judging import RuledPolicy

RULES = """
[permissions]
allow = ["Bash(ls *)", "Bash(sh *)", "Code(python)", "Read(./**)", "Write(out/**)", "search"]
ask = ["Bash(git push *)"]
deny = ["Read(.env)"]
"""


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
    return RuledPolicy((), observe, {}).judge(made, findings)


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
    ],
)
def test_with_a_policy_everything_is_judged_by_it(rules, operation, verdict):
    assert judge(action(operation, policy=(rules,))).verdict.word == verdict


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
