"""The command that settings start, in real shells: whatever becomes of the hook, it blocks."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput
from cellwall.interfaces.hooks import command as hook_commands
from cellwall.interfaces.hooks.agents.registry import AGENTS
from cellwall.interfaces.hooks.command import hook_command, options_of
from cellwall.interfaces.hooks.install import commands_for
from cellwall.interfaces.hooks.withheld_results import NOTE
from conftest import need

SHELLS = ("sh", "dash", "bash", "zsh", "fish")
POSIX_SHELLS = ("sh", "dash", "bash")
STARTED_BY = [
    (name, shell)
    for name, agent in sorted(AGENTS.items())
    for shell in (POSIX_SHELLS if agent.is_posix_shell else SHELLS)
]


def started(line: str, shell: str = "sh", **environ: str) -> subprocess.CompletedProcess[bytes]:
    need(shutil.which(shell), shell)
    env = {**os.environ, **environ}
    return subprocess.run([shell, "-c", line], input=b"{}", capture_output=True, env=env, timeout=60, check=False)  # fmt: skip


def program(folder: Path, text: str, *, mode: int = 0o755) -> str:
    """In the place of Python, at a path with blanks and shell metacharacters."""
    place = folder / "a b $(touch oops) `id`;'q'\"&|"
    place.mkdir(exist_ok=True)
    file = place / "python"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


BROKEN = {
    "missing": (None, 0o755),
    "not executable": ("#!/bin/sh\nexit 0\n", 0o644),
    "no such interpreter": ("#!/nowhere/python\n", 0o755),
    "exit 1": ("#!/bin/sh\nexit 1\n", 0o755),
    "exit 3": ("#!/bin/sh\nexit 3\n", 0o755),
    "killed": ("#!/bin/sh\nkill -9 $$\n", 0o755),
    "crashed": ("#!/bin/sh\nkill -SEGV $$\n", 0o755),
    "terminated": ("#!/bin/sh\nkill -TERM $$\n", 0o755),
    "half an answer, then killed": ("#!/bin/sh\nprintf '{\"half'\nkill -9 $$\n", 0o755),
}


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_hook_that_does_not_answer_blocks_and_says_why(monkeypatch, tmp_path, name, shell):
    text, mode = BROKEN[name]
    file = program(tmp_path, text or "", mode=mode)
    if text is None:
        os.unlink(file)
    monkeypatch.setattr(sys, "executable", file)
    line = hook_command(environ=os.environ)
    done = started(line, shell)
    assert (done.returncode, b"cellwall: the hook" in done.stderr) == (2, True)
    # The control: without the ending the same hook lets the tool through.
    assert started(line.partition(" || ")[0], shell).returncode != 2
    assert not list(tmp_path.rglob("oops"))


@pytest.mark.requirement("ISO-4")
def test_a_hook_that_hangs_is_killed_before_the_host_gives_it_up(monkeypatch, tmp_path):
    need(os.access("/usr/bin/timeout", os.X_OK), "timeout(1)")
    monkeypatch.setattr(hook_commands, "_KILLED_AFTER_S", "0.2")
    file = program(tmp_path, "#!/bin/sh\ntrap '' TERM\nexec sleep 1000\n")
    monkeypatch.setattr(sys, "executable", file)
    done = started(hook_command(environ=os.environ))
    assert (done.returncode, b"cellwall: the hook" in done.stderr) == (2, True)


def test_an_answer_and_a_refusal_of_the_hook_itself_pass_unchanged(monkeypatch, tmp_path):
    file = program(tmp_path, "#!/bin/sh\ncat >/dev/null\necho '{}'\n")
    monkeypatch.setattr(sys, "executable", file)
    done = started(hook_command(environ=os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}\n", b"")
    program(tmp_path, "#!/bin/sh\necho 'cellwall: no' >&2\nexit 2\n")
    done = started(hook_command(environ=os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"cellwall: no\n")


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize(("name", "shell"), STARTED_BY)
def test_each_agent_s_command_blocks_in_the_shells_that_may_start_it(
    monkeypatch, tmp_path, name, shell
):
    """Codex takes the user's own shell, be it fish; a program that is gone blocks in each."""
    agent = AGENTS[name]
    monkeypatch.setattr(sys, "executable", program(tmp_path, "", mode=0o644))
    commands = commands_for(agent, os.environ)
    for event in agent.layout.before:
        done = started(commands[event], shell)
        assert (done.returncode, b"cellwall: " in done.stderr) == (2, True)
    if agent.names_no_event:
        done = started(commands[agent.layout.after[0]], shell)
        told = json.loads(done.stdout)["modifiedResult"]["textResultForLlm"]
        assert (done.returncode, told) == (0, NOTE)


@pytest.mark.slow
def test_nothing_of_the_environment_changes_what_is_started(tmp_path):
    """A project's settings can set variables and PATH for its agent."""
    for name in ("timeout", "python", "cellwall", "echo"):
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\ntouch {shlex.quote(str(tmp_path))}/oops\nexit 0\n")
        file.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'oops')!r}, 'w')")
    done = started(
        hook_command(environ=os.environ), PATH=str(tmp_path) + ":/usr/bin:/bin", PYTHONPATH=str(tmp_path)
    )  # fmt: skip
    assert done.returncode == 2  # `{}` is no question
    assert not (tmp_path / "oops").exists()


@pytest.mark.parametrize("path", ["/a\\b/c", "/a\nb", "/a\tb", "/a\x1bb"])
def test_a_path_that_shells_read_differently_is_refused(path):
    with pytest.raises(BadInput) as refused:
        hook_command(environ=os.environ, policy=path)
    assert (refused.value.code, bool(refused.value.hint)) == ("CW-HOOK-PATH", True)


@pytest.mark.parametrize("is_posix_shell", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"agent": "codex"},
        {"dangerously_outside": True, "config": "/etc/a b.toml"},
        {"agent": "copilot", "after": True, "policy": "/p'q.toml"},
    ],
)
def test_a_command_is_known_again_with_its_options(options, is_posix_shell):
    line = hook_command(environ=os.environ, is_posix_shell=is_posix_shell, **options)
    assert options_of(line, os.environ, is_posix_shell=is_posix_shell) == options
    for changed in (
        f"{line} || true",
        line.replace("exit 2", "exit 0"),
        line.replace("|| {", "; {"),
        line.replace("-s KILL 15", "-s KILL 900"),
        line.partition(" || ")[0],
        "true",
        "/bin/sh -c",
    ):
        if changed != line:
            assert options_of(changed, os.environ, is_posix_shell=is_posix_shell) is None
