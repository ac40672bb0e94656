"""`cellwall run` and `code` through the supervisor: nobody can tell it from the way without."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cellwall.core.users_inside import SANDBOX_USER
from cellwall.interfaces.cli.commands import cli
from cellwall.interfaces.cli.plain_run import command_of
from cellwall.interfaces.cli.run import run
from cellwall.interfaces.sandbox_options import SandboxOptions
from cellwall.interfaces.supervisor.requests import WORKSPACE
from conftest import audit_records
from interfaces import prepared_program
from interfaces.test_cli_process import PROGRAM, cellwall, error_code
from interfaces.test_supervisor import PATIENCE_S, until

WAYS = ("on", "off")
_IDS = re.compile(rb"\b(act|evt|sbx)_[0-9a-z]{20,32}\b")
_OWN = ("usage", "audit_id", "workspace_id", "sandbox_path")


def told(done: subprocess.CompletedProcess) -> tuple[object, ...]:
    """What a caller sees, without what is another one each time."""
    stdout: object = _IDS.sub(b"ID", done.stdout)
    if done.stdout.startswith(b'{"'):
        stdout = {k: v for k, v in json.loads(done.stdout).items() if k not in _OWN}
    return done.returncode, stdout, _IDS.sub(b"ID", done.stderr)


def both(*words: str | bytes, stdin: bytes = b"", **changes: str) -> subprocess.CompletedProcess:
    """One way and the other; returns what both have said."""
    with_it = cellwall(*words, stdin=stdin, CELLWALL_SUPERVISOR="on", **changes)
    alone = {**changes, "CELLWALL_SUPERVISOR": "off", "CELLWALL_PATH": "cold"}
    assert told(with_it) == told(cellwall(*words, stdin=stdin, **alone))
    return with_it


@functools.cache
def alone(*words: str | bytes) -> tuple[object, ...]:
    """What is said without a supervisor; asked once for all of them."""
    return told(cellwall(*words, CELLWALL_SUPERVISOR="off", CELLWALL_PATH="cold"))


def used_modules(*words: str, **changes: str) -> set[str]:
    script = (
        "import sys\nfrom cellwall.interfaces.cli.main import main\n"
        "code = main(sys.argv[1:])\nprint('\\n'.join(sys.modules), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **changes},
    )
    return set(done.stderr.split())


@pytest.mark.only_on("warm", reason="what the client imports is no affair of the cell")
def test_the_supervisor_is_used_where_one_runs_unless_it_is_switched_off(supervisor):
    assert "anyio" not in used_modules("run", "--", "true")
    assert "anyio" not in used_modules("code", "--json", "-c", "1")
    assert "anyio" in used_modules("run", "--", "true", CELLWALL_SUPERVISOR="off")


@pytest.mark.only_on("warm", reason="what the client imports is no affair of the cell")
def test_a_run_without_options_imports_no_parser_of_options(supervisor):
    heavy = {"click", "dataclasses", "inspect", "datetime", "subprocess"}
    for words in (("run", "--", "true"), ("run", "true")):
        assert not heavy & used_modules(*words)
    assert heavy - {"subprocess"} <= used_modules("run", "--timeout", "5", "--", "true")


@pytest.mark.requirement("ERR-2")
@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["run", "--", "ls", "-la"], ["ls", "-la"]),
        (["run", "ls", "--", "-la"], ["ls", "--", "-la"]),
        (["run", "--", "--", "x"], ["--", "x"]),
        (["run", "--", "-x"], ["-x"]),
        (["run", "", "a"], ["", "a"]),
        (["run"], None),
        (["run", "--"], None),
        (["run", "-x", "ls"], None),
        (["run", "--json", "ls"], None),
        (["run", "--help"], None),
        (["code", "-c", "1"], None),
        ([], None),
    ],
)
@pytest.mark.sample(6)
def test_a_run_without_options_is_the_run_that_click_reads(words, command):
    assert command_of(words) == command
    if command is not None:
        # click keeps the help option of a command's first context, which has `-h` from its parent.
        parent = click.Context(cli, **cli.context_settings)
        ctx = run.make_context("run", words[1:], parent=parent)
        read, cwd, user = (ctx.params.pop(name) for name in ("command", "cwd", "user"))
        assert (list(read), cwd, user) == (command, WORKSPACE, SANDBOX_USER)
        assert SandboxOptions(**ctx.params) == SandboxOptions()


CASES = {
    "success": (["run", "--", "sh", "-c", r"printf 'a\377\000b'; echo e >&2"], 0),
    "failure": (["run", "--", "sh", "-c", "echo out; exit 7"], 7),
    "signal": (["run", "--", "sh", "-c", "kill -SEGV $$"], 139),
    "time": (["run", "--timeout", "0.3", "--", "sleep", "60"], 124),
    "output": (["run", "--output", "10k", "--", "yes"], 137),
    "code": (["code", "-c", "print('é')\n6 * 7"], 0),
    "shell": (["code", "-l", "shell", "-c", "echo $0 $A", "--env", "A=1"], 0),
    "raises": (["code", "-c", "def f(): 1 / 0\nf()"], 1),
    "exits": (["code", "-c", "import sys; sys.exit('why')"], 1),
    "with a network": (["run", "--allow-domain", "a.example", "--", "env"], 0),
    "nul": (["code", "-c", "x = '\\0'"], 0),
    "not text": (["run", "--", "printf", "%s", b"\xff"], 0),
    "long": (["run", "--", "sh", "-c", "seq 1 100000"], 0),
    "environment": (["run", "--env", "MINE=1", "--", "env"], 0),
}
REFUSALS = {
    "not found": (["run", "--", "no-such-program"], 125),
    "language": (["code", "-l", "cobol", "-c", "1"], 125),
    "no file": (["code", "/nowhere/a.py"], 125),
    "nothing": (["code"], 125),
    "no command": (["run", "--json"], 125),
    "option": (["run", "--memroy", "1", "--", "true"], 125),
    "bad size": (["run", "--memory", "many", "--", "true"], 125),
    "bad limit": (["run", "--timeout", "-1", "--", "true"], 125),
    "bad variable": (["run", "--env", "A-B=1", "--", "true"], 125),
    "bad profile": (["run", "--profile", "none", "--", "true"], 125),
    "bad configuration": (["run", "--config", "/nowhere.toml", "--", "true"], 125),
    "bad workspace": (["run", "--workspace", "/nowhere", "--", "true"], 125),
    "bad mode": (["run", "--workspace", "/tmp:no", "--", "true"], 125),
    "bad template": (["code", "--template", "none", "-c", "1"], 125),
    "no engine": (["run", "--policy", "x", "--", "true"], 125),
    "bad domain": (["run", "--allow-domain", "*.com", "--", "true"], 125),
}


@pytest.mark.requirement("ERR-1", "ERR-2")
@pytest.mark.parametrize("name", CASES)
def test_the_same_is_said_both_ways(supervisor, name):
    check_both_ways(*CASES[name], as_json=False)


@pytest.mark.requirement("ERR-1", "ERR-2")
@pytest.mark.only_on("warm", reason="the outcome is the same, which the plain form shows on both")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(6)
def test_the_same_is_said_both_ways_as_json(supervisor, name):
    check_both_ways(*CASES[name], as_json=True)


@pytest.mark.requirement("ERR-1", "ERR-2")
@pytest.mark.only_on("warm", reason="no cell is made")
@pytest.mark.parametrize("as_json", [False, True], ids=["plain", "json"])
@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.sample(10)
def test_the_same_refusal_is_said_both_ways(supervisor, name, as_json):
    check_both_ways(*REFUSALS[name], as_json=as_json)


def check_both_ways(words: list[str | bytes], exit_code: int, *, as_json: bool) -> None:
    if as_json and "--json" not in words:
        words = [words[0], "--json", *words[1:]]
    done = cellwall(*words)
    assert told(done) == alone(*words)
    assert done.returncode == exit_code
    if as_json:
        assert done.stderr == b""
        assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.requirement("LIM-2")
def test_a_memory_bomb_is_told_both_ways(supervisor):
    bomb = "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))"
    done = both("code", "--memory", "64m", "-c", bomb)
    assert (done.returncode, b"memory limit" in done.stderr) == (137, True)


@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(range(256)) * 1200], ids=["none", "one", "more than a pipe holds"]
)
def test_standard_input_both_ways(supervisor, data):
    assert both("run", "--stdin", "--", "cat", stdin=data).stdout == data
    assert both("run", "--", "cat", stdin=data).stdout == b""
    code = "import sys; print(len(sys.stdin.buffer.read()))"
    assert both("code", "--stdin", "-c", code, stdin=data).stdout == b"%d\n" % len(data)


def test_code_from_standard_input_both_ways(supervisor):
    assert both("code", "-", stdin=b"print(1)").stdout == b"1\n"


def test_code_in_files_both_ways(supervisor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text("echo from $0; exit 3")
    assert both("code", "a.sh").returncode == 3
    both("code", ".")


@pytest.mark.only_on("warm", reason="its size is between the client and the supervisor")
def test_code_longer_than_a_frame_both_ways(supervisor, tmp_path):
    (tmp_path / "big.py").write_text("#" * (2 << 20))
    assert both("code", str(tmp_path / "big.py")).returncode == 0


@pytest.mark.requirement("FS-2")
def test_workspaces_both_ways(supervisor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("given").write_text("old")
    assert both("run", "--workspace", ".", "--", "cat", "given").stdout == b"old"
    assert both("run", "--workspace", ".:ro", "--", "sh", "-c", "echo x > made").returncode != 0
    assert both("run", "--workspace", ".:rw", "--", "sh", "-c", "echo $$ > made").returncode == 0
    assert Path("made").exists()
    for way in WAYS:
        change = ["run", "--workspace", ".:cow", "--", "sh", "-c", "echo new > given"]
        done = cellwall(*change, CELLWALL_SUPERVISOR=way)
        kept = _IDS.search(done.stderr).group().decode()
        assert (done.returncode, Path("given").read_text()) == (0, "old")
        assert b"+new" in cellwall("diff", kept).stdout
        told_json = json.loads(
            cellwall("run", "--json", *change[1:], CELLWALL_SUPERVISOR=way).stdout
        )
        assert b"+new" in cellwall("diff", told_json["workspace_id"]).stdout


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize(
    ("number", "exit_code", "as_json"),
    [(signal.SIGINT, 130, False), (signal.SIGTERM, 143, False), (signal.SIGTERM, 143, True)],
)
def test_a_signal_ends_the_run_both_ways(supervisor, tmp_path, number, exit_code, as_json):
    seen = []
    for way in WAYS:
        mark = tmp_path / way
        mark.mkdir()
        words = ["run", *(["--json"] * as_json), "--workspace", f"{mark}:rw", "--"]
        with prepared_program.Popen(
            [*words, "sh", "-c", "echo begun > on; sleep 60"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "CELLWALL_SUPERVISOR": way},
        ) as process:
            until((mark / "on").exists)
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == exit_code
        seen.append((json.loads(out)["error"] if as_json else out, err))
    assert seen[0] == seen[1]
    assert as_json or seen[0][1].startswith(
        f"cellwall: the run was ended by {number.name}".encode()
    )


@pytest.mark.requirement("FS-2")
def test_a_signal_tells_what_was_kept(supervisor, tmp_path):
    (tmp_path / "given").write_text("old")
    words = [
        "run",
        "--workspace",
        f"{tmp_path}:cow",
        "--",
        "sh",
        "-c",
        "echo n > given; echo on; sleep 60",
    ]
    with prepared_program.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        _out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"+n" in cellwall("diff", _IDS.search(err).group().decode()).stdout


@pytest.mark.requirement("ISO-8")
def test_a_reader_that_goes_away_ends_the_run(supervisor):
    line = f"{PROGRAM} run --timeout 100 -- sh -c 'while :; do echo y; done' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (b"y\n141\n", b"")
    until(lambda: [*audit_records()][-1]["body"].get("status") in ("interrupted", "limit"))


def test_output_that_cannot_be_written_is_told(supervisor):
    line = f"{PROGRAM} run -- sh -c 'while :; do echo y; done' > /dev/full"
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert (done.returncode, error_code(done)) == (125, "CW-OUTPUT-UNWRITABLE")


def test_output_comes_as_it_is_made(supervisor, tmp_path):
    script = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"
    words = ["run", "--workspace", f"{tmp_path}:rw", "--", "sh", "-c", script]
    with prepared_program.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"one\n"
        (tmp_path / "go").touch()
        assert (process.stdout.read(), process.wait(PATIENCE_S)) == (b"two\n", 0)


def test_a_changed_configuration_is_honoured_by_the_next_call(supervisor):
    file = supervisor.home / "cellwall.toml"
    text = file.read_text()
    words = ["run", "--", "sleep", "5"]
    try:
        file.write_text(text + "\n[limits]\nwall_s = 0.3\n")
        assert both(*words).returncode == 124
        file.write_text(text + "\n[limits]\nwall = 1\n")
        assert error_code(both(*words)) == "CW-CONFIG"
        file.unlink()
        both("run", "--", "true")
    finally:
        file.write_text(text)
    assert both("run", "--", "true").returncode == 0


def test_names_are_those_of_the_caller_s_directory(supervisor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        (supervisor.home / "cellwall.toml").read_text() + "\n[limits]\nwall_s = 0.3\n"
    )
    assert both("run", "--config", "mine.toml", "--", "sleep", "5").returncode == 124
    assert both("run", "--", "sleep", "5", CELLWALL_CONFIG="mine.toml").returncode == 124
    home = os.path.relpath(supervisor.home, tmp_path)
    done = both("run", "--", "true", CELLWALL_HOME=home)
    assert done.returncode == 0
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_many_clients_at_once(supervisor):
    words = ["code", "-c", "import sys; print(sys.stdin.read())", "--stdin"]
    clients = [
        prepared_program.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(12)
    ]
    found = [
        client.communicate(b"%d" % number, timeout=PATIENCE_S * 3)[0]
        for number, client in enumerate(clients)
    ]
    assert found == [b"%d\n" % number for number in range(12)]


@pytest.mark.parametrize("path", ["cold", "warm"])
def test_it_is_started_by_whoever_runs_twice(state_home, path):
    changes = {"CELLWALL_SUPERVISOR": "", "CELLWALL_PATH": path}

    def is_running() -> bool:
        done = cellwall("supervisor", "status", "--json", **changes)
        return json.loads(done.stdout)["running"]

    try:
        assert cellwall("run", "--", "true", **changes).returncode == 0
        assert not is_running()
        assert cellwall("run", "--", "true", **changes).returncode == 0
        until(is_running)
        assert cellwall("run", "--", "echo", "hi", **changes).stdout == b"hi\n"
    finally:
        until(is_running)
        cellwall("supervisor", "stop", **changes)


@pytest.mark.parametrize("path", ["cold", "warm"])
def test_it_is_never_started_where_it_is_switched_off(state_home, path):
    for _ in range(2):
        assert cellwall("run", "--", "true", CELLWALL_PATH=path).returncode == 0
    assert "supervisor.sock" not in os.listdir(state_home)
