"""The command line as a process: descriptors, signals, pipes, and what it imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).parent / "holdfast")
DEADLINE_S = 60


def holdfast(*words: str | bytes, stdin: bytes = b"", **changes) -> subprocess.CompletedProcess:
    """Run the real program to its end; `changes` are variables of its environment."""
    return subprocess.run(
        [PROGRAM, *words],
        input=stdin,
        capture_output=True,
        timeout=DEADLINE_S,
        env={**os.environ, **changes},
        check=False,
    )


def through_shell(line: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/bash", "-c", line.replace("holdfast", PROGRAM)],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )


def error_code(done: subprocess.CompletedProcess) -> str:
    """The code of the first line that we say ourselves."""
    first = next(line for line in done.stderr.splitlines() if line.startswith(b"holdfast: "))
    return first.rpartition(b"[")[2].rstrip(b"]").decode()


# Start


def modules_of(*words: str) -> set[str]:
    script = (
        "import sys\n"
        "from holdfast.interfaces.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stderr.split()}


HEAVY = {"pydantic", "pydantic_core", "anyio", "asyncio", "subprocess"}


@pytest.mark.parametrize(
    "words", [["--help"], [], ["--version"], ["run", "--help"], ["code", "--help"]]
)
def test_help_imports_nothing_heavy(words):
    assert modules_of(*words) & HEAVY == set()


def test_the_check_for_heavy_imports_sees_them():
    assert {"pydantic", "anyio", "asyncio"} <= modules_of("run", "--", "true")


def test_help_imports_no_command():
    script = (
        "import sys\n"
        "from holdfast.interfaces.cli.main import main\n"
        "main(['--help'])\n"
        "print([m for m in sys.modules if m.startswith('holdfast.interfaces.cli.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "['holdfast.interfaces.cli.main']"


# Standard streams


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_neither_crash_nor_lend_their_number(closed, tmp_path):
    # The program tells what its own descriptors are: never a file of ours.
    script = "ls -l /proc/self/fd > fds; exit 7"
    done = through_shell(f"holdfast run --workspace {tmp_path}:rw -- sh -c '{script}' {closed}")
    assert done.returncode == 7
    assert b"Traceback" not in done.stderr
    links = [line.split(" -> ")[1] for line in (tmp_path / "fds").read_text().splitlines()[1:]]
    assert [link.partition(":")[0] for link in links[:3:2]] == ["/dev/null", "pipe"]


def test_closed_standard_input_is_empty_input():
    done = through_shell("holdfast run --stdin -- wc -c <&-")
    assert (done.returncode, done.stdout.strip()) == (0, b"0")


def test_a_reader_that_goes_away_ends_the_run_quietly():
    done = through_shell(
        "holdfast run -- sh -c 'while :; do echo y; done' | head -1; echo ${PIPESTATUS[0]}"
    )
    assert (done.stdout, done.stderr) == (b"y\n141\n", b"")


@pytest.mark.parametrize("words", ["--help", "config show", "config schema", "audit tail"])
def test_a_reader_that_never_reads_gets_no_complaint(words):
    done = through_shell(f"holdfast {words} | true; echo ${{PIPESTATUS[0]}}")
    assert done.stderr == b""
    assert done.stdout in {b"141\n", b"0\n"}


@pytest.mark.parametrize(
    "words", ["run -- sh -c 'while :; do echo y; done'", "code --json -c 1", "config show"]
)
def test_a_full_disk_under_our_output_is_told(words):
    done = through_shell(f"holdfast {words} > /dev/full")
    assert (done.returncode, error_code(done)) == (125, "HF-OUTPUT-UNWRITABLE")


# Bugs


@pytest.mark.requirement("ERR-1")
def test_a_bug_is_told_without_its_trace_unless_asked_for(tmp_path):
    # A state folder in which the ledger is a file: nothing in Holdfast expects that.
    (tmp_path / "runs").write_text("")
    tmp_path.chmod(0o700)
    done = holdfast("run", "--", "true", HOLDFAST_HOME=str(tmp_path))
    assert (done.returncode, error_code(done)) == (125, "HF-INTERNAL")
    assert str(tmp_path).encode() not in done.stderr
    assert b"Traceback" not in done.stderr
    told = holdfast("run", "--json", "--", "true", HOLDFAST_HOME=str(tmp_path))
    assert json.loads(told.stdout)["error"]["code"] == "HF-INTERNAL"
    assert told.stderr == b""
    traced = holdfast("run", "--", "true", HOLDFAST_HOME=str(tmp_path), HOLDFAST_DEBUG="1")
    assert b"Traceback" in traced.stderr


# Signals


class Running:
    """A run that has said that it is there."""

    def __init__(self, *words: str) -> None:
        self.mark = f"{uuid.uuid4().int % 10**9 + 10**9}"
        script = f"echo ready; sleep {self.mark} & sleep {self.mark}"
        self.process = subprocess.Popen(
            [PROGRAM, "run", *words, "--timeout", "100", "--", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def until_ready(self) -> Running:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        return self

    def processes(self) -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = entry.read_bytes()
            except OSError:
                continue
            if command.startswith(b"sleep\0") and self.mark.encode() in command:
                found.append(entry.parent.name)
        return found

    def groups(self) -> list[str]:
        """The cgroups of the run, which carry its id."""
        (entry,) = os.listdir(Path(os.environ["HOLDFAST_HOME"], "runs")) or [""]
        self.id = entry or self.id
        walk = os.walk("/sys/fs/cgroup")
        return [name for _, names, _ in walk for name in names if self.id in name]

    def ended(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_and_leaves_nothing(number, code):
    running = Running().until_ready()
    assert len(running.processes()) == 2  # the control: they are there to be found
    assert running.groups() != []
    running.process.send_signal(number)
    assert running.ended() == (
        code,
        b"",
        f"holdfast: the run was ended by {number.name}; nothing of it is left\n".encode(),
    )
    assert running.processes() == []
    assert running.groups() == []
    assert os.listdir(Path(os.environ["HOLDFAST_HOME"], "runs")) == []
    records = json.loads(holdfast("audit", "show", "--json", running.id).stdout)["records"]
    assert [(r["kind"], r["body"].get("status")) for r in records] == [
        ("intent", None),
        ("outcome", "interrupted"),
    ]


@pytest.mark.requirement("ISO-8")
def test_many_signals_do_not_cut_the_cleaning_up_short():
    running = Running().until_ready()
    running.groups()
    for _ in range(20):
        running.process.send_signal(signal.SIGINT)
    code, _, err = running.ended()
    assert code == 130
    assert b"Traceback" not in err
    assert (running.processes(), running.groups()) == ([], [])


def test_a_signal_is_told_as_json_where_json_was_asked_for():
    process = subprocess.Popen(
        [PROGRAM, "run", "--json", "--timeout", "100", "--", "sleep", "100"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    runs = Path(os.environ["HOLDFAST_HOME"], "runs")
    while process.poll() is None and not (runs.is_dir() and os.listdir(runs)):
        pass  # until the run is in the ledger; the test's own timeout bounds it
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    told = json.loads(out)
    assert (process.returncode, told["status"], told["error"]["code"], err) == (
        143,
        "error",
        "HF-INTERRUPTED",
        b"",
    )


def test_a_reader_that_does_not_read_cannot_keep_a_run_alive():
    # The pipe is full and nobody reads: limits and signals must still be looked after.
    script = "echo ready; yes | head -c 1000000; sleep 100"
    process = subprocess.Popen(
        [PROGRAM, "run", "--timeout", "3", "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert os.read(process.stdout.fileno(), 6) == b"ready\n"
    runs = Path(os.environ["HOLDFAST_HOME"], "runs")
    while os.listdir(runs):
        pass  # until the wall limit has ended it; the test's own timeout bounds it
    process.send_signal(signal.SIGTERM)
    assert (
        process.stderr.read() == b"holdfast: the run was ended by SIGTERM; nothing of it is left\n"
    )
    assert process.wait(DEADLINE_S) == 143


def test_a_signal_that_our_parent_ignores_stays_ignored():
    done = through_shell(
        "trap '' INT; holdfast run -- sh -c 'echo a; sleep 1; echo b' & kill -INT $!; wait $!"
    )
    assert (done.returncode, done.stdout) == (0, b"a\nb\n")


def test_ctrl_c_while_standard_input_is_read():
    process = subprocess.Popen(
        [PROGRAM, "run", "--stdin", "--", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    status = Path(f"/proc/{process.pid}/wchan")
    while "pipe_read" not in status.read_text():
        pass  # until it waits for input; the test's own timeout bounds it
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (130, b"")
