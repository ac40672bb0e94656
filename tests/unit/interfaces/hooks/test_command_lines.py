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
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, Denied
from cellwall.interfaces.hooks import command_lines as hook_commands
from cellwall.interfaces.hooks.agents.registry import AGENTS
from cellwall.interfaces.hooks.command_lines import (
    OTHER_SHELLS,
    ProjectDirectory,
    drop_sandbox_escape,
    hook_command,
    is_shell,
    options_of,
    project_directory,
    quote,
    timeout_of,
    unwrap,
    wrap,
)
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


START = "A='b c' /opt/python -I"
PLACE = ProjectDirectory("/home/u/my project", "/home/u/my project/sub")


def rewritten(command: str) -> list[str]:
    return shlex.split(wrap(command, PLACE, start=START, timeout_s=120.0))


@pytest.mark.requirement("FS-1")
def test_the_command_runs_in_bash_with_the_project_at_its_own_path():
    assert rewritten("ls -la | head") == [
        "A=b c", "/opt/python", "-I", "run", "--workspace", "/home/u/my project:rw", "--own-path",
        "--cwd", "/home/u/my project/sub", "--timeout", "120", "--", "bash", "-c", "ls -la | head",
    ]  # fmt: skip


HOSTILE = [
    "echo 'a'\"b\"`c`$(d)",
    "'; rm -rf / #",
    "a\nb\n",
    "$HOME ${x:-y} !! \\",
    "é 漢 \u202e",
    "--",
    "-c",
    "x'\"'\"'y",
]


@pytest.mark.parametrize("command", HOSTILE)
def test_the_shell_of_the_host_hands_it_over_as_it_was(command):
    line = wrap(command, PLACE, start="/usr/bin/printf '%s\\0'", timeout_s=5)
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[-2] == command.encode()


@given(
    st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
)
def test_no_text_gets_out_of_its_quotes(command):
    if command.strip():
        assert rewritten(command)[-3:] == ["bash", "-c", command]


@pytest.mark.parametrize("command", [None, 5, "", "  ", "a\0b", "x" * 200_000, ["ls"]])
def test_what_no_shell_could_run_is_refused(command):
    with pytest.raises(BadInput):
        wrap(command, PLACE, start=START, timeout_s=5)


@pytest.mark.parametrize("timeout", ["5", [1], True])
def test_a_timeout_that_is_no_number_is_refused(timeout):
    with pytest.raises(BadInput):
        timeout_of({"timeout": timeout}, "timeout", 120)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [({}, 120), ({"timeout": 1500}, 1.5), ({"timeout": -1}, 0.01), ({"run_in_background": True}, 86400), ({"timeout": 1e30}, 86400)],
)  # fmt: skip
def test_the_time_of_the_call_is_the_time_of_the_run(fields, seconds):
    assert timeout_of(fields, "timeout", 120) == seconds


def test_a_host_whose_calls_name_no_time_has_its_own():
    assert timeout_of({"timeout": 5}, None, 3600) == 3600


def test_below_the_project_the_whole_project_is_given(tmp_path):
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert project_directory(str(below), str(tmp_path)) == ProjectDirectory(
        str(tmp_path), str(below)
    )
    assert project_directory(str(below), None) == ProjectDirectory(str(below), str(below))


@pytest.mark.requirement("FS-1")
def test_outside_of_the_project_nothing_is_given(tmp_path):
    project, other = tmp_path / "project", tmp_path / "project-other"
    project.mkdir()
    other.mkdir()
    (project / "link").symlink_to(other)
    for cwd in (other, project / "link", tmp_path, "/"):
        with pytest.raises(Denied) as refused:
            project_directory(str(cwd), str(project))
        assert refused.value.code == "CW-HOOK-OUTSIDE-PROJECT"
    assert project_directory(str(project), str(project)) == ProjectDirectory(
        str(project), str(project)
    )


def test_a_directory_that_is_not_there_is_refused():
    with pytest.raises(BadInput):
        project_directory("/nowhere/at/all", None)


@pytest.mark.parametrize("tool", sorted(OTHER_SHELLS))
def test_other_ways_to_start_programs_are_denied(tool):
    with pytest.raises(Denied):
        is_shell(tool)


def test_tools_that_start_nothing_stay_as_they_are():
    assert (is_shell("Bash"), is_shell("Read")) == (True, False)


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize("command", [*HOSTILE, "ls"])
def test_only_what_was_rewritten_here_is_known_as_running_inside(command, tmp_path):
    project = str(tmp_path)
    line = wrap(command, ProjectDirectory(project, project), start=START, timeout_s=7.5)
    assert unwrap(line, project, start=START) == command
    for changed in (
        command,
        f"{line} ; id",
        f"{line}\nid",
        f"true; {line}",
        f"X=1 {line}",
        line.replace(":rw", ":cow"),
        line.replace("--own-path", "--own-path --env A=1"),
        line.replace("--timeout 7.5", "--timeout 7.5 --allow-domain a.com"),
        line.replace("/opt/python", "/tmp/python"),
        line.replace(" bash -c", " sh -c"),
        line.replace(project, "/"),
    ):
        assert unwrap(changed, project, start=START) is None
    assert unwrap(line, "/srv", start=START) is None
    assert unwrap(None, project, start=START) is None


def test_the_wish_to_leave_the_hosts_own_sandbox_is_not_handed_on():
    given = {"command": "ls", "dangerouslyDisableSandbox": True, "timeout": 5}
    assert drop_sandbox_escape("Bash", given) == {"command": "ls", "timeout": 5}
    assert drop_sandbox_escape("Bash", {"command": "ls"}) is None
    assert drop_sandbox_escape("Read", given) is None


def fish_words(line: str) -> list[str]:
    """The words of a line as fish(1) splits them: in single quotes, `\\` and `\'` are escapes."""
    words, word, at, inside = [], "", 0, ""
    has_word = False
    while at < len(line):
        char, following = line[at], line[at + 1 : at + 2]
        escapes = {"": following, "'": "'\\", '"': '"\\$\n'}[inside]
        if char == "\\" and following and following in escapes:
            word, at, has_word = word + following, at + 1, True
        elif char == inside:
            inside = ""
        elif not inside and char in "'\"":
            inside, has_word = char, True
        elif not inside and char == " ":
            words += [word] if has_word else []
            word, has_word = "", False
        else:
            assert inside or char not in "();|&<>$*?~#\n", f"fish would act on {char!r}"
            word, has_word = word + char, True
        at += 1
    assert not inside
    return words + ([word] if has_word else [])


BREAKOUT = r"echo \'; touch /tmp/outside; echo \'"


@pytest.mark.requirement("ISO-4")
@given(
    st.text(alphabet=st.sampled_from("ab '\"\\$`!;|&(){}*?~#\n=%^"), max_size=12)
    | st.text(max_size=6)
)
def test_a_word_is_the_same_in_every_shell(word):
    if "\0" not in word:
        assert shlex.split(f"x {quote(word)}") == ["x", word]
        assert fish_words(f"x {quote(word)}") == ["x", word]


@pytest.mark.requirement("ISO-4")
def test_no_command_leaves_its_quotes_in_fish():
    # The control: with the usual quotes fish would run what stands behind the first one.
    with pytest.raises(AssertionError):
        fish_words(shlex.join(["bash", "-c", BREAKOUT]))
    line = wrap(BREAKOUT, PLACE, start=START, timeout_s=5)
    assert fish_words(line)[-1] == shlex.split(line)[-1] == BREAKOUT
