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


def try_out(project: Path, *commands: str, mode: str = "default") -> str:
    """What the model was told of these commands, which it asks for one after the other."""
    with fake_model(*map(bash, commands)) as model:
        drive(model, project, project.parent, "--permission-mode", mode)
        assert len(model.results) == len(commands)
        return model.text


@pytest.mark.requirement("POL-1", "POL-8", "INT-1")
@pytest.mark.long  # of the modes, the next test has the one that skips the questions of the agent
@pytest.mark.parametrize("mode", ["acceptEdits", "bypassPermissions"])
def test_neither_a_denied_command_nor_one_that_nobody_answers_for_runs_in_any_mode(project, mode):
    install(project)
    told = try_out(project, "cp Makefile copied", "make all", mode=mode)
    assert "Cellwall: " in told
    assert not (project / "copied").exists()
    assert not (project / "made").exists()
    denied = [r["body"]["arguments"] for r in audit_records() if r["kind"] == "denial"]
    assert json.loads(denied[0])["command"] == "cp Makefile copied"


@pytest.mark.requirement("POL-1", "POL-8", "INT-1", "ISO-2")
@pytest.mark.parametrize(
    "mode", [pytest.param("default", marks=pytest.mark.long), "bypassPermissions"]
)
def test_each_command_is_denied_asked_about_or_runs_inside(project, mode):
    install(project)
    rewritten = "pwd; touch inside; echo /home/* /root/*"
    told = try_out(project, "cp Makefile copied", "make all", "touch allowed", rewritten, mode=mode)
    made = {name for name in ("copied", "made", "allowed", "inside") if (project / name).exists()}
    assert made == {"allowed", "inside"}, told
    assert "Cellwall: " in told
    assert str(project) in told
    records = audit_records()
    hooks = [r for r in records if r["interface"] == "hook"]
    denied = [json.loads(r["body"]["arguments"]) for r in hooks if r["kind"] == "denial"]
    assert denied[0]["command"] == "cp Makefile copied"
    # The last two run without a question.
    assert [r["kind"] for r in hooks][-4:] == ["intent", "outcome"] * 2
    commands = [r["body"].get("command") for r in records if r["interface"] == "cli"]
    assert ["bash", "-c", rewritten] in commands


BROKEN = {
    "a program that is not there": "/nowhere/cellwall hook",
    "a hook that fails": f"{PROGRAM} hook --no-such-option",
    "a hook that ends with 1": "false",
    "a hook that is late": "sleep 60",
    "a hook that says nothing of the kind": "echo '{\"hookSpecificOutput\": 5}'",
}


def by_number(*commands: str) -> str:
    """A hook for the first call of the agent, for the second, and so on: one agent meets them all."""
    script = 'asked=$(cat); case "$asked" in\n'
    for number, command in enumerate(commands):
        script += f'*through-{number}*) printf %s "$asked" | {{ {command}; }};;\n'
    return f"{script}esac"


@pytest.mark.requirement("POL-1")
def test_a_hook_that_breaks_stops_the_tool(project):
    """It is `onFailure` that does it, so this also tells whether Claude Code still knows that."""
    install(project)
    settings = project / ".claude" / "settings.json"
    told = json.loads(settings.read_text())
    entry = told["hooks"]["PreToolUse"][0]["hooks"][0]
    # The last one is the control: a hook that ends well and says nothing lets the tool through.
    entry |= {"command": by_number(*BROKEN.values(), "true"), "timeout": 3}
    settings.write_text(json.dumps(told))
    calls = [f"touch through-{number}" for number in range(len(BROKEN) + 1)]
    try_out(project, *calls, mode="bypassPermissions")
    assert [path.name for path in project.glob("through-*")] == [f"through-{len(BROKEN)}"]


@pytest.mark.long  # the hook itself has its tests; this is about the agent
@pytest.mark.requirement("POL-1")
def test_a_hook_whose_program_is_gone_stops_the_tool_without_on_failure(project):
    """Versions that do not know `onFailure` are told by the shell's own exit code."""
    install(project)
    settings = project / ".claude" / "settings.json"
    told = json.loads(settings.read_text())
    entry = told["hooks"]["PreToolUse"][0]["hooks"][0]
    del entry["onFailure"]
    gone = entry["command"].replace(sys.executable, "/nowhere/python")
    # The last one is the control: the same without our ending lets the tool through.
    entry["command"] = by_number(gone, gone.partition(" || ")[0])
    settings.write_text(json.dumps(told))
    try_out(project, "touch through-0", "touch through-1", mode="bypassPermissions")
    assert [path.name for path in project.glob("through-*")] == ["through-1"]


@pytest.mark.long  # the hook itself has its tests; this is about the agent
@pytest.mark.requirement("POL-5")
def test_a_denial_stops_the_agent_where_the_rule_says_so(project):
    rules = "".join(
        f'\n[[rule]]\nverdict = "deny"\nrule = "Bash({word} *)"\nstop = {stops}\n'
        for word, stops in (("cp", "false"), ("mv", "true"))
    )
    (project.parent / "policy.toml").write_text(POLICY + rules)
    install(project)
    commands = ("cp Makefile copied", "touch after", "mv Makefile moved", "touch last")
    with fake_model(*map(bash, commands)) as model:
        done = drive(model, project, project.parent)
    made = {name for name in ("copied", "after", "moved", "last") if (project / name).exists()}
    assert made == {"after"}
    assert len(model.results) == 2, "the model hears nothing of the call that stops the agent"
    assert json.loads(done.stdout)["terminal_reason"] == "hook_stopped"


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
    try_out(project, "cp Makefile copied", mode="bypassPermissions")
    assert (project / "copied").exists()
    assert not [r for r in audit_records() if r["interface"] == "hook"]
