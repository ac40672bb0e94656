"""A read-write run leaves no trace in the user's directory, and host git works beside it (FS-4).

Placeholders stand while code can write there. Whatever is killed, they go; two runs at once leave
each other's alone; and a protected name never comes into existence through the code.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cellwall
from adversarial.leftovers import holders_of, until_ended
from conftest import need
from interfaces import prepared_program

MISSING = (".claude", ".gitmodules", ".vscode", "CLAUDE.md", ".github")
_TRY = """
for name in {names}; do
  rmdir $name; mv $name away; rm -rf $name; echo evil > $name; mkdir -p $name/x; ln -s /tmp $name
  mkdir new; mv -T new $name; echo evil > $name/settings.json
done 2>/dev/null
ls -A away {names} 2>/dev/null | grep -v : | grep .; rm -rf new
"""
_ATTACK = _TRY.format(names=" ".join(MISSING))
_CONTROL = "mkdir plain;" + _TRY.format(names="plain") + "rm -rf plain away"
_MCP = [
    {
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {
        "id": 2,
        "method": "tools/call",
        "params": {"name": "run_command", "arguments": {"command": "sleep 60"}},
    },
]


@pytest.fixture(autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def git(where: Path, *words: str) -> str:
    person = [
        f"GIT_{who}_{what}=x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    ]
    environment = {
        **os.environ,
        **dict(each.split("=") for each in person),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    command = ["git", "-C", str(where), "-c", "protocol.file.allow=always", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.replace("warning: ", "")) == (0, done.stderr), done.stderr
    return done.stdout


@contextmanager
def running(program: str, project: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = {
        "run": ["run", "--workspace", f"{project}:rw", "--", "sleep", "60"],
        "mcp": ["mcp", "--workspace", f"{project}:rw"],
    }[program]
    process = prepared_program.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CELLWALL_SUPERVISOR": "off"},
    )
    try:
        assert process.stdin is not None
        if program == "mcp":
            lines = (json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in _MCP)
            process.stdin.write("".join(lines).encode())
            process.stdin.flush()
        while not (project / ".vscode").exists():
            assert process.poll() is None
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()


@pytest.mark.requirement("FS-4", "ISO-8")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("program", ["run", "mcp"])
def test_no_placeholder_stays_after_a_kill_of(
    program: str, number: signal.Signals, project: Path
) -> None:
    with running(program, project) as process:
        holders = holders_of(project)
        assert holders != []
        process.send_signal(number)
        process.wait(30)
        until_ended(holders)
    assert os.listdir(project) == []


@pytest.mark.requirement("FS-4")
def test_host_git_works_beside_a_live_sandbox_and_sees_no_placeholder(
    project: Path, tmp_path: Path
) -> None:
    need(shutil.which("git"), "git")
    (tmp_path / "other").mkdir()
    for place in (project, tmp_path / "other"):
        git(place, "init", "--quiet", "--template=")
        (place / "file").write_text("1")
        git(place, "add", "file")
        git(place, "commit", "--quiet", "--message", "one")
    (project / ".git/config").unlink()  # git works without one, and not with a directory there
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        assert sandbox.commands.run("echo 2 > file; git status --short").stdout == " M file\n"
        standing = set(os.listdir(project))
        assert standing > {".git", "file", *MISSING}  # the control
        assert git(project, "status", "--short", "--untracked-files=all") == " M file\n"
        git(project, "add", "--all")
        git(project, "commit", "--quiet", "--message", "two")
        assert git(project, "show", "--format=", "--name-only") == "file\n"
        git(project, "submodule", "status")
        git(project, "stash")
        git(project, "switch", "--quiet", "--create", "branch")
        assert set(os.listdir(project)) == standing
        assert sandbox.commands.run("true").status == "ok"
    assert sorted(os.listdir(project)) == [".git", "file"]


@pytest.mark.requirement("FS-4")
def test_a_repository_made_on_the_host_beside_a_live_sandbox_stays(project: Path) -> None:
    need(shutil.which("git"), "git")
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        sandbox.commands.run("echo 1 > file")
        git(project, "init", "--quiet")
        git(project, "add", "file")
        git(project, "commit", "--quiet", "--message", "one")
        said = sandbox.commands.run("git log --oneline | wc -l; echo evil >> .git/config")
        assert (said.stdout, said.outcome.findings) == ("1\n", ())
    assert sorted(os.listdir(project)) == [".git", "file"]
    assert "evil" not in (project / ".git/config").read_text()
    assert git(project, "status", "--short") == ""


@pytest.mark.requirement("FS-4", "FS-8")
@pytest.mark.parametrize("second", [".", "sub"])
def test_of_two_at_once_none_uncovers_or_reports_the_other(project: Path, second: str) -> None:
    (project / "sub").mkdir()
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as first:
        assert first.commands.run("true").outcome.findings == ()
        with cellwall.Sandbox.create(workspace=f"{project / second}:rw") as other:
            assert other.commands.run(_CONTROL).stdout != ""
            assert other.commands.run(_ATTACK).stdout == ""
            assert first.commands.run(_ATTACK).stdout == ""
            assert first.commands.run("true").outcome.findings == ()
        # The end of one.
        assert {*MISSING} <= {*os.listdir(project)}
        tried = first.commands.run(_ATTACK)
        assert (tried.stdout, tried.outcome.findings) == ("", ())
    assert sorted(os.listdir(project)) == ["sub"]
    assert os.listdir(project / "sub") == []


@pytest.mark.requirement("FS-4")
def test_a_thing_of_another_kind_is_not_replaced_by_what_the_host_obeys(project: Path) -> None:
    (project / ".claude").write_text("a file where a directory is obeyed")
    (project / "CLAUDE.md").mkdir()
    (project / "CLAUDE.md/note").write_text("mine")
    # Without the errors of the commands, which the guard reads as well: all findings are of the workspace.
    code = "exec 2> /dev/null; rm .claude; mkdir .claude; mv CLAUDE.md x; echo evil > CLAUDE.md"
    code += "; echo ok > CLAUDE.md/note"
    ran = cellwall.run_command(["sh", "-c", code], workspace=f"{project}:rw")
    assert ran.outcome.findings == ()
    assert (project / ".claude").is_file()
    assert (project / "CLAUDE.md/note").read_text() == "ok\n"  # the control: it may be changed
    assert sorted(os.listdir(project)) == [".claude", "CLAUDE.md"]


@pytest.mark.requirement("FS-4")
def test_a_cover_that_the_host_took_away_is_noticed(project: Path) -> None:
    # rename(2) over a mount point of another namespace detaches the mount: editors and git save so.
    (project / "CLAUDE.md").write_text("mine")
    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        assert sandbox.commands.run("echo evil >> CLAUDE.md").status == "failed"
        (project / "new").write_text("mine, edited")
        (project / "new").rename(project / "CLAUDE.md")
        refused = sandbox.commands.run("echo evil >> CLAUDE.md")
        error = refused.outcome.error
        assert error is not None
        assert error.code == "CW-WORKSPACE-UNCOVERED"
    assert (project / "CLAUDE.md").read_text() == "mine, edited"


@pytest.mark.requirement("FS-4")
def test_a_cover_lost_during_a_run_is_told_with_it(project: Path) -> None:
    (project / "CLAUDE.md").write_text("mine")
    (project / "go").touch()

    def save_on_the_host(_text: str) -> None:
        (project / "new").write_text("mine, edited")
        (project / "new").rename(project / "CLAUDE.md")
        (project / "go").unlink()

    with cellwall.Sandbox.create(workspace=f"{project}:rw") as sandbox:
        code = "echo started; while [ -e go ]; do :; done"
        ran = sandbox.commands.run(code, on_stdout=save_on_the_host)
    (told,) = ran.outcome.findings
    assert (told.severity, told.message.startswith("'CLAUDE.md' was replaced")) == ("high", True)
