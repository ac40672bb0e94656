"""Suspends every process of one live cell while its files are copied (FS-9).

By the freezer of cgroup v2 where the cell has such a group; else by SIGSTOP, which nothing inside
can block. There, a process that runs may continue one that is stopped, so the group is read again
until all are stopped.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cellwall.core.errors import SandboxFailed
from cellwall.sandbox.linux.live_cell import LiveCell
from cellwall.sandbox.linux.run_cgroup import RunCgroup, read_text, write_control

_WITHIN_S = 2.0
_PAUSE_S = 0.0005
_STOPPED = frozenset("TtZX")
"""States of a process that runs no code: stopped, or ended."""


@contextmanager
def frozen(cell: LiveCell) -> Iterator[None]:
    """No process of the cell runs during the block."""
    meter = cell.parts.meter
    group = meter.unified if isinstance(meter, RunCgroup) else None
    if group is not None:
        with _frozen_group(group):
            yield
        return
    stopped: dict[int, int] = {}
    try:
        _stop_all(cell, stopped)
        yield
    finally:
        # In the order of their numbers: parents, which are mostly older, see no stopped child.
        for _, process in sorted(stopped.items()):
            with suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGCONT)
            os.close(process)


@contextmanager
def _frozen_group(group: str) -> Iterator[None]:
    try:
        _freeze(group)
        yield
    finally:
        with suppress(OSError):
            write_control(f"{group}/cgroup.freeze", "0")


def _freeze(group: str) -> None:
    try:
        write_control(f"{group}/cgroup.freeze", "1")
    except OSError as error:
        raise _cannot_freeze() from error
    deadline = time.monotonic() + _WITHIN_S
    while "frozen 1" not in read_text(f"{group}/cgroup.events"):
        if time.monotonic() > deadline:
            raise _cannot_freeze()
        time.sleep(_PAUSE_S)


def _stop_all(cell: LiveCell, stopped: dict[int, int]) -> None:
    """`stopped` receives a pidfd of each process that got the signal, by its number."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        pids = cell.pids()
        # 0 stands for a process outside of our PID namespace, which cannot be signalled.
        if not pids or 0 in pids or time.monotonic() > deadline:
            raise _cannot_freeze()
        states = {pid: _state_of(pid) for pid in pids}
        running = [pid for pid, state in states.items() if state not in _STOPPED]
        # Waits in the kernel, for a child that was stopped on its way to exec, or for the disk: the
        # signal is there, so it runs no code of its own any more.
        if all(states[pid] == "D" and pid in stopped for pid in running):
            return
        for pid in running:
            _stop(cell, pid, stopped)
        time.sleep(_PAUSE_S)


def _stop(cell: LiveCell, pid: int, stopped: dict[int, int]) -> None:
    """Through a pidfd: the number may belong to a process of the host by now."""
    try:
        if pid not in stopped:
            process = os.pidfd_open(pid)
            if pid not in cell.pids():
                os.close(process)
                return
            stopped[pid] = process
        signal.pidfd_send_signal(stopped[pid], signal.SIGSTOP)
    except ProcessLookupError:
        if pid in stopped:
            os.close(stopped.pop(pid))


def _state_of(pid: int) -> str:
    """As proc(5) names it; "X" for a process that is gone."""
    words = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return words[0] if words else "X"


def _cannot_freeze() -> SandboxFailed:
    return SandboxFailed(
        "the processes of this sandbox cannot be suspended, so its files cannot be copied",
        hint="End them with the snapshot: end_processes=True.",
        code="CW-SNAPSHOT-NOT-FROZEN",
    )
