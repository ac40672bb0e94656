"""The table of processes that an emergency stop reads again and again (OBS-3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.sandbox.linux import process_table
from cellwall.sandbox.linux.process_table import ProcessTable
from conftest import need

pytestmark = pytest.mark.requirement("OBS-3")


@contextmanager
def running() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("has_room", [True, False])
def test_a_process_is_known_by_its_start_until_it_ends(has_room: bool) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    table = ProcessTable()
    if not has_room:
        table._max_files = 0
    with running() as first, running() as second:
        found = table.read()
        known, second_started = found[first.pid], found[second.pid].started
        assert (known.parent, known.name) == (os.getpid(), "sleep")
        assert table.is_same(known)
        assert not table.is_same(replace(known, started=known.started + 1))
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # a zombie counts as ended
        assert first.pid not in table.read()
        assert not table.is_same(known)
        first.wait()
        again = table.read()
        assert (first.pid in again, again[second.pid].started) == (False, second_started)
    table.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_second_read_looks_up_no_process_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup of one that ends would make the reader wait for it."""
    opened: list[str] = []
    real = os.open

    def watched(path: str, flags: int, *rest: int) -> int:
        opened.append(path)
        return real(path, flags, *rest)

    monkeypatch.setattr(process_table.os, "open", watched)
    table = ProcessTable()
    with closing(table), running() as program:
        place = f"/proc/{program.pid}/stat"
        for _ in range(2):
            known = table.read()[program.pid]
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert program.pid not in table.read()
        assert not table.is_same(replace(known, pid=os.getpid()))  # the control: another one
        assert opened.count(place) == 1


# In a new session: one that is as old as the boot has no group of its own (sched(7), autogroup).
PRIORITIES = """
import os, pathlib
from cellwall.sandbox.linux.cell_ending import highest_priority
group = pathlib.Path("/proc/self/autogroup")
def show():
    words = group.read_text().split() if group.exists() else []
    print(words[-1] if words else "none", os.getpriority(os.PRIO_PROCESS, 0))
os.nice(1)
show()
with highest_priority(): show()
show()
"""


def test_the_priority_of_the_session_is_raised_for_the_stop_alone() -> None:
    need(os.geteuid() == 0, "root")
    program = [sys.executable, "-c", PRIORITIES]
    done = subprocess.run(program, start_new_session=True, check=True, capture_output=True)
    shown = done.stdout.decode().splitlines()
    without_groups = ["none 1", "none -20", "none 1"]
    assert shown in (["0 1", "-20 -20", "0 1"], without_groups)
    assert Path("/proc/self/autogroup").exists() or shown == without_groups


# Two stops of one session; the first one ends while the second one is under way.
TWO_STOPS = """
first, second = highest_priority(), highest_priority()
first.__enter__(); second.__enter__(); show()
first.__exit__(None, None, None)
second.__exit__(None, None, None)
"""
# The child is killed while it stops; its parent is the session's leader, and shows what is left.
KILLED_STOP = """
import signal, time
child = os.fork()
if child == 0:
    with highest_priority():
        show(); sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
deadline = time.monotonic() + 30
while group.exists() and group.read_text().split()[-1] == "-20" and time.monotonic() < deadline:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("stops", [TWO_STOPS, KILLED_STOP], ids=["two at once", "a killed one"])
def test_no_stop_leaves_the_session_with_the_highest_priority(stops: str) -> None:
    """Else the shell of the caller, and all it starts later, would take the processors of others."""
    need(os.geteuid() == 0, "root")
    need(Path("/proc/self/autogroup").exists(), "autogroup")
    head, _, _ = PRIORITIES.partition("show()\nwith")
    program = [sys.executable, "-c", f"import sys\n{head}{stops}show()"]
    done = subprocess.run(program, start_new_session=True, check=True, capture_output=True)
    raised, after = done.stdout.decode().splitlines()
    assert raised == "-20 -20"  # the control
    assert after.split()[0] == "0"
