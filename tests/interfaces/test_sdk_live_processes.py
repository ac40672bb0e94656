"""Programs in a live sandbox: waited for, in its background, and on terminals."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import cellwall
from cellwall import Sandbox, Status
from cellwall.interfaces.sdk.blocking import Process

pytestmark = pytest.mark.usefixtures("path")


@pytest.fixture
def sbx() -> Iterator[Sandbox]:
    with Sandbox.create(envs={"OURS": "0"}) as sandbox:
        yield sandbox


WITHOUT_FIRST_THREAD = """
import ctypes, fcntl, os, threading, time
held = open("/tmp/held", "w")
fcntl.flock(held, fcntl.LOCK_EX)
threading.Thread(target=time.sleep, args=(1000,)).start()
open("/tmp/pid", "w").write(str(os.getpid()))
ctypes.CDLL(None).pthread_exit(None)
"""


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not found():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def read_until(process: Process, wanted: str) -> str:
    """What it says until the wanted text was in it."""
    said: list[str] = []

    def has_said() -> bool:
        said.append(process.read().stdout)
        return wanted in "".join(said)

    until(has_said)
    return "".join(said)


def listed(sbx: Sandbox) -> list[str]:
    """The command lines of all that runs inside."""
    tell = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done 2>/dev/null"
    return [line.strip() for line in sbx.commands.run(tell).stdout.splitlines()]


def processes(sbx: Sandbox) -> set[str]:
    return set(listed(sbx))


# Waited for


@pytest.mark.parametrize(
    ("command", "exit_code", "stdout", "stderr"),
    [
        ("echo $((6 * 7)); echo no >&2; exit 3", 3, "42\n", "no\n"),
        (["printf", "%s|", "a b", "$HOME", ""], 0, "a b|$HOME||", ""),
        ("kill -TERM $$", 143, "", ""),
        ("cat", 0, "", ""),
    ],
)
def test_a_command_ends_as_it_would_anywhere(sbx, path, command, exit_code, stdout, stderr):
    done = sbx.commands.run(command)
    assert (done.exit_code, done.stdout, done.stderr) == (exit_code, stdout, stderr)
    assert (done.limit, done.state, done.outcome.sandbox_path) == (None, None, path)


def test_a_command_s_input_directory_and_variables(sbx):
    sbx.files.make_dir("deep")
    options = {"stdin": "x" * 300_000, "cwd": "/workspace/deep", "envs": {"OURS": "1"}}
    done = sbx.commands.run("pwd; echo $OURS; wc -c", **options)
    assert done.stdout == "/workspace/deep\n1\n300000\n"
    assert sbx.commands.run("pwd; echo $OURS").stdout == "/workspace\n0\n"


@pytest.mark.requirement("ERR-2")
@pytest.mark.parametrize(
    ("command", "options", "code"),
    [
        (["no-such-program"], {}, "CW-COMMAND-NOT-FOUND"),
        (["true"], {"cwd": "relative"}, "CW-BAD-DIRECTORY"),
        ([], {}, "CW-BAD-INPUT"),
        (["true"], {"envs": {"A-B": "1"}}, "CW-BAD-ENV"),
    ],
)
def test_what_cannot_be_started_is_told_and_the_sandbox_goes_on(sbx, command, options, code):
    sbx.run_code("x = 1")
    done = sbx.commands.run(command, **options)
    assert (done.status, done.error.code, done.stdout) == (Status.ERROR, code, "")
    assert sbx.run_code("x").value == 1


def test_a_missing_directory_is_told(sbx):
    done = sbx.commands.run(["pwd"], cwd="/workspace/none")
    assert (done.status, done.stdout) in {(Status.ERROR, ""), (Status.FAILED, "")}
    assert sbx.commands.run(["pwd"]).stdout == "/workspace\n"


@pytest.mark.requirement("LIM-2", "ISO-8")
def test_a_time_out_ends_a_command_s_tree_and_nothing_else(sbx):
    sbx.run_code("import subprocess\nx = subprocess.Popen(['sleep', '1001'])")
    other = sbx.commands.run(["sleep", "1002"], background=True)
    done = sbx.commands.run("setsid sleep 1003 & (trap '' TERM INT; sleep 1004)", timeout=0.4)
    assert (done.status, done.limit, done.exit_code) == (Status.LIMIT, "wall", 124)
    until(lambda: "sleep 1004" not in processes(sbx))
    left = processes(sbx)
    assert left & {"sleep 1001", "sleep 1002", "sleep 1003"} == {"sleep 1001", "sleep 1002"}
    assert (other.info().is_running, sbx.run_code("x.poll() is None").value) == (True, True)


def test_output_comes_while_the_command_runs(sbx):
    first, go_on = threading.Event(), []

    def hear(text: str) -> None:
        if text.startswith("one") and not go_on:
            go_on.append(text)
            first.set()

    with ThreadPoolExecutor(1) as threads:
        wait = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"
        running = threads.submit(sbx.commands.run, wait, on_stdout=hear, timeout=20)
        assert first.wait(20)
        sbx.files.write("go", "")
        assert running.result(20).stdout == "one\ntwo\n"


def test_commands_run_beside_each_other_and_beside_code(sbx):
    with ThreadPoolExecutor(4) as threads:
        wait = "until [ -e go ]; do sleep 0.02; done; echo $((OURS + 1))"
        waiting = [threads.submit(sbx.commands.run, wait, timeout=20) for _ in range(3)]
        coded = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n5"
        waiting.append(threads.submit(sbx.run_code, coded, timeout=20))
        until(lambda: sum("until [ -e go ]" in line for line in listed(sbx)) == 3)
        sbx.files.write("go", "")
        done = [each.result(20) for each in waiting]
    assert [each.stdout for each in done[:3]] == ["1\n"] * 3
    assert done[3].value == 5


# In the background


def test_a_background_program_is_listed_read_and_waited_for(sbx):
    process = sbx.commands.run(
        "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo over; echo err >&2; exit 4",
        background=True,
    )
    assert read_until(process, "begun\n") == "begun\n"
    until(lambda: process.info().pid is not None)  # told by init, not by the output
    (info,) = sbx.commands.list()
    assert (info.id, info.is_running, info.exit_code) == (process.id, True, None)
    assert (info.command[:2], info.pid is not None) == (("/bin/sh", "-c"), True)
    early = process.wait(timeout=0.1)
    assert (early.exit_code, early.status) == (None, Status.OK)
    sbx.files.write("go", "")
    done = process.wait(timeout=20)
    assert (done.exit_code, done.stdout, done.stderr) == (4, "over\n", "err\n")
    assert (process.info().is_running, process.info().exit_code) == (False, 4)
    again = sbx.commands.connect(process.id).wait(timeout=20)
    assert (again.exit_code, again.stdout) == (4, "")


def test_input_of_a_background_program(sbx):
    cat = sbx.commands.run(["cat"], background=True)
    cat.send_stdin("one\n")
    assert read_until(cat, "one\n") == "one\n"
    cat.send_stdin("é" * 50_000)
    cat.close_stdin()
    done = cat.wait(timeout=20)
    assert (done.exit_code, done.stdout) == (0, "é" * 50_000)
    with pytest.raises(cellwall.CellwallError) as caught:
        cat.send_stdin("late")
    assert caught.value.code == "CW-NO-STDIN"
    given = sbx.commands.run(["wc", "-c"], background=True, stdin="12345")
    assert given.wait(timeout=20).stdout.strip() == "5"


def test_signals_reach_a_background_program(sbx):
    trap = "trap 'echo heard' USR1; trap 'exit 5' TERM; echo on; while :; do sleep 0.02; done"
    process = sbx.commands.run(trap, background=True)
    read_until(process, "on\n")
    process.send_signal(signal.SIGUSR1)
    read_until(process, "heard\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20).exit_code == 5
    process.send_signal(signal.SIGTERM)  # of no use any more, and no error
    with pytest.raises(cellwall.CellwallError) as caught:
        process.send_signal(99)
    assert caught.value.code == "CW-BAD-SIGNAL"


@pytest.mark.requirement("ISO-8")
def test_kill_ends_a_background_program_with_all_it_has_started(sbx):
    process = sbx.commands.run("setsid sleep 1005 & sleep 1006", background=True)
    sleepers = {"sleep 1005", "sleep 1006"}
    until(lambda: sleepers <= processes(sbx))
    sbx.commands.kill(process.id)
    assert process.wait(timeout=20).exit_code == 137
    assert not sleepers & processes(sbx)


@pytest.mark.requirement("ISO-8")
def test_kill_ends_a_process_whose_first_thread_has_ended(sbx):
    """Such a process is a zombie by its state, and runs on."""
    sbx.files.write("/tmp/thread.py", WITHOUT_FIRST_THREAD)
    process = sbx.commands.run("python3 /tmp/thread.py & sleep 1007", background=True)
    until(lambda: sbx.commands.run("cut -d' ' -f3 /proc/$(cat /tmp/pid)/stat").stdout == "Z\n")
    assert sbx.commands.run("flock -n /tmp/held true").exit_code == 1
    sbx.commands.kill(process.id)
    assert process.wait(timeout=20).exit_code == 137
    assert sbx.commands.run("flock -n /tmp/held true").exit_code == 0


def test_many_background_programs_at_once(sbx):
    started = [
        sbx.commands.run(f"read x; echo {n} $x; exit {n}", background=True) for n in range(30)
    ]
    assert len(sbx.commands.list()) == 30
    for process in reversed(started):
        process.send_stdin(f"{process.id}\n")
    for n, process in enumerate(started):
        done = process.wait(timeout=20)
        assert (done.exit_code, done.stdout) == (n, f"{n} {process.id}\n")


def test_a_background_program_that_cannot_be_started_says_so(sbx):
    process = sbx.commands.run(["no-such-program"], background=True)
    ended = process.wait(timeout=20)
    assert ended.exit_code == 127
    assert [each.rule for each in ended.outcome.findings] == ["CW-COMMAND-NOT-FOUND"]
    assert "extra_read_only_paths" in ended.outcome.findings[0].message
    with pytest.raises(cellwall.CellwallError) as caught:
        sbx.commands.connect(9999)
    assert caught.value.code == "CW-NO-PROCESS"


@pytest.mark.requirement("ERR-1")
def test_wrong_types_are_told_and_are_errors_of_ours(sbx):
    terminal = sbx.commands.terminal("cat")
    wrong = {
        "CW-NOT-TEXT": [lambda: sbx.commands.run(5), lambda: sbx.commands.terminal(None)],
        "CW-BAD-TERMINAL": [
            lambda: sbx.commands.terminal("cat", rows="x"),
            *(lambda side=side: terminal.resize(side, 1) for side in (-1, 70_000, "x")),
        ],
        "CW-BAD-ID": [lambda: cellwall.Changes(5).list(), lambda: cellwall.Changes(None).diff()],
    }
    for code, calls in wrong.items():
        for call in calls:
            with pytest.raises(cellwall.CellwallError) as caught:
                call()
            assert caught.value.code == code
    terminal.resize(30, 100)  # the control
    terminal.kill()


@pytest.mark.requirement("LIM-1")
def test_output_that_nobody_reads_is_kept_within_bounds():
    with Sandbox.create(limits={"output_bytes": 10_000}) as sbx:
        process = sbx.commands.run("seq 1 100000", background=True)
        done = process.wait(timeout=20)
        assert (done.exit_code, done.outcome.truncated) == (0, True)
        assert len(done.stdout) == 10_000
        assert done.stdout.endswith("99999\n100000\n")


def test_a_server_in_the_background_is_reached_by_code(sbx):
    serve = "import http.server as h; h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler).serve_forever()"
    sbx.files.write("page", "served")
    sbx.commands.run(["python3", "-c", serve], background=True)
    fetch = (
        "import time, urllib.request\n"
        "for _ in range(400):\n"
        "    try: page = urllib.request.urlopen('http://127.0.0.1:8123/page').read().decode(); break\n"
        "    except OSError: time.sleep(0.05)\n"
        "page"
    )
    assert sbx.run_code(fetch, timeout=25).value == "served"


@pytest.mark.requirement("ISO-8")
def test_kill_of_the_sandbox_ends_what_waits_for_a_background_program():
    sbx = Sandbox.create()
    process = sbx.commands.run(["sleep", "1007"], background=True)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(process.wait, 60)
        until(lambda: not waiting.done())
        sbx.kill()
        with pytest.raises(cellwall.CellwallError) as caught:
            waiting.result(20)
    assert caught.value.code == "CW-SANDBOX-ENDED"


# On terminals


def test_a_terminal_is_one_of_the_size_it_was_given(sbx):
    terminal = sbx.commands.terminal("tty; stty size; echo $TERM $OURS", rows=7, columns=33)
    done = terminal.wait(timeout=20)
    assert done.exit_code == 0
    where, size, names = done.stdout.replace("\r\n", "\n").splitlines()
    assert where.startswith("/dev/pts/")
    assert (size, names) == ("7 33", "xterm-256color 0")


def test_a_terminal_can_be_resized_while_it_is_used(sbx):
    terminal = sbx.commands.terminal(
        ["/bin/sh", "-c", "trap 'stty size' WINCH; echo on; read x; read y"]
    )
    read_until(terminal, "on")
    terminal.resize(50, 100)
    read_until(terminal, "50 100")
    terminal.kill()
    assert terminal.wait(timeout=20).exit_code == 137


def test_ctrl_c_on_a_terminal_interrupts_what_is_in_front(sbx):
    shell = sbx.commands.terminal()
    read_until(shell, "$ ")
    shell.send_stdin("sleep 1008; echo status-$?\n")
    until(lambda: "sleep 1008" in processes(sbx))
    shell.send_stdin(b"\x03")
    until(lambda: "sleep 1008" not in processes(sbx))
    shell.send_stdin("exit 6\n")
    done = shell.wait(timeout=20)
    assert (done.exit_code, "^C" in done.stdout) == (6, True)


def test_a_terminal_takes_input_and_a_size_from_its_first_moment(sbx):
    # background.py: until init has handed the terminal over there is none, and input is lost.
    for _ in range(20):
        cat = sbx.commands.terminal(["cat"])
        cat.resize(10, 10)
        cat.send_stdin("hello\n")
        read_until(cat, "hello")
        cat.kill()


def test_the_end_of_input_on_a_terminal(sbx):
    cat = sbx.commands.terminal("echo on; exec cat")
    read_until(cat, "on\r\n")
    cat.send_stdin("line\n")
    read_until(cat, "line\r\nline\r\n")  # the echo of the terminal, and cat's own
    cat.close_stdin()
    assert cat.wait(timeout=20).exit_code == 0


@pytest.mark.parametrize("size", [(0, 80), (24, 10_000), (-1, -1)])
def test_a_terminal_that_cannot_be_is_refused(sbx, size):
    with pytest.raises(cellwall.CellwallError) as caught:
        sbx.commands.terminal(rows=size[0], columns=size[1])
    assert caught.value.code == "CW-BAD-TERMINAL"


def test_what_has_no_terminal_has_no_size(sbx):
    process = sbx.commands.run(["sleep", "60"], background=True)
    with pytest.raises(cellwall.CellwallError) as caught:
        process.resize(10, 10)
    assert caught.value.code == "CW-NO-TERMINAL"


LONG_SCRIPT = f"# {'x' * 1_000_000}\n"


@pytest.mark.requirement("LANG-1")
def test_script_of_a_megabyte_runs_in_every_kind_of_run(sbx: Sandbox) -> None:
    text = LONG_SCRIPT + "echo $0; cat"
    assert sbx.commands.run(text, stdin="in").stdout == "/bin/sh\nin"
    assert sbx.commands.run(text).stdout == "/bin/sh\n"
    ran = sbx.commands.run(["python", "-c", LONG_SCRIPT + "import sys; print(sys.argv)", "one"])
    assert ran.stdout == "['-c', 'one']\n"
    process = sbx.commands.run(text, background=True)
    process.send_stdin("later")
    process.close_stdin()
    assert process.wait(20).stdout == "/bin/sh\nlater"
    assert sbx.run_code(LONG_SCRIPT + "6 * 7").value == 42
    assert sbx.files.list("/tmp") == (), "no script is left"
    chunks = ["x" * 65_536] * 16
    assert sbx.commands.run(["printf", "%s", *chunks]).stdout == "".join(chunks)
    refused = sbx.commands.run(["echo", "x" * 131_072])
    assert refused.outcome.error is not None
    assert refused.outcome.error.code == "CW-ARGUMENTS-TOO-LONG"


TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.requirement("LIM-2")
def test_output_beyond_its_limit_goes_to_a_file_whole_and_redacted(tmp_path) -> None:
    limits = {"output_bytes": 40_000, "file_size_bytes": 3_000_000}
    # The token lies across the end of the beginning, where a cut would hide it from the guard.
    command = f"head -c 19980 /dev/zero | tr '\\0' x; echo; echo {TOKEN}; seq 300000; echo end >&2"
    with Sandbox.create(limits=limits) as sandbox:
        ended = sandbox.commands.run(command)
        assert (ended.status, ended.limit) == (Status.LIMIT, "output")  # the control
        ran = sandbox.commands.run(command, output_file="logs/all.txt")
        assert (ran.status, ran.outcome.truncated, ran.outcome.findings) == (Status.OK, True, ())
        whole = sandbox.files.read("logs/all.txt")
        own = tmp_path / "own.txt"
        with own.open("wb") as file:
            sandbox.commands.run(command, output_file=file)
        refused = sandbox.commands.run("touch ran", output_file="/etc/passwd")
        assert refused.outcome.error is not None
        assert refused.outcome.error.code == "CW-PATH-OUTSIDE"
        assert not sandbox.files.exists("ran")
        flood = sandbox.commands.run("yes a line of text", output_file="/tmp/flood")
        assert (flood.status, flood.limit) == (Status.LIMIT, "file_size")
        assert sandbox.files.stat("/tmp/flood").size_bytes == 3_000_000
    assert len(ran.stdout) < 40_100
    assert "bytes left out]" in ran.stdout
    assert ran.stdout.endswith("299999\n300000\n")
    lines = whole.splitlines()
    assert lines[2:].count("300000") == 1
    assert "end" in lines
    assert len(lines) == 300_003
    for text in (whole, own.read_text(), ran.stdout):
        assert TOKEN[:12] not in text
        assert "redacted" in text


def test_python_has_both_of_its_names(sbx: Sandbox) -> None:
    ran = sbx.commands.run("python -c 'print(1)' && python3 -c 'print(2)' && command -v python")
    assert ran.stdout.splitlines()[:2] == ["1", "2"], ran.stderr


def test_any_user_but_the_one_inside_is_refused_with_the_reason(sbx: Sandbox) -> None:
    assert sbx.commands.run("id -un", user="sandbox").stdout == "sandbox\n"
    for name in ("root", "0", "nobody"):
        with pytest.raises(cellwall.BadInput, match=name) as refused:
            sbx.commands.run("id -un", user=name)
        assert refused.value.code == "CW-NO-USER"
