"""Attacks on a cell that lives on: its channel, its interpreter, its init, and the time between.

Code in it may lie to the supervisor, ruin its own interpreter and leave processes behind. It harms
itself: the call ends, the next one works, and a neighbour never notices.
"""

from __future__ import annotations

import secrets
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

import cellwall
from cellwall.sandbox.linux import live_runs, run_monitor, sessions

MIB = 1 << 20
_FRAMES = """
import json, os, struct, time
def frame(message, blob=b""):
    text = json.dumps(message).encode()
    return struct.pack(">II", len(text), len(blob)) + text + blob
def say(data):
    while data: data = data[os.write(3, data):]
"""
_HALF = 'struct.pack(">II", 10, 0) + b"{"'

_SPEAK = """
if os.fork() == 0:
    while True:
        say(frame({"done": 2, "exit": 0, "value": "forged"}))
        os.write(1, b"forged")
        time.sleep(0.01)
os._exit(6)
"""

# name: (what the code does, (status, exit code, limit), what becomes of its variables)
MISDEEDS = {
    "says that it is done, and goes on": (
        'say(frame({"done": 1, "exit": 0}))\ntime.sleep(0.5)',
        ("ok", 0, None),
        "kept",
    ),
    "answers for the next run": (
        'say(frame({"done": 2, "exit": 0, "value": "forged"}))',
        ("ok", 0, None),
        "kept",
    ),
    "answers twice": (
        'say(frame({"done": 1, "exit": 0}) + frame({"done": 1, "exit": 0}))\ntime.sleep(0.2)',
        ("ok", 0, None),
        "kept",
    ),
    "half a frame": (f"say({_HALF})", ("failed", 137, None), "lost"),
    "a frame that is never whole": (
        'say(struct.pack(">II", 9999, 0) + b"{")',
        ("limit", 124, "wall"),
        "lost",
    ),
    "half a head": ('say(b"\\0\\0")', ("failed", 137, None), "lost"),
    "no frame at all": ('say(b"\\xff" * 64)', ("failed", 137, None), "lost"),
    "a frame with raw bytes": ('say(frame({}, b"x"))', ("failed", 137, None), "lost"),
    "a frame too long": ('say(struct.pack(">II", 9 << 20, 0))', ("limit", 137, "output"), "lost"),
    "a frame that is no JSON": (
        'say(struct.pack(">II", 4, 0) + b"{{{{")',
        ("failed", 137, None),
        "lost",
    ),
    "a flood of frames": (
        'while True: say(frame({"a": "x" * 60_000}))',
        ("limit", 137, "output"),
        "lost",
    ),
    # It is ended, unless it is quicker and ends for want of a channel.
    "closes the channel": ("os.close(3)", ("failed", (1, 120, 137), None), "lost"),
    "closes the channel and stays": (
        "os.close(3)\ntime.sleep(60)",
        ("failed", 137, None),
        "lost",
    ),
    "closes everything": ("os.closerange(0, 4096)", ("failed", (1, 120, 137), None), "lost"),
    "ends in the middle of a frame": (f"say({_HALF})\nos._exit(5)", ("failed", 5, None), "lost"),
    "a child keeps the descriptors": (
        "if os.fork() == 0: time.sleep(60)\nos._exit(6)",
        ("failed", 6, None),
        "lost",
    ),
    "a child goes on speaking": (
        _SPEAK,
        ("failed", 6, None),
        "lost",
    ),
    "kills all it can": (
        "if os.fork() == 0: time.sleep(60)\nos.kill(-1, 9)\nos.kill(os.getpid(), 9)",
        ("failed", 137, None),
        "lost",
    ),
    "stops itself": ("os.kill(os.getpid(), 19)", ("limit", 124, "wall"), "lost"),
    "deaf to an interrupt": (
        "while True:\n    try: time.sleep(60)\n    except BaseException: pass",
        ("limit", 124, "wall"),
        "lost",
    ),
}


@pytest.mark.requirement("ISO-7", "ISO-9")
@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_code_that_misbehaves_on_its_channel_harms_only_itself(misdeed: str) -> None:
    deed, (status, codes, limit), state = MISDEEDS[misdeed]
    with cellwall.Sandbox.create() as neighbour, cellwall.Sandbox.create() as sandbox:
        begun = neighbour.run_code("mine = 6", timeout=60)  # a start takes long on a busy host
        assert (begun.status, begun.state) == ("ok", "kept")
        # Only where the wall time is the limit that ends the run is a short one given: a busy host
        # may need longer than that to reach any other limit.
        timeout = 1 if limit == "wall" else 60
        ran = sandbox.run_code(f"{_FRAMES}mine = 1\n{deed}\n", timeout=timeout)
        assert (ran.status.value, ran.limit) == (status, limit)
        assert ran.exit_code in (codes if isinstance(codes, tuple) else (codes,))
        assert ran.state == state
        after = sandbox.run_code("6 * 7", timeout=60)
        assert (after.status.value, after.value, after.stdout) == ("ok", 42, "")
        kept = sandbox.run_code("'mine' in globals()", timeout=60).value
        assert kept is (state == "kept")
        there = neighbour.run_code("mine * 7", timeout=60)
        assert there.value == 42, "its variables are still there"


_ENDS_LATER = """
import os, pathlib, threading, time
mine = 1
def end():
    while not os.path.exists('end'): time.sleep(0.01)
    os._exit(3)
threading.Thread(target=end).start()
os.getpid()
"""


@pytest.mark.requirement("ISO-7")
@pytest.mark.parametrize("dies", [True, False])
def test_variables_that_were_lost_between_two_calls_are_not_called_kept(dies: bool) -> None:
    """The interpreter ends when no call is under way, so that no result can tell of it."""
    with cellwall.Sandbox.create(timeout=60) as sandbox:
        begun = sandbox.run_code(_ENDS_LATER)
        assert (begun.status, begun.state) == ("ok", "kept")
        if dies:
            sandbox.files.write("end", "")
            ended = f"while [ -e /proc/{begun.value} ]; do sleep 0.05; done"
            assert sandbox.commands.run(ended).exit_code == 0
        after = sandbox.run_code("'mine' in globals()")
        assert (after.value, after.state) == ((False, "lost") if dies else (True, "kept"))
        again = sandbox.run_code("6 * 7")  # told once
        assert (again.value, again.state) == (42, "kept")
        sandbox.files.write("end", "")


@pytest.mark.requirement("ISO-9")
def test_the_channel_is_reached_by_code() -> None:
    """The control of all the others: a frame that code writes is taken for the runner's."""
    with cellwall.Sandbox.create() as sandbox:
        forged = 'say(frame({"done": 1, "exit": 9, "value": "forged"}))'
        ran = sandbox.run_code(f"{_FRAMES}{forged}\ntime.sleep(0.5)")
    assert (ran.exit_code, ran.value) == (9, "forged")


@pytest.mark.requirement("ISO-9", "ERR-1")
@pytest.mark.parametrize(
    "word",
    ["true", "false", "-1", "256", "1e3", "1.5", "NaN", '"0"', "null", "[]", "{}", "9" * 400],
)
def test_exit_code_that_is_none_is_an_outcome_and_not_a_bare_exception(word: str) -> None:
    # Once (`true`, `false`): a bool is an int to isinstance, and `int("True")` raises in `conclude`.
    text = f'{{"done": 1, "exit": {word}}}'
    with cellwall.Sandbox.create() as sandbox:
        ran = sandbox.run_code(
            f"{_FRAMES}text = {text!r}.encode()\n"
            'say(struct.pack(">II", len(text), 0) + text)\ntime.sleep(0.2)\n'
        )
        assert ran.status.value == "failed"
        assert ran.exit_code in range(1, 256)
        assert sandbox.run_code("6 * 7").value == 42


_PATCH = """
import builtins, gc, json, os, random, sys
frame, found = sys._getframe(), {}
while frame is not None:
    me = frame.f_locals.get("self")
    if type(me).__name__ == "CodeSession": found = {"session": me, "channel": me._channel}
    frame = frame.f_back
kind = type(found["session"])
kind._report_value = lambda self, value, report: report.update(value="patched", text="patched")
sys.modules["_cellwall_show"] = sys.modules["json.decoder"] = None
builtins.MARK = json.MARK = os.MARK = random.MARK = "marked"
json.dumps.__globals__["MARK"] = json.dumps.__kwdefaults__["indent"] = 7
random.random = lambda: 4
sys.path.insert(0, "/tmp/marked")
sys.settrace(lambda *_: None)
os.environ["MARK"] = "marked"
"""
_LOOK = """
import builtins, json, os, random, sys
[hasattr(builtins, "MARK"), hasattr(json, "MARK"), hasattr(os, "MARK"), random.random() == 4,
 "/tmp/marked" in sys.path, "MARK" in os.environ, json.dumps({}), sys.gettrace() is not None]
"""
_CLEAN = [False, False, False, False, False, False, "{}", False]


@pytest.mark.requirement("ISO-7")
def test_code_that_rewrites_the_runner_harms_only_itself() -> None:
    """The runner and what is preloaded lie in memory that every cell of a template starts with."""
    with cellwall.Sandbox.create() as older, cellwall.Sandbox.create() as sandbox:
        older.run_code("pass")
        assert sandbox.run_code(_PATCH).status.value == "ok"
        assert sandbox.run_code("1").value == "patched", "the control: it did rewrite its own"
        assert sandbox.run_code("import os; print(os.environ['MARK'])").stdout == "marked\n"
        with cellwall.Sandbox.create() as younger:
            seen = [older.run_code(_LOOK), younger.run_code(_LOOK), cellwall.run_code(_LOOK)]
        seen.append(cellwall.run_code(_LOOK, limits={"wall_s": 29}))  # of no cell that waited
    assert [ran.value for ran in seen] == [_CLEAN] * 4
    assert cellwall.run_code("1").value == 1


@pytest.mark.requirement("ISO-7")
def test_a_new_interpreter_of_the_same_sandbox_starts_clean() -> None:
    with cellwall.Sandbox.create() as sandbox:
        assert sandbox.run_code(_PATCH).status.value == "ok"
        sandbox.run_code("import os; os._exit(0)")
        assert sandbox.run_code(_LOOK).value == _CLEAN


@pytest.mark.requirement("ISO-5")
def test_init_of_a_live_cell_takes_no_signal_and_tells_the_truth() -> None:
    with cellwall.Sandbox.create() as sandbox:
        sent = sandbox.run_code(
            "import os, signal, subprocess, time\n"
            "child = subprocess.Popen(['sleep', '60'])\n"
            "child.send_signal(signal.SIGSTOP)\n"
            "stopped = os.waitpid(child.pid, os.WUNTRACED)[1]\n"  # the control
            "for number in range(1, 65):\n"
            "    try: os.kill(1, number)\n"
            "    except OSError: pass\n"
            "child.kill(); child.wait()\n"
            # Init is awake for a moment after each signal that it looks at; a stopped one stays so.
            "for _ in range(500):\n"
            "    state = open('/proc/1/stat').read().rsplit(')')[1].split()[0]\n"
            "    if state == 'S': break\n"
            "    time.sleep(0.01)\n"
            "[os.WIFSTOPPED(stopped), state]\n"
        )
        assert sent.value == [True, "S"]
        # Once (warm): init is a copy of a Python and has its handler for SIGINT: it takes the
        # signal, and every interpreter that it forks from then on begins with a KeyboardInterrupt.
        ran = sandbox.commands.run("kill -STOP 1; kill -9 -1; exit 7")
        assert (ran.status.value, ran.exit_code) == ("failed", 7)
        # It has killed the interpreter as well; the call that finds it dying may say so.
        after = [sandbox.run_code("6 * 7") for _ in range(2)]
        assert after[0].value == 42 or after[0].state == "lost"
        assert after[1].value == 42


_STOPPER = """
import os, signal, time
mine, end = os.getpid(), time.monotonic() + 20
print("up", flush=True)
while time.monotonic() < end:
    last = int(open("/proc/loadavg").read().split()[4])
    for pid in range(last, last + 8):
        try:
            if pid not in (1, mine): os.kill(pid, signal.SIGSTOP)
        except OSError: pass
"""


@pytest.mark.requirement("LIM-2", "ISO-5")
@pytest.mark.slow
def test_a_process_that_stops_every_newcomer_cannot_hold_init_up() -> None:
    """Init waits in vfork for its child's exec: a child that is stopped before it never comes back."""
    # Once: init hangs, no limit of the cell is enforced, and the call ends after 41 s (CW-LEFTOVER).
    with cellwall.Sandbox.create(timeout=1, limits={"cpus": 2, "cpu_s": 60}) as sandbox:
        assert sandbox.commands.run("echo works", timeout=60).stdout == "works\n"  # the control
        stopper = sandbox.commands.run(["python3", "-c", _STOPPER], background=True)
        said, deadline = "", time.monotonic() + 60
        while "up" not in said and time.monotonic() < deadline:
            said += stopper.read().stdout
            time.sleep(0.01)
        ran = [sandbox.commands.run("true")]
        while len(ran) < 5 and ran[-1].status.value != "error":
            ran.append(sandbox.commands.run("true"))
    # An init that hangs would end each call as an error, long after its wall limit.
    assert {each.status.value for each in ran} <= {"ok", "limit"}


@pytest.mark.requirement("LIM-2")
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_room_for_processes_is_an_answer_and_not_a_hang(most: int) -> None:
    with cellwall.Sandbox.create(limits={"processes": most}, timeout=60) as sandbox:
        # Several rounds: a refused command ends the interpreter too, and the next code must not be
        # sent to it while it ends, nor find no room beside it.
        for _ in range(8):
            first = sandbox.run_code("6 * 7")
            second = sandbox.commands.run("true")
            assert (first.status.value, first.value) == ("ok", 42)
            assert second.status.value in {"ok", "limit", "error"}
        assert sandbox.run_code("6 * 7").value == 42


@pytest.mark.requirement("LIM-2")
def test_a_fork_bomb_ends_its_own_cell_while_others_start() -> None:
    """Pids run out in one cell at the moment at which others are made."""
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with ThreadPoolExecutor(3) as threads:
        bombs = [
            threads.submit(cellwall.run_code, bomb, timeout=60, limits={"processes": 40})
            for _ in range(3)
        ]
        while not all(each.done() for each in bombs):
            done = cellwall.run_code("6 * 7", timeout=60)
            assert (done.status.value, done.value) == ("ok", 42), done.error
    assert {each.result().limit for each in bombs} == {"processes"}


# --- between the calls


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.requirement("FS-4")
def test_what_a_process_plants_between_the_calls_is_moved_out(tmp_path: Path) -> None:
    # Once: a workspace is settled after each call only; what comes later stays, and is not told.
    plant = "mkdir -p new/.git/hooks; echo e > new/.git/hooks/pre-commit; echo e > ordinary"
    with cellwall.Sandbox.create(workspace=f"{tmp_path}:rw") as sandbox:
        sandbox.commands.run(f"(until [ -e go ]; do :; done; {plant}; : > done) >/dev/null 2>&1 &")
        (tmp_path / "go").touch()
        _until((tmp_path / "done").exists)
    assert (tmp_path / "ordinary").exists()  # the control: it could write
    assert not (tmp_path / "new/.git/hooks").exists()
    assert not (tmp_path / ".git").exists()


@pytest.mark.requirement("LIM-1", "LIM-2")
@pytest.mark.parametrize("mode", ["session", "rw", "cow"])
def test_a_process_in_the_background_cannot_fill_the_disk(mode: str, tmp_path: Path) -> None:
    # Once: nobody looks between the calls, and the next one counts only what itself has added.
    workspace = None if mode == "session" else f"{tmp_path}:{mode}"
    limits = {"disk_bytes": 8 * MIB}
    with cellwall.Sandbox.create(workspace=workspace, limits=limits, timeout=60) as sandbox:
        control = sandbox.commands.run("head -c 64M /dev/zero > a")
        assert (control.status.value, control.limit) == ("limit", "disk")
        sandbox.commands.run("rm -f a")
        filler = sandbox.commands.run("head -c 64M /dev/zero > a; sleep 60", background=True)
        told = filler.wait(timeout=3)
        seen = sandbox.commands.run("stat -c %s a")
        size = int(seen.stdout or 0)
    assert size < 32 * MIB or "disk" in (told.limit, seen.limit)


@pytest.mark.requirement("LIM-1")
def test_input_that_nobody_reads_does_not_hold_the_caller_for_ever() -> None:
    # Once: writing to a program in the background has no deadline; its thread is held as well.
    with cellwall.Sandbox.create(timeout=1) as sandbox:
        silent = sandbox.commands.run(["sleep", "60"], background=True)
        silent.send_stdin("x")  # the control: there is room for some
        ended = threading.Event()

        def write() -> None:
            with suppress(cellwall.CellwallError):
                silent.send_stdin(b"x" * MIB)
            ended.set()

        writer = threading.Thread(target=write)
        writer.start()
        in_time = ended.wait(30)  # the program sleeps for longer
    writer.join(20)
    assert in_time


@pytest.mark.requirement("LIM-2")
def test_calls_of_a_tool_by_forged_frames_are_bounded() -> None:
    # Once: only those waiting to be taken up are; thousands run at once, each an action with a record.
    now = most = 0

    async def slow() -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await anyio.sleep(0.5)
        finally:
            now -= 1
        return 1

    async def run() -> cellwall.Execution:
        code = f'{_FRAMES}say(frame({{"call": 1, "name": "slow", "args": [], "kwargs": {{}}}}) * 3_000)\n'
        async with cellwall.AsyncSandbox.create(tools={"slow": slow}, timeout=60) as sandbox:
            control = await sandbox.run_code("tools.slow()")
            assert control.value == 1
            return await sandbox.run_code(textwrap.dedent(code) + "time.sleep(0.5)")

    anyio.run(run)
    assert most <= 256


@pytest.mark.requirement("ISO-8")
def test_nothing_of_a_live_sandbox_outlives_it() -> None:
    mark = f"cellwall-live-{secrets.token_hex(8)}"
    daemon = f"import os, signal\nif os.fork() == 0: os.setsid(); signal.pause()  # {mark}"
    with cellwall.Sandbox.create() as sandbox:
        sandbox.commands.run(["python3", "-c", daemon], background=True).wait(timeout=60)
        sandbox.run_code(
            f"import subprocess; subprocess.Popen(['sleep', '60'], env={{'MARK': {mark!r}}})"
        )
        _until(lambda: len(_marked(mark)) == 2)  # the control; a new program shows its words late
    _until(lambda: _marked(mark) == [])


def _marked(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit():
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if mark.encode() in text:
                    found.append(entry.name)
    return found


@pytest.mark.requirement("LIM-6")
def test_a_directory_in_quarantine_is_no_room_beyond_the_limit(tmp_path: Path) -> None:
    write = (
        "fd = os.open('AMOUNT', os.O_CREAT | os.O_WRONLY, dir_fd=moved)\n"
        "for _ in range(AMOUNT): os.write(fd, bytes(1 << 20))"
    )
    with cellwall.Sandbox.create(
        workspace=f"{tmp_path}:rw", limits={"disk_bytes": 16 * MIB}, timeout=60
    ) as sandbox:
        plant = "import os, time\nos.makedirs('sub/.vscode/x')\n"
        sandbox.run_code(plant + "moved = os.open('sub/.vscode', os.O_RDONLY)")
        assert not (tmp_path / "sub/.vscode").exists()
        assert sandbox.run_code(write.replace("AMOUNT", "4")).status == "ok"
        over = sandbox.run_code(write.replace("AMOUNT", "48") + "\ntime.sleep(60)")
        assert (over.status, over.limit) == ("limit", "disk")


@pytest.mark.requirement("LIM-6")
def test_the_search_for_unlinked_files_leaves_out_init_alone(path, monkeypatch):
    """And no process of the code, whichever it is: the interpreter, a child, a daemon."""
    seen: list[tuple[set[int], set[int]]] = []
    real = live_runs._LiveRun.code_pids

    def noted(self: live_runs._LiveRun) -> list[int]:
        searched = real(self)
        seen.append((set(searched), set(self.pids())))
        return searched

    monkeypatch.setattr(live_runs._LiveRun, "code_pids", noted)
    with cellwall.Sandbox.create(limits={"disk_bytes": 8 * MIB}, timeout=60) as sandbox:
        started = "import os, subprocess\nfor _ in range(2): subprocess.Popen(['sleep', '60'])"
        assert sandbox.run_code(started).status == "ok"
        searched, everything = seen[-1]
        left_out = {_pid_inside(pid) for pid in everything - searched}
        assert left_out == ({1} if path == "warm" else set())
        assert {_pid_inside(pid) for pid in searched} >= {2, 3, 4}
        hidden = (
            "import os\nfd = os.open('a', os.O_RDWR | os.O_CREAT)\nos.unlink('a')\n"
            f"for _ in range(12): os.write(fd, bytes({MIB}))"
        )
        assert sandbox.run_code(hidden).limit == "disk"


def _pid_inside(pid: int) -> int:
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("NSpid:")
    )
    return int(line.split()[-1])


@pytest.mark.requirement("LIM-1", "LIM-6")
def test_a_short_run_over_the_disk_limit_ends_the_processes_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: short commands without pause. No run lasts until its monitor looks, and nobody looks
    between them, so a process in the background could fill the disk."""
    monkeypatch.setattr(run_monitor, "_WATCH_EVERY_S", 10.0)
    monkeypatch.setattr(sessions, "exceeded_limit", lambda *_: None)
    with cellwall.Sandbox.create(
        workspace=f"{tmp_path}:rw", limits={"disk_bytes": 8 * MIB}, timeout=60
    ) as sandbox:
        writer = sandbox.commands.run("sleep 60", background=True)
        below = sandbox.commands.run("head -c 4M /dev/zero > a")
        assert (below.status.value, below.limit) == ("ok", None)
        assert writer.info().is_running  # the control
        over = sandbox.commands.run("head -c 16M /dev/zero > a; sleep 0.02")
        assert (over.status.value, over.limit) == ("limit", "disk")
        assert writer.wait(timeout=20).exit_code == 137
