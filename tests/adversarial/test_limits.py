"""Every limit ends the run, names itself, and leaves room for what is below it (LIM-1, LIM-2, LIM-5).

Each program runs twice: over the limit, and just below it. The second is the control: the program
itself works, so the first was ended by the limit and by nothing else.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

import cellwall
from cellwall.sandbox.linux import cgroups, run_ending
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.live_cell import CellTask, LiveCell
from cellwall.sandbox.linux.process_table import start_time
from conftest import need

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


@dataclass(frozen=True)
class Case:
    name: str
    code: str
    """`AMOUNT` is replaced."""
    over: float
    below: float
    limit: str
    limits: dict[str, float] = field(default_factory=dict)
    language: str = "python"
    memory: str = "128m"
    timeout: float = 60


_WRITE = "with open('{path}', 'wb') as f:\n    for _ in range(int(AMOUNT)): f.write(bytes(1 << 20))"
_IGNORES = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
_SURVIVES = (
    "try:\n    with open('a', 'wb') as f: f.write(bytes(AMOUNT))\nexcept OSError as e: print(e)"
)
_SPIN = "import time\nwhile time.process_time() < AMOUNT: pass"
_SPIN_MANY = (
    "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n"
    "        while time.process_time() < AMOUNT: pass\n        os._exit(0)\n"
    "for _ in range(4): os.wait()"
)

# fmt: off
CASES = (
    Case("wall", "import time; time.sleep(AMOUNT)", 60, 0.0, "wall", timeout=0.8),
    Case("wall shell", "sleep AMOUNT", 60, 0.0, "wall", language="sh", timeout=0.5),
    # Start-up takes processor time too, and much more of it on a busy host.
    Case("cpu spinner", _SPIN, 20, 0.1, "cpu", {"cpu_s": 1.0}),
    Case("cpu, many processes", _SPIN_MANY, 20, 0.02, "cpu", {"cpu_s": 1.0, "cpus": 2}),
    Case("memory", "x = bytearray(AMOUNT << 20)", 200, 10, "memory", memory="64m"),
    Case("memory, many small processes",
        "import os, time\nr, w = os.pipe()\nfor _ in range(AMOUNT):\n    if os.fork() == 0:\n"
        "        x = bytearray(4 << 20); os.write(w, b'.'); time.sleep(60)\n"
        "for _ in range(AMOUNT): os.read(r, 1)", 60, 2, "memory", memory="64m"),
    Case("memory by /dev/shm", _WRITE.format(path="/dev/shm/a"), 30, 5, "memory", memory="24m"),
    Case("processes", "import os, time\nfor _ in range(AMOUNT):\n    if os.fork() == 0: time.sleep(60)", 40,
        18, "processes", {"processes": 20}),
    Case("threads are processes", "import threading\ne = threading.Event()\n"
        "t = [threading.Thread(target=e.wait) for _ in range(AMOUNT)]\n"
        "[x.start() for x in t]; e.set(); [x.join() for x in t]", 40, 18, "processes", {"processes": 20}),
    Case("zombie maker", "import os\nfor _ in range(AMOUNT):\n    if os.fork() == 0: os._exit(0)", 400, 18,
        "processes", {"processes": 20}),
    Case("disk, workspace", _WRITE.format(path="a"), 9, 6, "disk", {"disk_bytes": 8 * MIB}),
    Case("disk, /tmp", _WRITE.format(path="/tmp/a"), 9, 6, "disk", {"disk_bytes": 8 * MIB}),
    Case("inodes", "for n in range(AMOUNT): open(f'f{n}', 'x').close()", 300, 90, "disk",
        {"file_count": 100, "disk_bytes": 8 * MIB}),
    Case("file size", "open('a', 'wb').write(bytes(AMOUNT))", MIB + 2, MIB, "file_size",
        {"file_size_bytes": MIB}),
    Case("file size, SIGXFSZ ignored", _IGNORES + _SURVIVES, 2 * MIB, MIB, "file_size",
        {"file_size_bytes": MIB}),
    Case("file size, dd", "dd if=/dev/zero of=a bs=4096 count=AMOUNT 2>/dev/null", 300, 256,
        "file_size", {"file_size_bytes": MIB}, "sh"),
    Case("file size, child of a shell", "head -c AMOUNT /dev/zero > a; exit $?", 2 * MIB, MIB,
        "file_size", {"file_size_bytes": MIB}, "sh"),
    Case("file size, ftruncate",
        "import os; os.ftruncate(os.open('a', os.O_RDWR | os.O_CREAT), AMOUNT)", MIB + 2, MIB,
        "file_size", {"file_size_bytes": MIB}),
    Case("file size, in /tmp", "open('/tmp/a', 'wb').write(bytes(AMOUNT))", 2 * MIB, MIB,
        "file_size", {"file_size_bytes": MIB}),
    Case("output, stdout", "head -c AMOUNT /dev/zero", 100_001, 100_000, "output",
        {"output_bytes": 100_000}, "sh"),
    Case("output, stderr", "head -c AMOUNT /dev/zero >&2", 100_001, 100_000, "output",
        {"output_bytes": 100_000}, "sh"),
    Case("output, both together", "head -c AMOUNT /dev/zero; head -c AMOUNT /dev/zero >&2", 50_001,
        50_000, "output", {"output_bytes": 100_000}, "sh"),
    # What the runner itself sends is bounded; code that speaks for it is not.
    Case("output, result channel", "import os, struct; text = b'{\"done\": 1, \"value\": \"' + b'x' * AMOUNT + b'\"}'\n"
        "data = struct.pack('>II', len(text), 0) + text\nwhile data: data = data[os.write(3, data):]\n"
        "os._exit(0)", 9 * MIB, MIB, "output"),
    Case("open files", "[open('/dev/null') for _ in range(AMOUNT)]", 80, 40, "open_files", {"open_files": 64}),
    Case("open files, os.open", "import os; [os.open('/', os.O_RDONLY) for _ in range(AMOUNT)]\n"
        "for n in range(300):\n    try: os.fstat(n)\n    except OSError: pass", 80, 40, "open_files", {"open_files": 64}),
    Case("open files, sockets", "import socket; [socket.socket(socket.AF_UNIX) for _ in range(AMOUNT)]",
        80, 40, "open_files", {"open_files": 64}),
    Case("open files, pipes", "import os; x = [os.pipe() for _ in range(AMOUNT)]; [os.write(w, b'.') for r, w in x]", 40, 20, "open_files", {"open_files": 64}),
    Case("open files, dup", "import os; [os.write(os.dup(1), b'') for _ in range(AMOUNT)]", 80, 40, "open_files", {"open_files": 64}),
)
# fmt: on


def run(case: Case, amount: float, timeout: float) -> cellwall.Execution:
    return cellwall.run_code(
        case.code.replace("AMOUNT", str(amount)),
        language=case.language,
        memory=case.memory,
        timeout=timeout,
        limits={"cpu_s": 30, **case.limits},
    )


@pytest.mark.requirement("LIM-1", "LIM-2")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_goes_over_a_limit_ends_and_is_told_which(case: Case) -> None:
    over = run(case, case.over, case.timeout)
    assert (over.status, over.limit, over.error if over.limit is None else None) == (
        "limit",
        case.limit,
        None,
    )
    assert over.exit_code != 0


@pytest.mark.requirement("LIM-1")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_just_below_a_limit_the_same_program_ends_well(case: Case) -> None:
    below = run(case, case.below, 60)  # on a busy host a start alone may take long
    assert (below.status, below.limit, below.exit_code, below.stderr.strip("\0")) == (
        "ok",
        None,
        0,
        "",
    )


# --- places on disk, where the kernel has no quota and the supervisor looks


def _fill_disk(sandbox: cellwall.Sandbox, command: str) -> tuple[str, str | None]:
    done = sandbox.commands.run(command, timeout=60)
    return done.status, done.limit


@pytest.mark.requirement("LIM-1", "LIM-2", "FS-3")
@pytest.mark.parametrize("mode", ["session", "rw", "cow"])
@pytest.mark.parametrize(
    ("below", "over"),
    [
        ("head -c 6000000 /dev/zero > a", "while :; do head -c 1000000 /dev/zero >> a; done"),
        ("head -c 6000000 /dev/zero > a", "head -c 30000000 /dev/zero > a"),
        ("for n in 1 2 3; do : > f$n; done", "n=0; while :; do n=$((n+1)); : > f$n; done"),
    ],
    ids=["bytes, for ever", "bytes, in one quick go", "files"],
)
def test_a_disk_filler_ends_with_the_disk_limit(
    mode: str, below: str, over: str, tmp_path: Path
) -> None:
    workspace = None if mode == "session" else f"{tmp_path}:{mode}"
    limits = {"disk_bytes": 8 * MIB, "file_count": 500, "cpu_s": 60}
    with cellwall.Sandbox.create(workspace=workspace, limits=limits, timeout=60) as sandbox:
        assert _fill_disk(sandbox, below) == ("ok", None)
        assert _fill_disk(sandbox, over) == ("limit", "disk")


@pytest.mark.requirement("LIM-2")
def test_more_files_than_can_be_walked_is_an_outcome_and_not_a_bare_exception(
    tmp_path: Path,
) -> None:
    config = tmp_path / "small.toml"
    config.write_text("[workspace]\nmax_walk_entries = 100\n")
    with cellwall.Sandbox.create(config=str(config), timeout=60) as sandbox:
        control = sandbox.run_code("for n in range(50): open(f'f{n}', 'x').close()")
        assert control.status == "ok"
        over = sandbox.run_code(
            "import time\nfor n in range(500): open(f'g{n}', 'x').close()\ntime.sleep(60)"
        )
        assert over.status in {"limit", "error"}


# --- open files: no false alarm, whatever numbers are in use


@pytest.mark.requirement("LIM-1")
@pytest.mark.parametrize("most", [32, 64, 256])
def test_an_innocent_shell_script_runs_under_a_small_descriptor_limit(most: int) -> None:
    # bash parks its script at a high number; init and the program's start use some of their own.
    done = cellwall.run_code(
        "exec 9>/tmp/x; echo a | cat | cat; (echo b) ; echo $(echo c) >&9; cat /tmp/x",
        language="sh",
        timeout=60,
        limits={"open_files": most},
    )
    assert (done.status, done.stdout) == ("ok", "a\nb\nc\n")


@pytest.mark.requirement("LIM-1")
def test_a_supervisor_with_many_descriptors_of_its_own_can_still_run() -> None:
    held = [os.dup(0) for _ in range(200)]
    try:
        done = cellwall.run_code("print(1)", timeout=60, limits={"open_files": 128})
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert (done.status, done.stdout) == ("ok", "1\n")


# --- programs that do not want to end

_DEAF = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
print('ready', flush=True)
while True: time.sleep(60)
"""
_STOPPED = "import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
_MUTE = "import os, time; print('ready', flush=True); [os.close(n) for n in (0, 1, 2, 3)]; time.sleep(60)"
_BOMB = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
_LOCK_BOMB = """
import fcntl, os, struct
fds, at = [os.open(f'lock{n}', os.O_RDWR | os.O_CREAT) for n in range(500)], 1 << 40
while True:
    at -= 4
    for fd in fds: fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, at, 1, 0))
"""
_NAMELESS_BOMB = """
import os
while True:
    os.open('.', os.O_RDWR | os.O_TMPFILE); fd = os.dup(os.open('.', os.O_RDWR | os.O_TMPFILE))
    for _ in range(16): os.write(fd, bytes(1 << 20))
"""
_SHELL_BOMB = "print('ready', flush=True); import os; os.execv('/bin/bash', ['bash', '-c', ':(){ :|:& };:; sleep 60'])"


@pytest.mark.requirement("LIM-2")
@pytest.mark.parametrize(
    ("code", "limit"),
    [(_DEAF, "wall"), (_STOPPED, "wall"), (_MUTE, "wall"), (_BOMB, "processes"), (_SHELL_BOMB, "processes")],
    ids=["deaf to signals", "stopped", "closed every descriptor", "fork bomb", "shell fork bomb"],
)  # fmt: skip
def test_a_program_that_does_not_want_to_end_is_ended(code: str, limit: str) -> None:
    started = time.monotonic()
    done = cellwall.run_code(code, timeout=1.5, limits={"processes": 40})
    assert (done.status, done.limit) == ("limit", limit)
    assert done.stdout in {"ready\n", ""}
    assert time.monotonic() - started < 50  # they would end by themselves after 60 s


@pytest.mark.requirement("LIM-2", "ISO-8")
def test_daemons_do_not_outlive_the_program_that_made_them() -> None:
    token = f"cellwall-daemon-{secrets.token_hex(8)}"
    daemon = (
        "import os\n"
        f"word = {token!r}\n"
        "gone, open_end = os.pipe()  # closes at exec: then the daemon lives under its own name\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for n in (0, 1, 2, 3): os.close(n)\n"
        "        os.execv('/bin/sh', ['sh', '-c', 'trap \"\" TERM HUP; while :; do sleep 1; done', word])\n"
        "    os._exit(0)\n"
        "os.wait(); os.close(open_end); os.read(gone, 1)\n"
        "found = [n for n in os.listdir('/proc') if n.isdigit() and word.encode() in open(f'/proc/{n}/cmdline', 'rb').read()]\n"
        "print(len(found) >= 1)"
    )
    done = cellwall.run_code(daemon, timeout=60)
    assert (done.status, done.stdout, done.stderr) == ("ok", "True\n", "")
    assert _processes_with(token) == []


def _processes_with(token: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if token.encode() in words and int(name) != os.getpid():
            found.append(int(name))
    return found


_WARM_ALONE = "cold, the kernel ends every process with bubblewrap"
_SLEEPS = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"


def _inits(monkeypatch: pytest.MonkeyPatch, work: Callable[[list[int], int], None]) -> None:
    """Call `work` once, with all processes of the run and with init, when the code has begun."""
    original, done = WarmCell.counters, threading.Event()

    def counters(self: WarmCell) -> object:
        pids = self.pids()
        if len(pids) >= 3 and not done.is_set():  # init, the interpreter and its child
            done.set()
            (init,) = [pid for pid in pids if _innermost_pid(pid) == 1]
            work(pids, init)
        return original(self)

    monkeypatch.setattr(WarmCell, "counters", counters)


@pytest.mark.requirement("LIM-2")
def test_a_limit_that_a_program_reaches_at_once_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host, a short program has reached it before the supervisor looks again."""
    start = LiveCell.start

    def start_late(cell: LiveCell, *arguments: Any, **options: Any) -> CellTask:
        task = start(cell, *arguments, **options)
        deadline = time.monotonic() + 60
        while not cell.counters().forks_refused:
            assert time.monotonic() < deadline, "the control: the kernel refuses a fork"
        return task

    with cellwall.Sandbox.create(limits={"processes": 8}) as sandbox:
        assert sandbox.commands.run("true").exit_code == 0
        monkeypatch.setattr(LiveCell, "start", start_late)
        ran = sandbox.commands.run("for i in $(seq 20); do sleep 30 & done; wait")
        assert (ran.status, ran.limit) == ("limit", "processes")


def _innermost_pid(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("NSpid:")[2].split("\n")[0].split()[-1])


@pytest.mark.requirement("LIM-2", "ISO-8")
@pytest.mark.only_on("warm", reason=_WARM_ALONE)
def test_a_limit_ends_a_cell_whose_init_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Init gets no processor, as on a host that is much too busy."""
    need(os.geteuid() == 0, "root")
    found: list[int] = []

    def stop_init(pids: list[int], init: int) -> None:
        os.kill(init, signal.SIGSTOP)
        found.extend(pid for pid in pids if start_time(pid))  # the control: all of them live
        assert len(found) == len(pids)

    _inits(monkeypatch, stop_init)
    done = cellwall.run_code(_SLEEPS, timeout=8)
    assert (done.status, done.limit, done.error) == ("limit", "wall", None)
    assert found
    # One that the kernel is taking apart does not count: no code of it runs again.
    assert [pid for pid in found if start_time(pid)] == []


@pytest.mark.requirement("LIM-2", "ISO-8")
@pytest.mark.only_on("warm", reason=_WARM_ALONE)
def test_a_process_that_cannot_be_ended_is_reported_with_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: in a frozen group of cgroup v1, a process does not even receive SIGKILL."""
    need(os.geteuid() == 0, "root")
    freezer = Path("/sys/fs/cgroup/freezer")
    need((freezer / "tasks").exists(), "the freezer of cgroup v1")
    group = freezer / f"cellwall-test-{secrets.token_hex(4)}"
    group.mkdir()

    def freeze(pids: list[int], init: int) -> None:
        for pid in {*pids, init}:
            (group / "tasks").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")

    _inits(monkeypatch, freeze)
    monkeypatch.setattr(run_ending, "STUCK_S", 3.0)  # else twice twenty seconds
    try:
        done = cellwall.run_code(_SLEEPS, timeout=8)
        left = (group / "tasks").read_text().split()
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "tasks").read_text():
            time.sleep(0.05)
        group.rmdir()
    error = done.outcome.error
    assert (done.status, error and error.code) == ("error", "CW-LEFTOVER")
    assert "(wall)" in error.message
    assert left  # it is true


# --- the others keep working


@pytest.mark.requirement("LIM-2")
@pytest.mark.parametrize(
    "attack",
    [_BOMB, "while True: pass", "x = []\nwhile True: x.append(bytearray(1 << 20))", "while True: print('x' * 65536)", _LOCK_BOMB, _NAMELESS_BOMB],
    ids=["fork bomb", "spinner", "memory bomb", "output flood", "lock bomb", "files without a name"],
)  # fmt: skip
def test_another_sandbox_answers_while_one_misbehaves(attack: str) -> None:
    answers: list[tuple[str, str]] = []

    async def misbehave(sandbox: cellwall.AsyncSandbox, ended: list[cellwall.Execution]) -> None:
        ended.append(await sandbox.run_code(attack, timeout=2))

    async def both() -> cellwall.Execution:
        ended: list[cellwall.Execution] = []
        small = {"cpu_s": 1, "processes": 50, "output_bytes": 16 * MIB}
        async with (
            cellwall.AsyncSandbox.create(limits=small, memory="128m") as bad,
            cellwall.AsyncSandbox.create(memory="128m") as good,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(misbehave, bad, ended)
            for number in range(5):
                done = await good.run_code(f"print({number})", timeout=60)
                answers.append((done.status, done.stdout))
        return ended[0]

    attacked = anyio.run(both)
    assert attacked.status == "limit"
    assert answers == [("ok", f"{number}\n") for number in range(5)]


@pytest.mark.requirement("LIM-2")
def test_an_output_flood_does_not_starve_the_event_loop_or_the_deadline() -> None:
    flood = "for n in 1 2 3 4 5 6 7 8; do cat /dev/zero & done; wait"
    gaps_s: list[float] = []

    async def tick() -> None:
        while True:
            before = (
                time.thread_time()
            )  # what the loop itself does; a busy machine takes none of it
            await anyio.sleep(0.01)
            gaps_s.append(time.thread_time() - before)

    async def both() -> cellwall.Execution:
        async with (
            cellwall.AsyncSandbox.create(limits={"output_bytes": 64 * MIB, "cpus": 2}) as sandbox,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(tick)
            done = await sandbox.commands.run(flood, timeout=60)
            tasks.cancel_scope.cancel()
        return done

    done = anyio.run(both)
    assert (done.status, done.limit) == ("limit", "output")
    assert max(gaps_s) < 1.0


# --- usage


@pytest.mark.requirement("LIM-5")
def test_usage_tells_wall_cpu_memory_and_io_of_the_run(tmp_path: Path) -> None:
    begun_at = time.monotonic()
    ran = cellwall.run_code("pass")
    assert ran.status == "ok", ran.error
    idle = ran.outcome.usage
    ended_at = time.monotonic()
    busy = cellwall.run_code(
        "import time, os\nx = bytearray(64 << 20)\nend = time.process_time() + 0.3\n"
        "while time.process_time() < end: pass\ntime.sleep(0.2)\n"
        "with open('a', 'wb') as f: f.write(x[:8 << 20]); f.flush(); os.fsync(f.fileno())",
        workspace=f"{tmp_path}:rw",
    ).outcome.usage
    assert 0 < idle.cpu_s < busy.cpu_s
    assert 0.3 < busy.cpu_s < 5
    assert 0 < idle.wall_s <= ended_at - begun_at
    assert 0.5 < busy.wall_s <= time.monotonic() - ended_at
    assert idle.memory_peak < 64 * MIB <= busy.memory_peak < 200 * MIB
    assert busy.io_bytes is None or busy.io_bytes >= 0
    assert busy.cpu_s < busy.wall_s + 0.1  # one processor is the default share


@pytest.mark.requirement("LIM-5")
def test_usage_is_told_for_a_run_that_a_limit_ended() -> None:
    used = cellwall.run_code("while True: pass", timeout=60, limits={"cpu_s": 0.5}).outcome.usage
    # Where the monitor is late, RLIMIT_CPU ends the process at 2 s; the rest is start-up.
    assert 0.5 <= used.cpu_s < 3
    assert used.memory_peak > MIB


def test_signals_of_the_kernel_have_their_own_exit_codes() -> None:
    done = cellwall.run_code("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (done.status, done.limit, done.exit_code) == ("failed", None, 128 + signal.SIGSEGV)
