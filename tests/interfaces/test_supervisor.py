"""Sandboxes that live in the supervisor: reached from anywhere, listed, ended, never lost track of."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import cellwall
from cellwall import Sandbox, Status
from interfaces import prepared_program
from interfaces.test_cli_process import PROGRAM, error_code
from interfaces.test_cli_process import cellwall as command

PATIENCE_S = 20


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def answer(*words: str, **changes: str) -> dict:
    return json.loads(command(*words, "--json", **changes).stdout)


def elsewhere(code: str, *words: str) -> object:
    """What another process of this user finds out."""
    script = f"import json, sys, cellwall\nprint(json.dumps({code}))"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with prepared_program.Popen(words, code=script, **pipes) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


# The process


@pytest.mark.only_on("cold", reason="no cell is made")
def test_it_is_started_once_told_about_and_stopped(own_supervisor):
    pid = own_supervisor.pid()
    assert pid is not None
    assert command("supervisor", "start").returncode == 0
    assert (own_supervisor.pid(), answer("supervisor", "status")["running"]) == (pid, True)
    assert f"runs as process {pid}".encode() in command("supervisor", "status").stdout
    done = command("supervisor", "stop")
    assert (done.returncode, done.stderr) == (0, b"cellwall: the supervisor ended\n")
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert answer("supervisor", "status") == {"running": False, "pid": None}
    assert command("supervisor", "status").stdout == b"no supervisor runs\n"
    assert command("supervisor", "stop").stderr == b"cellwall: no supervisor runs\n"
    assert answer("ps") == {"supervisor": None, "sandboxes": []}


@pytest.mark.only_on("cold", reason="no cell is made")
def test_two_that_start_at_once_are_one(own_supervisor):
    own_supervisor.end()
    with ThreadPoolExecutor(3) as threads:
        done = list(threads.map(lambda _: command("supervisor", "start"), range(3)))
    assert [each.returncode for each in done] == [0, 0, 0]
    assert len({each.stderr for each in done}) == 1  # the same process was told to all


def test_it_ends_in_order_when_it_is_told_by_a_signal(own_supervisor):
    sandbox = Sandbox.create(keep_alive=60)
    sandbox.run_code("x = 1")
    pid = own_supervisor.pid()
    os.kill(pid, 15)
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert os.listdir(own_supervisor.home / "workspaces") == []


@pytest.mark.only_on("cold", reason="how it is started is no affair of its cells")
def test_it_serves_in_the_foreground_as_well(own_supervisor):
    own_supervisor.end()
    words = [PROGRAM, "supervisor", "start", "--foreground"]
    with subprocess.Popen(words) as process:
        try:
            until(lambda: own_supervisor.pid() == process.pid)
            assert Sandbox.create(keep_alive=60).run_code("1").value == 1
            command("supervisor", "stop")
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()  # else a failure waits for a process that serves on, until the timeout


def test_it_ends_when_its_folder_is_gone(own_supervisor, tmp_path):
    pid = own_supervisor.pid()
    assert command("run", "--", "true").returncode == 0  # it has opened what it keeps there
    own_supervisor.home.rename(tmp_path / "elsewhere")
    until(lambda: not os.path.exists(f"/proc/{pid}"))
    own_supervisor.home.mkdir(mode=0o700)


@pytest.mark.requirement("ISO-10")
@pytest.mark.only_on("warm", reason="no cell is made")
def test_its_socket_is_for_its_user_alone(supervisor):
    socket = os.stat(supervisor.home / "supervisor.sock")
    assert (stat.S_IMODE(socket.st_mode), socket.st_uid) == (0o600, os.geteuid())
    assert stat.S_IMODE(os.stat(supervisor.home).st_mode) == 0o700
    for name in ("supervisor.lock", "supervisor.log"):
        assert stat.S_IMODE(os.stat(supervisor.home / name).st_mode) == 0o600


# Its sandboxes


@pytest.mark.requirement("LANG-2")
def test_another_process_finds_the_state_and_leaves_it(supervisor):
    with Sandbox.create(keep_alive=60, envs={"OURS": "1"}) as sandbox:
        sandbox.run_code("import os\nx = 20\nopen('file', 'w').write('hi')")
        assert sandbox.run_code("x").outcome.sandbox_path == supervisor.path
        code = (
            "[(s := cellwall.Sandbox.connect(sys.argv[1])).run_code('x += 1; [x, os.environ[\"OURS\"]]').value,"
            " s.files.read('file'), s.commands.run('cat file').stdout]"
        )
        assert elsewhere(code, sandbox.id) == [[21, "1"], "hi", "hi"]
        with Sandbox.connect(sandbox.id) as visitor:
            visitor.run_code("x += 1")
        assert sandbox.run_code("x").value == 22
    with pytest.raises(cellwall.CellwallError) as caught:
        Sandbox.connect(sandbox.id)
    assert caught.value.code == "CW-NO-SANDBOX"


def test_everything_of_a_sandbox_works_there_too(supervisor, tmp_path):
    with Sandbox.create(keep_alive=60) as sbx:
        seen = []
        done = sbx.run_code("print('é'); display(5); {'a': 1}", on_stdout=seen.append)
        assert (done.value, done.stdout, done.state, seen) == ({"a": 1}, "é\n", "kept", ["é\n"])
        assert done.results == ({"text": "5"},)
        assert sbx.run_code("1 / 0").error["type"] == "ZeroDivisionError"
        assert sbx.run_code("input()", stdin="hi\n").value == "hi"
        assert sbx.run_code("import time; time.sleep(9)", timeout=0.2).limit == "wall"
        failed = sbx.commands.run("cat; echo no >&2; exit 3", stdin=b"\xff\0", cwd="/tmp")
        assert (failed.exit_code, failed.outcome.stdout_bytes, failed.stderr) == (
            3,
            b"\xff\0",
            "no\n",
        )
        process = sbx.commands.run("read x; echo $x; exit 4", background=True)
        process.send_stdin("line\n")
        assert (process.wait(timeout=20).exit_code, process.info().is_running) == (4, False)
        assert [info.command[0] for info in sbx.commands.list()] == ["/bin/sh"]
        assert sbx.commands.terminal("stty size", rows=5, columns=6).wait(20).stdout == "5 6\r\n"
        sbx.files.write("deep/a", bytes(range(256)))
        assert sbx.files.read_bytes("deep/a") == bytes(range(256))
        assert [entry.path for entry in sbx.files.list("deep")] == ["deep/a"]
        assert (sbx.files.exists("none"), sbx.files.stat("deep/a").size_bytes) == (False, 256)


def test_a_workspace_and_limits_are_those_that_were_asked_for(supervisor, tmp_path, monkeypatch):
    (tmp_path / "given").write_text("1")
    monkeypatch.chdir(tmp_path)
    with Sandbox.create(keep_alive=60, workspace=".:rw", timeout=0.3) as sbx:
        # With its own time: on a busy host an interpreter is not there after 0.3 s.
        made = sbx.run_code("open('made', 'w').write(open('given').read())", timeout=30)
        assert made.status is Status.OK
        assert sbx.run_code("import time; time.sleep(20)").limit == "wall"
    assert (tmp_path / "made").read_text() == "1"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"keep_alive": 0}, "CW-BAD-KEEP-ALIVE"),
        ({"keep_alive": 1e9}, "CW-BAD-KEEP-ALIVE"),
        ({"workspace": "/nowhere/at/all"}, "CW-WORKSPACE"),
        ({"memory": "many"}, "CW-BAD-SIZE"),
        ({"profile": "none"}, "CW-CONFIG-PROFILE"),
        ({"language": "cobol"}, "CW-UNKNOWN-LANGUAGE"),
        ({"limits": {"nothing": 1}}, "CW-BAD-INPUT"),
    ],
)
@pytest.mark.only_on("warm", reason="refused before a cell is made")
def test_what_cannot_be_made_is_refused_with_the_same_words(supervisor, options, code):
    before = len(answer("ps")["sandboxes"])
    with pytest.raises(cellwall.CellwallError) as caught:
        Sandbox.create(**{"keep_alive": 60, **options})
    found = caught.value
    if "keep_alive" not in options:
        with pytest.raises(cellwall.CellwallError) as here:
            Sandbox.create(**options)
        assert (found.code, found.message, found.hint) == (
            here.value.code,
            here.value.message,
            here.value.hint,
        )
    else:
        assert found.code == code
    assert len(answer("ps")["sandboxes"]) == before


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda sbx: sbx.run_code("1", timeout=-1), "CW-BAD-LIMIT"),
        (lambda sbx: sbx.commands.connect(99), "CW-NO-PROCESS"),
        (lambda sbx: sbx.commands.kill(99), "CW-NO-PROCESS"),
        (lambda sbx: sbx.files.read("../../etc/passwd"), "CW-PATH-OUTSIDE"),
        (lambda sbx: sbx.files.read("none"), None),
        (lambda sbx: sbx.run_code("1", language="cobol"), "CW-UNKNOWN-LANGUAGE"),
    ],
)
@pytest.mark.requirement("ERR-1")
def test_an_error_there_is_the_error_it_would_be_here(supervisor, call, code):
    codes = []
    for options in ({}, {"keep_alive": 60}):
        with Sandbox.create(**options) as sbx:
            with pytest.raises(cellwall.CellwallError) as caught:
                call(sbx)
            codes.append((caught.value.code, caught.value.message))
            assert sbx.run_code("1").value == 1
    assert codes[0] == codes[1]
    assert code is None or codes[1][0] == code


def test_interrupt_and_kill_from_elsewhere_reach_a_call_that_runs(supervisor):
    sbx = Sandbox.create(keep_alive=60)
    for end, check in (
        (
            lambda: Sandbox.connect(sbx.id).interrupt(),
            lambda d: d.error["type"] == "KeyboardInterrupt",
        ),
        (lambda: command("kill", sbx.id), lambda d: d.error.code == "CW-SANDBOX-ENDED"),
    ):
        said = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            code = "import time\nprint(1, flush=True)\nwhile True: time.sleep(0.05)"
            running = threads.submit(sbx.run_code, code, on_stdout=lambda _, s=said: s.set())
            assert said.wait(PATIENCE_S)
            end()
            assert check(running.result(PATIENCE_S))
    with pytest.raises(cellwall.CellwallError) as caught:
        sbx.run_code("1")
    assert caught.value.code == "CW-NO-SANDBOX"
    sbx.kill()  # of no use any more, and no error
    with pytest.raises(cellwall.BadInput) as caught:
        sbx.run_code("1")
    assert caught.value.code == "CW-SANDBOX-ENDED"


@pytest.mark.requirement("ISO-8")
def test_a_sandbox_that_nobody_uses_ends(supervisor):
    short, long = Sandbox.create(keep_alive=0.3), Sandbox.create(keep_alive=60)
    for sbx in (short, long):
        sbx.run_code("x = 1")
    until(lambda: short.id not in {each["id"] for each in answer("ps")["sandboxes"]})
    with pytest.raises(cellwall.CellwallError) as caught:
        short.run_code("x")
    assert caught.value.code == "CW-NO-SANDBOX"
    assert long.run_code("x").value == 1
    long.kill()


def test_a_long_call_is_no_idleness(supervisor):
    with Sandbox.create(keep_alive=0.2) as sbx:
        assert sbx.run_code("import time\ntime.sleep(1.5)\n1").value == 1


def test_ps_logs_and_kill(supervisor):
    sbx = Sandbox.create(keep_alive=60)
    sbx.run_code("print('said')")
    sbx.commands.run("echo aloud >&2")
    told = {each["id"]: each for each in answer("ps")["sandboxes"]}[sbx.id]
    assert (told["calls"], told["is_busy"], 50 < told["ends_in_s"] <= 60) == (2, False, True)
    (line,) = [line for line in command("ps").stdout.decode().splitlines() if sbx.id in line]
    assert line.split()[-2:] == ["2", "idle"]
    assert command("logs", sbx.id).stdout == b"said\naloud\n"
    assert answer("logs", sbx.id) == {"id": sbx.id, "log": "said\naloud\n"}
    done = command("kill", sbx.id)
    assert (done.returncode, done.stderr) == (0, f"cellwall: {sbx.id} ended\n".encode())
    assert sbx.id not in command("ps").stdout.decode()
    for words in (["logs", sbx.id], ["kill", sbx.id], ["kill", "../etc"], ["logs", "x" * 5000]):
        done = command(*words)
        assert (done.returncode, done.stdout, error_code(done)) == (125, b"", "CW-NO-SANDBOX")
        assert answer(*words)["error"]["code"] == "CW-NO-SANDBOX"
    other = Sandbox.create(keep_alive=60)
    assert answer("kill", other.id) == {"id": other.id, "ended": True}


def test_a_log_holds_the_end_of_what_was_said(supervisor):
    with Sandbox.create(keep_alive=60) as sbx:
        sbx.run_code("for n in range(80_000): print(n)")
        log = command("logs", sbx.id).stdout
        assert log.endswith(b"79998\n79999\n")
        assert len(log) <= 400_000


def test_without_a_supervisor_nothing_is_found(state_home):
    for words in (["logs", "sbx_x"], ["kill", "sbx_x"]):
        assert error_code(command(*words)) == "CW-NO-SANDBOX"
    with pytest.raises(cellwall.CellwallError) as caught:
        Sandbox.connect("sbx_" + "0" * 26)
    assert caught.value.code == "CW-SUPERVISOR-GONE"
    with pytest.raises(cellwall.BadInput) as caught:
        Sandbox.connect("../../etc/passwd")
    assert caught.value.code == "CW-BAD-ID"
