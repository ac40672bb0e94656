"""The table of processes that an emergency stop reads again and again (OBS-3)."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.sandbox.linux import process_table
from cellwall.sandbox.linux.cell_ending import highest_priority
from cellwall.sandbox.linux.process_table import ProcessTable
from conftest import need

pytestmark = pytest.mark.requirement("OBS-3")
FOREVER = ("sleep", "600")


@pytest.mark.parametrize("has_room", [True, False])
def test_a_process_is_known_by_its_start_until_it_ends(has_room: bool) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    table = ProcessTable()
    if not has_room:
        table._max_files = 0
    with subprocess.Popen(FOREVER) as first, subprocess.Popen(FOREVER) as second:
        found = table.read()
        known = found[first.pid]
        assert (known.parent, known.name) == (os.getpid(), "sleep")
        assert table.is_same(known)
        assert not table.is_same(replace(known, started=known.started + 1))
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)  # a zombie counts as ended
        assert first.pid not in table.read()
        assert not table.is_same(known)
        first.wait()
        again = table.read()
        assert (first.pid in again, again[second.pid]) == (False, found[second.pid])
        second.kill()
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
    with subprocess.Popen(FOREVER) as program:
        try:
            place = f"/proc/{program.pid}/stat"
            for _ in range(2):
                known = table.read()[program.pid]
            program.send_signal(signal.SIGKILL)
            program.wait()
            assert program.pid not in table.read()
            assert not table.is_same(replace(known, pid=os.getpid()))  # the control: another one
            assert opened.count(place) == 1
        finally:
            table.close()


def test_the_priority_of_the_session_is_raised_for_the_stop_alone() -> None:
    place = Path("/proc/self/autogroup")
    need(os.geteuid() == 0 and place.exists(), "root and CONFIG_SCHED_AUTOGROUP")
    before = place.read_text(), os.getpriority(os.PRIO_PROCESS, 0)
    with highest_priority():
        assert place.read_text().split()[-1] == "-20"
        assert os.getpriority(os.PRIO_PROCESS, 0) == -20
    assert (place.read_text(), os.getpriority(os.PRIO_PROCESS, 0)) == before
