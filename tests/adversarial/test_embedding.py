"""Programs that embed Cellwall and fork, cancel, end and run out of things at bad moments (ISO-8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import cellwall
from cellwall import AsyncSandbox, Sandbox
from interfaces import prepared_program

pytestmark = pytest.mark.requirement("ISO-8")


def in_child(code: str, *, is_prepared: bool = True) -> str:
    """A program of its own: forks and limits are not for the test run.

    One that is not prepared ends as interpreters do, and frees all that it has.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if is_prepared:
        process = prepared_program.Popen([], code=code, text=True, **pipes)
    else:
        process = subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)
    with process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    return out


def running(mark: str) -> bool:
    """Whether a process has the mark among its arguments."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                return True
    return False


def test_kill_ends_a_sandbox_that_many_threads_use() -> None:
    for round_number in range(2):
        mark = f"88{os.getpid()}{round_number}"
        sandbox = Sandbox.create(timeout=60)
        sandbox.commands.run(f"sleep {mark}", background=True)

        def use(sandbox: Sandbox = sandbox) -> None:
            try:
                while True:
                    sandbox.commands.run("head -c 300000 /dev/zero; sleep 0.01")
                    sandbox.files.list()
            except cellwall.CellwallError:
                return

        threads = [threading.Thread(target=use) for _ in range(6)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while not running(f"sleep {mark}") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert running(f"sleep {mark}")  # the control
        sandbox.kill()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        deadline = time.monotonic() + 20
        while running(f"sleep {mark}") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running(f"sleep {mark}")


def test_a_forked_child_that_ends_leaves_its_parents_sandbox_alone() -> None:
    told = in_child(
        "import os, sys, cellwall\n"
        "def main():\n"
        "    with cellwall.Sandbox.create(timeout=60) as s:\n"
        "        s.files.write('a.txt', 'hello'); s.run_code('x = 42')\n"
        "        pid = os.fork()\n"
        "        if pid == 0: sys.exit(0)\n"
        "        os.waitpid(pid, 0)\n"
        "        print(s.run_code('x').value, s.files.read('a.txt'))\n"
        "main()\n",
        is_prepared=False,
    )
    assert told == "42 hello\n"


def test_a_forked_child_that_lives_on_keeps_no_cell_alive() -> None:
    told = in_child(
        "import os, time, cellwall\n"
        "s = cellwall.Sandbox.create(timeout=60); s.run_code('x = 1')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    time.sleep(50); os._exit(0)\n"
        "s.kill(); print(os.waitpid(pid, os.WNOHANG) == (0, 0))\n"  # it did not wait for the child
        "os.kill(pid, 9)\n"
    )
    assert told == "True\n"


def test_background_programs_of_a_forked_child_are_its_own() -> None:
    told = in_child(
        "import os, sys, time, cellwall\n"
        "s = cellwall.Sandbox.create(timeout=60)\n"
        "s.commands.run('echo a', background=True).wait(timeout=60)\n"
        "sys.stdout.flush()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    mine = cellwall.Sandbox.create(timeout=60)\n"
        "    done = mine.commands.run('echo b', background=True).wait(timeout=60)\n"
        "    print(repr(done.stdout), flush=True); mine.kill(); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "before = time.process_time(); time.sleep(0.5)\n"
        "print(time.process_time() - before < 0.25)\n"
    )
    assert told == "'b\\n'\nTrue\n"


@pytest.mark.only_on("warm", reason="cells are sent as descriptors only there")
def test_a_cell_that_lost_descriptors_on_the_way_is_not_used() -> None:
    told = in_child(
        "import os, resource, cellwall\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "for _ in range(3): cellwall.run_command('true')\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "kinds = set()\n"
        "def run(_):\n"
        "    try: return cellwall.run_command('sleep 0.02').status.value\n"
        "    except cellwall.CellwallError as error: return error.code\n"
        "    except OSError: return 'OSError'\n"
        "    except Exception as error: return type(error).__name__\n"
        "for room in range(8, 60, 4):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) + room, hard))\n"
        "    with ThreadPoolExecutor(6) as threads: kinds |= set(threads.map(run, range(12)))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "print(sorted(kinds & {'ValueError', 'KeyError', 'IndexError'}))\n"
        "print([cellwall.run_command('echo x').stdout for _ in range(6)] == ['x\\n'] * 6)\n"
    )
    assert told == "[]\nTrue\n"


_SWALLOW = """
import os, signal, json, time
signal.signal(2, lambda *a: os._exit(3))
for i in range(3):
    d = json.dumps({"call": str(i), "name": "t", "args": ["x"], "kwargs": {}}).encode()
    os.write(3, len(d).to_bytes(4, "big") + bytes(4) + d)
time.sleep(30)
"""


def test_code_cannot_swallow_the_cancellation_of_its_caller() -> None:
    def answer(x: str) -> str:
        return x * 250_000  # more than the pipe takes, less than ends the run

    async def main() -> None:
        async with await AsyncSandbox.create(timeout=60, tools={"t": answer}) as sandbox:
            task = asyncio.create_task(sandbox.run_code(_SWALLOW))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sandbox.run_code("6 * 7")).value == 42

    asyncio.run(main())


def test_a_tool_that_is_never_answered_stops_no_other() -> None:
    def slow(x: int) -> int:
        time.sleep(0.3)
        return x

    with Sandbox.create(timeout=60, tools={"slow": slow}) as sandbox:
        left = (
            "import threading\nthreading.Thread(target=lambda: tools.slow(1), daemon=True).start()"
        )
        sandbox.run_code(left)
        assert sandbox.run_code("tools.slow(2)").value == 2


_SLOW_TO_IMPORT = """
import sys, threading, time
class Slow:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "json.scanner":
            time.sleep(0.5)
for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
    del sys.modules[name]
sys.meta_path.insert(0, Slow)
threading.Thread(target=lambda: tools.same(1), daemon=True).start()
"""


def test_a_module_that_a_thread_is_still_importing_is_waited_for() -> None:
    with Sandbox.create(timeout=60, tools={"same": lambda x: x}) as sandbox:
        sandbox.run_code(_SLOW_TO_IMPORT)
        assert sandbox.run_code("tools.same(2)").value == 2


@pytest.mark.parametrize("runs", [40, pytest.param(100, marks=pytest.mark.long)])
def test_a_storm_of_interrupts_loses_no_state_between_the_runs(runs: int) -> None:
    with Sandbox.create(timeout=60) as sandbox:
        sandbox.run_code("kept = 42")
        stop = threading.Event()

        def storm() -> None:
            while not stop.is_set():
                sandbox.interrupt()
                time.sleep(0.002)

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            states = {sandbox.run_code("x = sum(range(2000))").state for _ in range(runs)}
        finally:
            stop.set()
            thread.join()
        assert states == {"kept"}
        assert sandbox.run_code("kept").value == 42


def test_the_hosts_null_device_is_not_what_code_reads_from() -> None:
    before = os.stat("/dev/null").st_mtime_ns
    touch = "import os\nos.utime(0)\nos.read(0, 1)"
    with Sandbox.create() as sandbox:
        assert sandbox.run_code(touch).value in (None, {"base64": ""})
        sandbox.commands.run(["python3", "-c", touch])
    cellwall.run_code(touch)
    assert os.stat("/dev/null").st_mtime_ns == before
