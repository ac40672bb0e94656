"""Code inside that does not want to end, and owners of cells that do not answer (OBS-3).

Each program proves first that it runs: a stop that finds nothing would pass every test here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import cellwall
from cellwall.admin.emergency_stop import EmergencyStop
from cellwall.audit.files import locked
from cellwall.core.errors import Busy, CellwallError
from cellwall.core.types import Json, Principal
from cellwall.sandbox.linux.cell_search import FoundCell, find_cells
from cellwall.sandbox.linux.prepared_cell import PreparedCell
from cellwall.sandbox.run_ledger import cell_tag
from conftest import new_home, ordinary_user
from interfaces import prepared_program

pytestmark = [pytest.mark.requirement("OBS-3"), pytest.mark.slow]
DEADLINE_S = 60.0
WHO = Principal("tester", "cli")

# Signals that can be ignored are; some children leave their parent, session and process group.
STUBBORN = """
import ctypes, os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
ctypes.CDLL(None).prctl(4, 0)  # not dumpable
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0: os._exit(0)
        break
while True:
    try:
        if os.fork() == 0: time.sleep(0.001); os._exit(0)
    except OSError: pass
"""
# Once suspended, a process is continued by every other one that still runs.
WAKERS = """
import os, signal, time
for _ in range(6): os.fork()
while True:
    try: os.kill(-1, signal.SIGCONT)
    except OSError: pass
"""
# The kernel continues it: by a POSIX timer with SIGCONT. `woke` proves that this works.
RESTLESS = """
import ctypes, os, signal, struct, time
signal.signal(signal.SIGCONT, lambda *_: None)
libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
event = struct.pack("Pii48x", 0, signal.SIGCONT, 0)
assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
assert libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 10**8, 0, 10**8), None) == 0
os.kill(os.getpid(), signal.SIGSTOP)
open("woke", "w").close()
while True: time.sleep(0.01)
"""
# In a process of its own, as an agent's SDK: prints a line when the program inside runs.
OWNER = """
import sys, time, cellwall
with cellwall.Sandbox.create(timeout=600) as sandbox:
    sandbox.commands.run("touch begun; exec sleep 600", background=True)
    while not sandbox.files.exists("begun"): time.sleep(0.01)
    print("runs", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def switch(state_home: str) -> Iterator[EmergencyStop]:
    found = EmergencyStop.configured(WHO)
    yield found
    found.thaw()
    found.stop(reason="end of test")
    found.lift(reason="end of test")


def cells(home: str) -> tuple[FoundCell, ...]:
    return find_cells(f"{home}/runs", cell_tag(f"{home}/runs"))


def processes(home: str) -> int:
    return sum(len(cell.processes) for cell in cells(home))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def names(home: str) -> list[str]:
    return [each.name for cell in cells(home) for each in cell.processes]


@contextmanager
def owner(home: str, path: str, **changes: object) -> Iterator[prepared_program.Popen]:
    """A process with a live sandbox in which a program runs."""
    environment = {**os.environ, "CELLWALL_HOME": home, "CELLWALL_PATH": path}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    options = {"env": environment, **pipes, **changes}
    with prepared_program.Popen([], code=OWNER, **options) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"runs\n"
            yield process
        finally:
            process.kill()


def test_programs_that_fork_and_ignore_signals_end(state_home: str, switch: EmergencyStop) -> None:
    with cellwall.Sandbox.create(timeout=600) as sandbox:
        script = textwrap.dedent(STUBBORN)
        sandbox.files.write("stubborn.py", script)
        sandbox.commands.run("python3 stubborn.py", background=True)
        before = processes(state_home)
        until(lambda: processes(state_home) > before + 2)
        report = switch.stop(reason="test")
        assert report.is_complete
        assert report.cells
        assert cells(state_home) == ()
        refused = sandbox.commands.run("true")
        assert (refused.status, refused.outcome.error.code) == ("denied", "CW-STOPPED")
        assert switch.lift(reason="test")
        assert sandbox.commands.run("echo back").stdout == "back\n"  # in a new cell, same files
        assert sandbox.files.read("stubborn.py") == script


@pytest.mark.only_on("cold", reason="signals go to processes, whichever cell they are in")
def test_all_are_suspended_although_they_continue_each_other(
    state_home: str, switch: EmergencyStop
) -> None:
    with cellwall.Sandbox.create(timeout=600) as sandbox:
        sandbox.files.write("wakers.py", WAKERS)
        sandbox.commands.run("python3 wakers.py", background=True)
        until(lambda: processes(state_home) > 20)
        report = switch.stop(reason="test", freeze=True)
        assert report.is_complete
        frozen = {
            each.pid: cpu_ticks(each.pid) for cell in cells(state_home) for each in cell.processes
        }
        assert len(frozen) > 20
        status = switch.status()
        assert (status.is_stopped, status.frozen) == (True, status.cells)
        assert {pid: cpu_ticks(pid) for pid in frozen} == frozen
        assert switch.thaw() == report.cells
        until(lambda: any(cpu_ticks(pid) > frozen[pid] for pid in frozen))  # the control
        assert switch.stop(reason="test").is_complete
        assert cells(state_home) == ()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.only_on("cold", reason="signals go to processes, whichever cell they are in")
def test_no_program_has_itself_continued_after_it_was_suspended(
    state_home: str, switch: EmergencyStop
) -> None:
    """On a host without cgroup v2 it cannot be suspended, so it ends; its neighbour stays."""
    with cellwall.Sandbox.create(timeout=600) as sandbox:
        sandbox.files.write("restless.py", RESTLESS)
        sandbox.commands.run("python3 restless.py", background=True)
        sandbox.commands.run("sleep 600", background=True)
        until(lambda: sandbox.files.exists("woke"))  # the control
        until(lambda: {"python3", "sleep"} <= set(names(state_home)))
        assert switch.stop(reason="test", freeze=True).is_complete
        (cell,) = cells(state_home)
        assert cell.unified_groups or "python3" not in names(state_home)
        assert "sleep" in names(state_home)
        status = switch.status()
        assert (status.is_stopped, status.frozen) == (True, status.cells)


@pytest.mark.only_on("cold", reason="signals go to processes, whichever cell they are in")
def test_a_cell_is_continued_as_a_whole_although_one_process_got_away(
    state_home: str, switch: EmergencyStop
) -> None:
    with cellwall.Sandbox.create(timeout=600) as sandbox:
        sandbox.commands.run("sleep 600", background=True)
        until(lambda: "sleep" in names(state_home))
        report = switch.stop(reason="test", freeze=True)
        (cell,) = cells(state_home)
        if cell.unified_groups:
            pytest.skip("needs a host without cgroup v2: there, no process gets away")
        (sleep,) = (each for each in cell.processes if each.name == "sleep")
        os.kill(sleep.pid, signal.SIGCONT)
        with pytest.raises(CellwallError) as refused:
            switch.lift(reason="too early")
        assert refused.value.code == "CW-STOP-FROZEN"
        assert switch.thaw() == report.cells
        (cell,) = cells(state_home)
        assert cell.shim is not None
        assert not any(each.is_stopped for each in (cell.shim, *cell.processes))


@pytest.mark.only_on("cold", reason="no cell is needed")
def test_a_lift_does_not_end_a_stop_that_came_after_it_began(
    state_home: str, switch: EmergencyStop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert switch.stop(reason="first").is_complete
    record = EmergencyStop._write

    def stop_meanwhile(self: EmergencyStop, body: dict[str, Json]) -> None:
        record(self, body)
        if body["change"] == "lift":
            monkeypatch.setattr(EmergencyStop, "_write", record)
            assert EmergencyStop.configured(WHO).stop(reason="second").is_complete

    monkeypatch.setattr(EmergencyStop, "_write", stop_meanwhile)
    with pytest.raises(CellwallError) as refused:
        switch.lift(reason="the first one is over")
    assert refused.value.code == "CW-STOP-BUSY"
    assert switch.status().is_stopped
    assert switch.lift(reason="both are over")  # the control


@contextmanager
def unlocked_record(home: str) -> Iterator[None]:
    """No other process is in the midst of a record. One that is suspended there would keep the
    record locked, which a stop reports as a problem."""
    with ExitStack() as stack:
        for name in ("notary.lock", "lock"):
            file = stack.enter_context(Path(home, "audit", name).open("rb"))
            stack.enter_context(locked(file.fileno()))
        yield


@pytest.mark.parametrize("fate", ["suspended", "killed, and its cells suspended"])
def test_cells_end_whatever_became_of_their_owner(
    state_home: str, switch: EmergencyStop, path: str, fate: str
) -> None:
    with owner(state_home, path) as process:
        if fate == "suspended":
            with unlocked_record(state_home):
                process.send_signal(signal.SIGSTOP)
        else:  # the shim and init would end the cell after its owner
            for cell in cells(state_home):
                assert cell.shim is not None
                for each in (cell.shim, *cell.processes):
                    os.kill(each.pid, signal.SIGSTOP)
            process.kill()
            process.wait()
        assert processes(state_home) >= 3
        assert switch.stop(reason="test").is_complete
        assert cells(state_home) == ()


def test_frozen_cells_outlast_their_owner(
    state_home: str, switch: EmergencyStop, path: str
) -> None:
    """Its exit closes every cell; the evidence stays until a person decides."""
    with owner(state_home, path) as process:
        assert switch.stop(reason="test", freeze=True).is_complete
        before = processes(state_home)
        assert before >= 3
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0  # and does not wait for them
    assert processes(state_home) == before
    with pytest.raises(CellwallError) as refused:
        switch.lift(reason="too early")
    assert refused.value.code == "CW-STOP-FROZEN"
    assert switch.stop(reason="test").is_complete
    assert cells(state_home) == ()


@pytest.mark.only_on("cold", reason="an ordinary user has the same cells on both paths here")
def test_an_ordinary_user_stops_its_own_cells() -> None:
    user = ordinary_user().get("user")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home, config = Path(folder, "state"), Path(folder, "cellwall.toml")
        home.mkdir(mode=0o700)
        config.write_text("[sandbox]\ndangerously_without_cgroup = true\n")
        if user is not None:
            Path(folder).chmod(0o755)
            os.chown(home, user, user)
        environment = {
            "PATH": os.environ["PATH"],
            "CELLWALL_HOME": str(home),
            "CELLWALL_CONFIG": str(config),
            "CELLWALL_PATH": "cold",
        }
        with owner(str(home), "cold", env=environment, cwd="/", user=user):
            stop = ["stop", "--all", "--json"]
            with prepared_program.Popen(
                stop, env=environment, cwd="/", user=user, stdout=subprocess.PIPE
            ) as done:
                report = json.loads(done.communicate(timeout=DEADLINE_S)[0])
            assert done.returncode == 0
            assert (len(report["cells"]), report["left"]) == (1, [])
            assert report["processes"] >= 3


@pytest.mark.only_on("cold", reason="the warm path builds its template by the same steps")
def test_no_run_that_starts_during_a_stop_survives(
    state_home: str, switch: EmergencyStop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag is set between the registration of a cell and the release of its program."""
    begin, held, go_on = PreparedCell.start_init, threading.Event(), threading.Event()

    def late(cell: PreparedCell, plan: bytes) -> None:
        until(lambda: cells(state_home))  # a shim is found once it has executed its program
        held.set()
        assert go_on.wait(DEADLINE_S)
        begin(cell, plan)

    monkeypatch.setattr(PreparedCell, "start_init", late)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(cellwall.run_code, "open('/workspace/ran', 'w')")
        assert held.wait(DEADLINE_S)
        report = switch.stop(reason="test")
        go_on.set()
        outcome = running.result(DEADLINE_S).outcome
    assert len(report.cells) == 1
    assert (outcome.status, outcome.error.code) == ("denied", "CW-STOPPED")
    assert cells(state_home) == ()


def test_stops_at_once_and_a_lift_between_them_leave_nothing_alive(
    state_home: str, switch: EmergencyStop, path: str
) -> None:
    with owner(state_home, path):
        starts = threading.Barrier(4)

        def act(number: int) -> object:
            starts.wait(DEADLINE_S)
            if number == 3:
                with suppress(Busy):  # one of the stops came after the lift began
                    switch.lift(reason="too early")
                return True
            return switch.stop(reason=f"stop {number}").is_complete

        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(act, range(4)))
        assert found[:3] == [True, True, True]
        assert cells(state_home) == ()


def test_sandboxes_of_another_state_folder_go_on(
    state_home: str,
    switch: EmergencyStop,
    path: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = str(new_home(tmp_path_factory))
    with owner(state_home, path), owner(other, "cold"):
        assert switch.stop(reason="test").is_complete
        assert cells(state_home) == ()
        assert processes(other) >= 3


@pytest.mark.only_on("cold", reason="read before any path is chosen")
def test_a_broken_configuration_does_not_prevent_a_stop_but_its_end(
    state_home: str, tmp_path: Path
) -> None:
    config = tmp_path / "broken.toml"
    config.write_text("[sandbox\n")
    config.chmod(0o600)
    with owner(state_home, "cold"):
        switch = EmergencyStop.configured(WHO, config=str(config))
        report = switch.stop(reason="test")
        assert (report.left, cells(state_home)) == ((), ())
        assert len(report.problems) == 1  # the record
    with pytest.raises(CellwallError):
        switch.lift(reason="test")
    assert EmergencyStop.configured(WHO).lift(reason="test")
