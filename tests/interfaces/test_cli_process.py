"""The command line as a process: descriptors, signals, pipes, and what it imports."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import terminals
from cellwall.interfaces.cli.main import main
from conftest import need
from interfaces import prepared_program
from interfaces.prepared_program import PROGRAM

DEADLINE_S = 240  # ends a wait that would last for ever; a busy host is no failure


def until(found: Callable[[], object]) -> None:
    """Looks again and again, and leaves the processor to the process that is waited for."""
    deadline = time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def cellwall(*words: str | bytes, stdin: bytes = b"", **changes) -> subprocess.CompletedProcess:
    """Run the program to its end; `changes` are variables of its environment."""
    return prepared_program.run(
        words, stdin=stdin, env={**os.environ, **changes}, timeout_s=DEADLINE_S
    )


def person(*words: str, says: str | None = None, **changes: str) -> subprocess.CompletedProcess:
    """As a person types it at a terminal, and confirms what has to be confirmed."""
    return terminals.confirmed(words, says=says, env={**os.environ, **changes})


def in_process(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
    """The same program in this process: a start of Python for each word would take long."""
    before = [os.dup(number) for number in range(3)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        given.write(stdin)
        given.seek(0)
        try:
            for number, file in enumerate((given, out, err)):
                os.dup2(file.fileno(), number)
            code = main(list(words))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for number, saved in enumerate(before):
                os.dup2(saved, number)
                os.close(saved)
        shown = [(file.seek(0), file.read())[1] for file in (out, err)]
    return subprocess.CompletedProcess(words, code, *shown)


def through_shell(line: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["/bin/bash", "-c", line.replace("cellwall", PROGRAM)],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )


def error_code(done: subprocess.CompletedProcess) -> str:
    """The code of the first line that we say ourselves."""
    first = next(line for line in done.stderr.splitlines() if line.startswith(b"cellwall: "))
    return first.rpartition(b"[")[2].rstrip(b"]").decode()


# Start


def modules_of(*words: str) -> set[str]:
    script = (
        "import sys\n"
        "from cellwall.interfaces.cli.main import main\n"
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
        "from cellwall.interfaces.cli.main import main\n"
        "main(['--help'])\n"
        "print([m for m in sys.modules if m.startswith('cellwall.interfaces.cli.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    light = ["plain_run", "main", "commands"]
    assert done.stdout.splitlines()[-1] == str([f"cellwall.interfaces.cli.{m}" for m in light])


# Standard streams


@pytest.mark.parametrize(
    "closed",
    ["<&-", ">&-", "2>&-", pytest.param("<&- >&-", marks=pytest.mark.long), "<&- >&- 2>&-"],
)
@pytest.mark.sample(2)
def test_closed_standard_streams_neither_crash_nor_lend_their_number(closed, tmp_path):
    # The program tells what its own descriptors are: never a file of ours.
    script = "ls -l /proc/self/fd > fds; exit 7"
    done = through_shell(f"cellwall run --workspace {tmp_path}:rw -- sh -c '{script}' {closed}")
    assert done.returncode == 7
    assert b"Traceback" not in done.stderr
    links = [line.split(" -> ")[1] for line in (tmp_path / "fds").read_text().splitlines()[1:]]
    assert [link.partition(":")[0] for link in links[:3:2]] == ["pipe", "pipe"]


def test_closed_standard_input_is_empty_input():
    done = through_shell("cellwall run --stdin -- wc -c <&-")
    assert (done.returncode, done.stdout.strip()) == (0, b"0")


def test_a_reader_that_goes_away_ends_the_run_quietly():
    done = through_shell(
        "cellwall run -- sh -c 'while :; do echo y; done' | head -1; echo ${PIPESTATUS[0]}"
    )
    assert (done.stdout, done.stderr) == (b"y\n141\n", b"")


def into(stdout: int, words: str) -> tuple[int, bytes]:
    """How it ends that writes there, and what it says."""
    with prepared_program.Popen(
        shlex.split(words), stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE
    ) as process:
        os.close(stdout)
        return process.wait(DEADLINE_S), process.stderr.read()


@pytest.mark.parametrize("words", ["--help", "config show", "config schema", "audit tail"])
@pytest.mark.sample(2)
def test_a_reader_that_never_reads_gets_no_complaint(words):
    reads, writes = os.pipe()
    os.close(reads)
    code, said = into(writes, words)
    assert (code in {141, 0}, said) == (True, b"")


@pytest.mark.parametrize(
    "words", ["run -- sh -c 'while :; do echo y; done'", "code --json -c 1", "config show"]
)
@pytest.mark.sample(2)
def test_a_full_disk_under_our_output_is_told(words):
    code, said = into(os.open("/dev/full", os.O_WRONLY), words)
    assert code == 125
    assert b"[CW-OUTPUT-UNWRITABLE]" in said


# Bugs


@pytest.mark.requirement("ERR-1")
def test_a_bug_is_told_without_its_trace_unless_the_development_profile_shows_it(tmp_path):
    broken = (
        "import sys\n"
        "import cellwall.runtime.wiring as wiring\n"
        "from cellwall.interfaces.cli.main import main\n"
        "def bug(**_): raise ZeroDivisionError('/a/secret/path')\n"
        "original = wiring.open_app\n"
        "for module in list(sys.modules.values()):\n"
        "    if getattr(module, 'open_app', None) is original: module.open_app = bug\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def run(*words: str, **changes) -> subprocess.CompletedProcess:
        environ = {**os.environ, **changes}
        return prepared_program.run(
            words, code=broken, stdin=b"", env=environ, timeout_s=DEADLINE_S
        )

    done = run("run", "--", "true")
    assert (done.returncode, error_code(done)) == (125, "CW-INTERNAL")
    assert b"secret" not in done.stderr
    assert b"Traceback" not in done.stderr
    told = run("run", "--json", "--", "true")
    assert json.loads(told.stdout)["error"]["code"] == "CW-INTERNAL"
    assert told.stderr == b""
    config = tmp_path / "cellwall.toml"
    for profile, is_shown in [("production", False), ("paranoid", False), ("development", True)]:
        config.write_text(f'profile = "{profile}"\n')
        shown = run("run", "--", "true", CELLWALL_DEBUG="1", CELLWALL_CONFIG=str(config)).stderr
        assert (b"Traceback" in shown, b"secret" in shown) == (is_shown, is_shown), profile
    assert b"Traceback" not in run("run", "--", "true", CELLWALL_DEBUG="1").stderr
    config.write_text("profile = 1\n")
    for file in (config, tmp_path / "none"):
        shown = run("run", "--", "true", CELLWALL_DEBUG="1", CELLWALL_CONFIG=str(file)).stderr
        assert b"Traceback" not in shown


def test_a_state_folder_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "runs").write_text("")
    tmp_path.chmod(0o700)
    done = cellwall("run", "--", "true", CELLWALL_HOME=str(tmp_path))
    assert (done.returncode, error_code(done)) == (125, "CW-STATE")
    assert str(tmp_path).encode() not in done.stderr
    assert b"the Cellwall state folder $CELLWALL_HOME cannot be" in done.stderr


# Signals


@contextmanager
def started(*words: str, is_prepared: bool = True, **streams) -> Iterator[subprocess.Popen]:
    """The program while it runs; ended with the block at the latest.

    One that is not prepared begins and ends as interpreters do.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    popen = prepared_program.Popen if is_prepared else subprocess.Popen
    with popen(words if is_prepared else [PROGRAM, *words], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


class Running:
    """A run with two processes, seen from outside."""

    def __init__(self, process: subprocess.Popen, mark: str) -> None:
        self.process = process
        self.mark = mark
        until(lambda: len(self.processes()) == 2)
        (self.id,) = ledger()

    def processes(self) -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = entry.read_bytes()
            except OSError:
                continue
            if command == f"sleep\0{self.mark}\0".encode():
                found.append(entry.parent.name)
        return found

    def groups(self) -> list[str]:
        """The cgroups of the run, which carry its id."""
        walk = os.walk("/sys/fs/cgroup")
        return [name for _, names, _ in walk for name in names if self.id in name]

    def ended(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


@contextmanager
def two_sleepers(*, is_prepared: bool) -> Iterator[Running]:
    mark = f"{uuid.uuid4().int % 10**9 + 10**9}"
    words = ["run", "--timeout", "100", "--", "sh", "-c", f"sleep {mark} & sleep {mark}"]
    with started(*words, is_prepared=is_prepared) as process:
        yield Running(process, mark)


def ledger() -> list[str]:
    """The ids of live runs."""
    runs = Path(os.environ["CELLWALL_HOME"], "runs")
    return os.listdir(runs) if runs.is_dir() else []


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_and_leaves_nothing(number, code):
    with two_sleepers(is_prepared=number != signal.SIGTERM) as running:
        assert len(running.processes()) == 2  # the control: they are there to be found
        assert running.groups() != []
        running.process.send_signal(number)
        assert running.ended() == (
            code,
            b"",
            f"cellwall: the run was ended by {number.name}; nothing of it is left\n".encode(),
        )
        assert (running.processes(), running.groups(), ledger()) == ([], [], [])
    records = json.loads(cellwall("audit", "show", "--json", running.id).stdout)["records"]
    assert [(r["kind"], r["body"].get("status")) for r in records] == [
        ("intent", None),
        ("outcome", "interrupted"),
    ]


@pytest.mark.requirement("ISO-8")
def test_many_signals_do_not_cut_the_cleaning_up_short():
    with two_sleepers(is_prepared=False) as running:
        for _ in range(20):
            running.process.send_signal(signal.SIGINT)
        code, _, err = running.ended()
        assert code == 130
        assert b"Traceback" not in err
        assert (running.processes(), running.groups(), ledger()) == ([], [], [])


def test_a_signal_is_told_as_json_where_json_was_asked_for():
    with started("run", "--json", "--timeout", "100", "--", "sleep", "100") as process:
        until(lambda: process.poll() is not None or ledger())
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
    told = json.loads(out)
    assert (process.returncode, told["status"], told["error"]["code"], err) == (
        143,
        "error",
        "CW-INTERRUPTED",
        b"",
    )


def test_a_reader_that_does_not_read_cannot_keep_a_run_alive():
    # The pipe is full and nobody reads: limits and signals must still be looked after.
    script = "echo ready; yes | head -c 1000000; sleep 100"
    with started("run", "--timeout", "2", "--", "sh", "-c", script) as process:
        assert os.read(process.stdout.fileno(), 6) == b"ready\n"
        until(lambda: not ledger())  # the wall limit has ended it
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read().startswith(b"cellwall: the run was ended by SIGTERM;")
        assert process.wait(DEADLINE_S) == 143


def test_a_signal_that_our_parent_ignores_stays_ignored():
    script = "sh -c 'echo a; sleep 0.3; echo b'"
    done = through_shell(f"trap '' INT; cellwall run -- {script} & kill -INT $!; wait $!")
    assert (done.returncode, done.stdout) == (0, b"a\nb\n")


def test_ctrl_c_while_standard_input_is_read():
    with started("run", "--stdin", "--", "cat", stdin=subprocess.PIPE) as process:
        waits_in = Path(f"/proc/{process.pid}/wchan")
        until(lambda: "pipe_read" in waits_in.read_text())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_output_comes_while_the_program_runs():
    with started("run", "--", "sh", "-c", "echo first; sleep 100") as process:
        assert process.stdout.readline() == b"first\n"
        assert process.poll() is None
        process.terminate()
        assert process.wait(DEADLINE_S) == 143


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize("room", ["some", "none"])
def test_a_full_disk_is_told_and_loses_nothing(tmp_path, room):
    need(os.geteuid() == 0, "root, to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        home = small / "home"
        home.mkdir(mode=0o700)
        assert cellwall("run", "--", "echo", "fine", CELLWALL_HOME=str(home)).stdout == b"fine\n"
        with suppress(OSError), (small / "fill").open("wb", buffering=0) as file:
            while room == "none":
                file.write(bytes(4096))
        done = cellwall("run", "--", "echo", "again", CELLWALL_HOME=str(home))
        verified = cellwall("audit", "verify", CELLWALL_HOME=str(home))
    finally:
        subprocess.run(["umount", "-l", small], check=True)
    assert verified.returncode == 0
    if room == "some":  # the control
        assert (done.returncode, done.stdout) == (0, b"again\n")
    else:
        assert (done.returncode, done.stdout) == (125, b"")
        assert error_code(done) in {"CW-HOST", "CW-STATE", "CW-AUDIT-FAILED"}
        assert b"hint:" in done.stderr
