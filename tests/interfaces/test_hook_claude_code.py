"""The real Claude Code, driven by a model on loopback, with our hooks in its settings.

What is asserted is the effect: a file is there, or it is not. `make` is asked about, `touch` is
allowed, everything else is denied.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conftest import audit_records
from interfaces.claude_code import drive
from interfaces.fake_model import fake_model
from interfaces.test_cli_process import PROGRAM, cellwall, person
from interfaces.test_hook import Served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("claude-code")]
POLICY = """[permissions]
allow = ["Bash(touch *)", "Bash(echo *)", "Bash(pwd)", "Write(//**)", "Edit(//**)"]
ask = ["Bash(make *)"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    (tmp_path / "policy.toml").write_text(POLICY)
    (found / "Makefile").write_text("all:\n\ttouch made\n")
    monkeypatch.chdir(found)
    return found


def install(project: Path, *words: str) -> None:
    done = cellwall("hook", "install", "--policy", str(project.parent / "policy.toml"), *words)
    assert done.returncode == 0, done.stderr


def bash(command: str) -> tuple[str, dict[str, str]]:
    return "Bash", {"command": command, "description": "Try"}


def try_out(project: Path, command: str, *words: str) -> str:
    """What the model was told of it."""
    with fake_model(bash(command)) as model:
        drive(model, project, project.parent, *words)
        return model.text


MODES = ["default", "acceptEdits", "bypassPermissions"]


@pytest.mark.requirement("POL-1", "INT-1")
@pytest.mark.parametrize("mode", MODES)
def test_a_denied_command_does_not_run_in_any_mode(project, mode):
    install(project)
    told = try_out(project, "cp Makefile copied", "--permission-mode", mode)
    assert "Cellwall: " in told
    assert not (project / "copied").exists()
    (denial,) = [r for r in audit_records() if r["kind"] == "denial"]
    assert json.loads(denial["body"]["arguments"])["command"] == "cp Makefile copied"


def test_an_allowed_command_runs_without_a_question(project):
    install(project)
    told = try_out(project, "touch allowed")
    assert (project / "allowed").exists(), told
    kinds = [r["kind"] for r in audit_records() if r["interface"] == "hook"]
    assert kinds == ["intent", "outcome"]


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("mode", MODES)
def test_what_is_asked_about_does_not_run_where_nobody_answers(project, mode):
    install(project)
    told = try_out(project, "make all", "--permission-mode", mode)
    assert not (project / "made").exists(), told


@pytest.mark.requirement("ISO-2")
def test_a_rewritten_command_runs_inside(project):
    install(project)
    told = try_out(project, "pwd; touch inside; echo /home/* /root/*")
    assert str(project) in told
    assert (project / "inside").exists()
    commands = [r["body"].get("command") for r in audit_records() if r["interface"] == "cli"]
    assert ["bash", "-c", "pwd; touch inside; echo /home/* /root/*"] in commands


BROKEN = {
    "a program that is not there": ("/nowhere/cellwall hook", 15),
    "a hook that fails": (f"{PROGRAM} hook --no-such-option", 15),
    "a hook that ends with 1": ("false", 15),
    "a hook that is late": ("sleep 60", 1),
    "a hook that says nothing of the kind": ("echo '{\"hookSpecificOutput\": 5}'", 15),
}


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("name", BROKEN)
def test_a_hook_that_breaks_stops_the_tool(project, name):
    """It is `onFailure` that does it, so this also tells whether Claude Code still knows that."""
    install(project)
    settings = project / ".claude" / "settings.json"
    told = json.loads(settings.read_text())
    command, timeout = BROKEN[name]
    told["hooks"]["PreToolUse"][0]["hooks"][0] |= {"command": command, "timeout": timeout}
    settings.write_text(json.dumps(told))
    try_out(project, "touch through", "--permission-mode", "bypassPermissions")
    assert not (project / "through").exists()


@pytest.mark.requirement("POL-1")
def test_a_hook_whose_program_is_gone_stops_the_tool_without_on_failure(project):
    """Versions that do not know `onFailure` are told by the shell's own exit code."""
    install(project)
    settings = project / ".claude" / "settings.json"
    told = json.loads(settings.read_text())
    entry = told["hooks"]["PreToolUse"][0]["hooks"][0]
    del entry["onFailure"]
    entry["command"] = entry["command"].replace(sys.executable, "/nowhere/python")
    settings.write_text(json.dumps(told))
    try_out(project, "touch through", "--permission-mode", "bypassPermissions")
    assert not (project / "through").exists()
    # The control: the same without our ending lets the tool through.
    entry["command"] = entry["command"].partition(" || ")[0]
    settings.write_text(json.dumps(told))
    try_out(project, "touch through", "--permission-mode", "bypassPermissions")
    assert (project / "through").exists()


@pytest.mark.requirement("POL-5")
@pytest.mark.parametrize("stops", [True, False])
def test_a_denial_stops_the_agent_where_the_rule_says_so(project, stops):
    rule = f'\n[[rule]]\nverdict = "deny"\nrule = "Bash(cp *)"\nstop = {str(stops).lower()}\n'
    (project.parent / "policy.toml").write_text(POLICY + rule)
    install(project)
    with fake_model(bash("cp Makefile copied"), bash("touch after")) as model:
        done = drive(model, project, project.parent, is_stopped=stops)
    assert not (project / "copied").exists()
    assert (project / "after").exists() is not stops
    assert (json.loads(done.stdout)["terminal_reason"] == "hook_stopped") is stops


def test_a_secret_does_not_reach_the_model(project, monkeypatch):
    """With the guard of the tests: ours finds nothing yet."""
    home = project.parent / "served"
    home.mkdir()
    served = Served.begin(home)
    try:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        # The guard of the tests knows results of tools, and not the output of runs.
        install(project, "--dangerously-outside")
        told = try_out(project, "echo a SECRET word; touch ran '#allow'")
    finally:
        served.end()
    assert (project / "ran").exists()
    assert "SECRET" not in told
    assert "a [redacted] word" in told


def test_after_uninstalling_the_agent_is_as_it_was(project):
    settings = project / ".claude" / "settings.json"
    settings.parent.mkdir()
    before = '{"permissions": {"allow": ["Bash(touch:*)"]}}'
    settings.write_text(before)
    install(project)
    assert person("hook", "uninstall").returncode == 0
    assert settings.read_text() == before
    # The control of all tests here: without us the same agent, in the same way, runs what it likes.
    try_out(project, "cp Makefile copied", "--permission-mode", "bypassPermissions")
    assert (project / "copied").exists()
    assert not [r for r in audit_records() if r["interface"] == "hook"]
