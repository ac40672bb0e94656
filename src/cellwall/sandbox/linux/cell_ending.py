"""Ends, freezes and thaws cells from outside, without the process that started them (OBS-3).

Every signal goes through a pidfd whose start time was compared after it was opened: a pid that was
reused meanwhile gets no signal.

Killing the first process of a PID namespace makes the kernel kill all others in it and refuse new
ones, so that neither a fork bomb nor a double fork escapes. The shim is killed only once nothing is
left below it: it is the subreaper, and an orphan stays below it until then.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from cellwall.sandbox.linux.cell_search import FIRST, CellSearch, FoundCell, continues_itself
from cellwall.sandbox.linux.process_table import CellProcess
from cellwall.sandbox.linux.run_cgroup import read_text, write_control

_PAUSE_S = 0.005
_WAIT_S = 0.05
_MAX_WAITED = 256  # descriptors; the search finds whatever was not waited for
_HIGHEST = -20
_OWN_GROUP = "/proc/self/autogroup"
_SHELL = "/bin/sh"
_AUTOGROUP = re.compile(r" nice (-?\d+)$")


@dataclass(frozen=True, slots=True)
class StoppedCells:
    """The cells that were ended or frozen."""

    ids: tuple[str, ...]
    processes: int
    left: tuple[str, ...]
    """Cells that were not, by the deadline: a process is stuck in the kernel."""
    took_s: float


def end_cells(
    search: CellSearch, *, within_s: float, before_each: Callable[[], None]
) -> StoppedCells:
    """Kill every process of every cell, until a search finds none. `before_each` search, the caller
    makes sure that no new cell starts."""
    return _until_none(search, lambda _cell: True, _end, within_s=within_s, before_each=before_each)


def _end(search: CellSearch, cell: FoundCell, *, is_first: bool) -> list[int]:
    for group in cell.unified_groups:
        with suppress(OSError):  # a kernel before 5.14 has no such file
            write_control(f"{group}/cgroup.kill", "1")
    if cell.processes:
        # At first bubblewrap and the first process of the PID namespace: the kernel kills the rest
        # of the namespace with it, and much faster. What a later search still finds is killed too.
        top = cell.processes[:FIRST] if is_first and cell.shim else cell.processes
        return _signal_all(search, top, signal.SIGKILL)
    return _signal_all(search, filter(None, [cell.shim]), signal.SIGKILL)


def freeze_cells(
    search: CellSearch, *, within_s: float, before_each: Callable[[], None]
) -> StoppedCells:
    """Suspend every process of every cell, the shim as well: the supervisor's time limit would end
    the cell through it. On a host without cgroup v2, a process that is not suspended yet may
    continue others of its cell, so the search is repeated until all are suspended. One that has
    arranged to be continued by the kernel cannot be suspended there, and is ended; so is a
    container of an engine."""
    return _until_none(
        search,
        lambda cell: not is_frozen(cell),
        _freeze,
        within_s=within_s,
        before_each=before_each,
    )


def _freeze(search: CellSearch, cell: FoundCell, *, is_first: bool) -> list[int]:  # noqa: ARG001  # as `_end` has it
    if cell.is_container:
        # Only the engine could suspend it. The holder of its life line ends it.
        return _signal_all(search, cell.processes, signal.SIGKILL)
    if cell.shim is not None and not cell.shim.is_stopped:
        _close_all(_signal_all(search, [cell.shim], signal.SIGSTOP))
    for group in cell.unified_groups:
        with suppress(OSError):
            write_control(f"{group}/cgroup.freeze", "1")
    if not cell.unified_groups:
        # Once it is suspended: until then it can still make such a timer.
        restless = (each for each in cell.processes if each.is_stopped and _is_restless(each))
        _close_all(_signal_all(search, restless, signal.SIGKILL))
        running = (each for each in cell.processes if not each.is_stopped)
        _close_all(_signal_all(search, running, signal.SIGSTOP))
    return []


def is_frozen(cell: FoundCell) -> bool:
    """Whether no process of the cell can run."""
    by_group = bool(cell.unified_groups) and all(
        "frozen 1" in read_text(f"{group}/cgroup.events") for group in cell.unified_groups
    )
    is_shim_frozen = cell.shim is None or cell.shim.is_stopped or (by_group and cell.is_shim_inside)
    return is_shim_frozen and (
        by_group or all(each.is_stopped and not _is_restless(each) for each in cell.processes)
    )


def is_held(cell: FoundCell) -> bool:
    """Whether the cell was frozen, also where a process of it has got away since: the shim, which
    nothing inside can signal, is suspended."""
    return is_frozen(cell) or (cell.shim is not None and cell.shim.is_stopped)


def _is_restless(process: CellProcess) -> bool:
    return continues_itself(process.pid)


def thaw_cells(search: CellSearch) -> tuple[str, ...]:
    """Continue frozen cells; returns their ids."""
    thawed = [cell for cell in search.find() if is_held(cell)]
    for cell in thawed:
        for group in cell.unified_groups:
            with suppress(OSError):
                write_control(f"{group}/cgroup.freeze", "0")
        # The shim last: a time limit that has passed meanwhile ends the cell through it.
        _close_all(
            _signal_all(search, [*cell.processes, *filter(None, [cell.shim])], signal.SIGCONT)
        )
    return tuple(sorted(cell.id for cell in thawed))


class _Act(Protocol):
    def __call__(self, search: CellSearch, cell: FoundCell, *, is_first: bool) -> list[int]:
        """Pidfds of processes that are about to end."""


def _until_none(
    search: CellSearch,
    concerns: Callable[[FoundCell], bool],
    act: _Act,
    *,
    within_s: float,
    before_each: Callable[[], None],
) -> StoppedCells:
    began, is_first = time.monotonic(), True
    ids: dict[object, str] = {}  # by shim: its entry in the ledger may be gone before the shim
    pids: set[tuple[int, int]] = set()
    while True:
        before_each()
        found = [cell for cell in search.find() if concerns(cell)]
        took_s = time.monotonic() - began
        if not found and not search.was_complete:
            search.forget_others()
            continue
        if not found or took_s > within_s:
            left = tuple(sorted(cell.id for cell in found))
            return StoppedCells(tuple(sorted(set(ids.values()))), len(pids), left, took_s)
        ending: list[int] = []
        for cell in found:
            shim = (cell.shim.pid, cell.shim.started) if cell.shim else cell.id
            ids.setdefault(shim, cell.id)
            pids.update((each.pid, each.started) for each in cell.processes)
            ending += act(search, cell, is_first=is_first)
            _close_all(ending[_MAX_WAITED:])
            del ending[_MAX_WAITED:]
        is_first = False
        _wait_for_end(ending)
        _close_all(ending)


def _wait_for_end(pidfds: Iterable[int]) -> None:
    """Without work of our own, which would take the processor from those that end."""
    time.sleep(_PAUSE_S)
    poll, waiting = select.poll(), set(pidfds)
    for pidfd in waiting:
        poll.register(pidfd, select.POLLIN)
    deadline = time.monotonic() + _WAIT_S
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(left_s * 1000):
            poll.unregister(pidfd)
            waiting.discard(pidfd)


@contextmanager
def highest_priority() -> Iterator[None]:
    """This thread before all others, where that is allowed: what is to be stopped may take every
    processor. No real-time policy: a reader of /proc then spins on locks whose holders, processes
    that end, never get the processor."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _HIGHEST)
    except OSError:
        yield
        return
    try:
        with _highest_session():
            yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def _highest_session() -> Iterator[None]:
    """Where the kernel shares processors between sessions (autogroup, sched(7)), a nice value
    counts within the own session alone, and each cell is a session: so the session gets the value.

    The session is also that of the caller's shell and of all it has started, which must not keep
    the value: everything else on the host would get a hundredth of their processor time.
      (1) A process of its own puts the former value back: also when this one is killed.
      (2) A value that is the highest already is that of another stop, which puts it back itself.
    """
    group = _AUTOGROUP.search(read_text(_OWN_GROUP))
    if group is None or int(group[1]) == _HIGHEST:  # (2)
        yield
        return
    read_end, life = os.pipe2(os.O_CLOEXEC)
    try:
        restorer = _start_restorer(int(group[1]), read_end)  # (1)
    except OSError:
        os.close(life)
        yield
        return
    finally:
        os.close(read_end)
    try:
        with suppress(OSError):
            write_control(_OWN_GROUP, str(_HIGHEST))
        yield
    finally:
        os.close(life)
        with suppress(ChildProcessError):
            os.waitpid(restorer, 0)


def _start_restorer(value: int, life: int) -> int:
    """Its pid. It waits for the end of `life`, and keeps nothing else open."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    return os.posix_spawn(  # noqa: TID251  # the shell of the host, with words of ours alone
        _SHELL,
        [_SHELL, "-c", f"trap '' INT TERM HUP QUIT; read -r _; echo {value} > {_OWN_GROUP}"],
        {},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, life, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setpgroup=0,  # a Ctrl-C at the terminal is for the stop
        setsigmask=signals,  # until the shell ignores them
    )


def _signal_all(
    search: CellSearch, processes: Iterable[CellProcess], number: signal.Signals
) -> list[int]:
    """Pidfds of the processes that got the signal; the caller closes them."""
    sent = []
    for process in processes:
        with suppress(OSError):
            pidfd = os.pidfd_open(process.pid)
            try:
                # After it was opened: from here on, the descriptor means this process alone.
                if search.is_same(process):
                    signal.pidfd_send_signal(pidfd, number)
                    sent.append(pidfd)
                    continue
            except OSError:
                pass
            os.close(pidfd)
    return sent


def _close_all(pidfds: Iterable[int]) -> None:
    for pidfd in pidfds:
        os.close(pidfd)
