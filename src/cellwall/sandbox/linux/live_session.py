"""One live session: its cell, its background programs and what they have used."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from cellwall.core.limits import LimitName
from cellwall.core.sandbox_ports import WorkspaceLease
from cellwall.core.types import RunCommand
from cellwall.sandbox.linux.background import BackgroundProcess
from cellwall.sandbox.linux.kernel_memory import UnchargedMemory
from cellwall.sandbox.linux.live_cell import LiveCell
from cellwall.sandbox.linux.live_runs import CodeRun
from cellwall.sandbox.linux.proc_usage import UsageSampler
from cellwall.sandbox.linux.run_cgroup import RunCgroup
from cellwall.sandbox.linux.unlinked_files import find_unlinked_files

_TERMINAL_WITHIN_S = 20.0


@dataclass(slots=True)
class LiveSession:
    """What a session holds while it lives: its cell, its programs and its counters."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    cell: LiveCell | None = None
    processes: dict[int, BackgroundProcess] = field(default_factory=dict)
    running: CodeRun | None = None
    told_kept: set[str] = field(default_factory=set)
    """The interpreters whose variables are there, as far as callers were told."""
    workspace: WorkspaceLease | None = None
    next_disk_check: float = 0.0
    searched_cpu_s: float | None = None
    """The cell's processor time when its files were searched last."""
    uncharged: UnchargedMemory | None = None
    counted_cpu_s: float | None = None
    """The same when its kernel memory was counted last; None: not since data could come in."""
    has_egress: bool = False
    connections: int = 0
    """Open ones, of callers to ports inside."""
    monitors: int = 0
    """Monitored runs: each checks the limits that its end can show."""
    counting: threading.Lock = field(default_factory=threading.Lock)
    is_ended: bool = False
    unused_until: float | None = None
    """Then a cell that was opened early is closed; None: an action has used it."""
    ended_cpu_s: float = 0.0
    """Of the cells before this one."""
    seen_cpu_s: float = 0.0
    seen_at: float | None = None
    """The last reading of this cell's counter; None: the counter is gone."""

    def cpu_s(self) -> float:
        """The processor time of all cells so far."""
        with self.counting:
            return self._read_cpu()

    def put_cell(self, cell: LiveCell, *, unused_until: float | None = None) -> None:
        with self.counting:
            self.cell, self.seen_cpu_s, self.seen_at = cell, 0.0, time.monotonic()
            self.searched_cpu_s = self.counted_cpu_s = None
            self.unused_until = unused_until

    def use_cell(self, *, has_network: bool) -> LiveCell | None:
        """The cell for an action: from now on it is not closed for want of use. One that was
        opened early has no network, and is none for an action that has."""
        with self.counting:
            if has_network and self.unused_until is not None:
                return None
            self.unused_until = None
            return self.cell

    def take_cell(self) -> LiveCell | None:
        """The cell, to be closed; what it has used stays counted."""
        with self.counting:
            return self._take_cell()

    def take_unused_cell(self, *, now: float) -> LiveCell | None:
        """The same for a cell that was opened early and that no action has used by its time."""
        with self.counting:
            is_due = self.unused_until is not None and now >= self.unused_until
            return self._take_cell() if is_due else None

    def _take_cell(self) -> LiveCell | None:
        self.ended_cpu_s, self.seen_cpu_s = self._read_cpu(), 0.0
        cell, self.cell, self.unused_until = self.cell, None, None
        return cell

    def _read_cpu(self) -> float:
        if self.cell is not None and self.seen_at is not None:
            read, now = self.cell.cpu_s(), time.monotonic()
            if read is None:
                # Attack: code that breaks its cell takes the counter along. The time since the last
                # reading stands for its processor time.
                self.seen_cpu_s, self.seen_at = self.seen_cpu_s + now - self.seen_at, None
            else:
                self.seen_cpu_s, self.seen_at = max(read, self.seen_cpu_s), now
        return self.ended_cpu_s + self.seen_cpu_s

    @contextmanager
    def monitored(self) -> Iterator[None]:
        with self.counting:  # not `lock`, which is held while a cell is made
            self.monitors += 1
        try:
            yield
        finally:
            with self.counting:
                self.monitors -= 1


def exceeded_limit(session: LiveSession, cell: LiveCell) -> LimitName | None:
    """The limit that processes have exceeded which live on after the call that started them.

    Code without processor time has changed nothing: what was checked since then is not checked
    again. Else the checks of hundreds of idle cells would slow down the runs beside them.
    """
    now, workspace, limits = time.monotonic(), session.workspace, cell.parts.limits
    cpu_s = _measured_cpu_s(cell)  # before the checks: a change during one is seen by the next
    if _exceeds_uncharged_memory(session, cpu_s):
        return LimitName.MEMORY
    if session.monitors:
        return None
    # A cgroup enforces the memory limit at any time; without one, memory must be sampled.
    if isinstance(cell.parts.meter, UsageSampler) and cell.counters().out_of_memory:
        return LimitName.MEMORY
    if workspace is None or workspace.bounded_by_kernel:
        return None
    if cpu_s is not None and cpu_s == session.searched_cpu_s:
        return None
    if now < session.next_disk_check and not workspace.is_filling(limits):
        return None
    has_room = workspace.has_room(limits, find_unlinked_files(cell.code_pids))
    session.searched_cpu_s = cpu_s if has_room else None
    # At most a hundredth of one core for each session.
    session.next_disk_check = now + 100 * (time.monotonic() - now)
    return None if has_room else LimitName.DISK


def _measured_cpu_s(cell: LiveCell) -> float | None:
    """Exact, by the kernel's counter. None without one: samples miss what ends between them."""
    return cell.cpu_s() if isinstance(cell.parts.meter, RunCgroup) else None


def _exceeds_uncharged_memory(session: LiveSession, cpu_s: float | None) -> bool:
    uncharged = session.uncharged
    # Data from outside fills the buffers of sockets without processor time of the code.
    is_reached = session.has_egress or session.connections > 0
    if is_reached:
        session.counted_cpu_s = None
    is_counted = cpu_s is not None and cpu_s == session.counted_cpu_s
    # Attack: short runs without pause. None lasts until its monitor counts, and the growth before
    # the run is not part of what a monitor compares.
    if uncharged is None or is_counted or not uncharged.is_due():
        return False
    exceeds_limit = uncharged.exceeds_limit()
    session.counted_cpu_s = None if is_reached or exceeds_limit else cpu_s
    return exceeds_limit


async def acquire(lock: threading.Lock) -> None:
    """Does not block the event loop, and does not leave the lock held when cancelled."""
    while not lock.acquire(blocking=False):  # noqa: ASYNC110  # each thread has its own event loop
        await anyio.sleep(0.001)


async def wait_for_terminal(process: BackgroundProcess, operation: RunCommand) -> None:
    """Init sends the terminal; input before that would be lost."""
    if operation.terminal is None:
        return
    with anyio.move_on_after(_TERMINAL_WITHIN_S):
        while process.terminal is None and not process.ended.is_set():  # noqa: ASYNC110  # set by a thread
            await anyio.sleep(0.001)


async def wait_for(event: threading.Event, timeout_s: float) -> None:
    """Wait until a thread sets the event, or the time is over."""
    with anyio.move_on_after(timeout_s):
        while not event.is_set():
            await anyio.to_thread.run_sync(partial(event.wait, 0.5), abandon_on_cancel=True)
