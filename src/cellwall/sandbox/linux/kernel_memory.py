"""Kernel memory that a cell uses and no cgroup counts: file locks and parts of sockets (LIM-6).

Counting costs something, so cheap gauges are read often, two sums of the host's kernel memory, and
their growth makes us count. Whose the memory is, is then told exactly, by descriptor and by network
namespace; a neighbour's growth ends nobody. Sockets are counted now and then without growth, too:
what one cell takes while others give back does not show. Not by /proc/locks: reading it costs the
square of their number and holds up everybody on the host who locks.

What else is counted by nobody cannot be made in a cell, or not in a number that matters: see
docs/limitations.md.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from cellwall.core.limits import MIB, Limits
from cellwall.sandbox.linux import socket_memory
from cellwall.sandbox.linux.run_cgroup import socket_bytes
from cellwall.sandbox.linux.unlinked_files import read_some, tables_of

MAX_LOCKS_BYTES = 8 * MIB
_MAX_CHASE_S = 0.2
_LOCK_BYTES = 256  # struct file_lock and its share of a slab
_SLAB_STEP_BYTES = 4 * MIB
_KERNEL_STEP_BYTES = 16 * MIB  # less is the coming and going of free pages
_REGULARLY_S = 1.0
_GAUGE_FRESH_S = 0.02
_PAUSE_FACTOR = 4
_REGULAR_FACTOR = 100  # a hundredth of one core
_MAX_PAUSE_S = 5.0  # one dear look (many tables of descriptors) must not blind us for long
# What is not the kernel's own, in /proc/meminfo; SReclaimable is cache.
_NOT_KERNEL = frozenset({"MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable"})


class UnchargedMemory:
    """Of one cell, from when this is made."""

    def __init__(self, pids: Callable[[], Sequence[int]], limits: Limits) -> None:
        self._pids = pids
        self._memory_bytes = limits.memory_bytes
        self._max_socket_bytes = socket_bytes(limits)
        self._slab, self._kernel = _gauge.read()
        self._not_before = 0.0
        self._regularly = time.monotonic() + _REGULARLY_S

    def is_due(self) -> bool:
        """Whether the host's kernel has grown so much that the cell's part should be counted."""
        slab, kernel = _gauge.read()
        self._slab, self._kernel = min(self._slab, slab), min(self._kernel, kernel)
        now = time.monotonic()
        has_grown = self._has_more_slab(slab) or kernel - self._kernel >= _KERNEL_STEP_BYTES
        return now >= self._not_before and (has_grown or now >= self._regularly)

    def _has_more_slab(self, slab: int) -> bool:
        return slab - self._slab >= _SLAB_STEP_BYTES

    def is_too_much(self) -> bool:
        """Count. May take a moment."""
        # Of this thread alone: on a busy host a look takes long without costing much, and a pause
        # by the clock would leave the cell that makes the host busy unwatched.
        started = time.thread_time()
        slab, kernel = _gauge.read()
        counts_locks = self._has_more_slab(slab)
        if counts_locks:
            self._slab = slab
        self._kernel = kernel
        pids = self._pids()
        most = MAX_LOCKS_BYTES // _LOCK_BYTES
        is_too_much = counts_locks and count_locks(pids, most=most) > most
        most = self._max_socket_bytes
        in_sockets = socket_memory.uncharged_bytes(pids, memory_bytes=self._memory_bytes, most=most)
        now, cost_s = time.monotonic(), time.thread_time() - started
        self._not_before = now + _PAUSE_FACTOR * cost_s
        pause_s = max(_REGULARLY_S, _REGULAR_FACTOR * cost_s)
        self._regularly = now + min(pause_s, _MAX_PAUSE_S)
        return is_too_much or in_sockets > most


def count_locks(pids: Sequence[int], *, most: int) -> int:
    """File locks of these processes, no further than to the first beyond `most`.

    A POSIX lock ends when its table of descriptors does, so it is found at a descriptor. Locks of
    an open file description could be in flight; the filter lets nobody make them.
    """
    count = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            count += _LockCount(most - count).of_process(pid)
        if count > most:
            break
    return count


class _LockCount:
    """Of one process.

    Threads can hand a table of their own on, each ending before we have read it. Whoever is there
    then has the same table: we go on at the descriptor where the last one ended. A process in which
    that does not lead to an end is stopped for the time of a look; one that cannot even be stopped,
    since another one lets it go on, has too many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._whole: set[str] = set()
        self._read: set[str] = set()
        """Descriptors of tables that were handed on."""

    def of_process(self, pid: int) -> int:
        if self._chase(pid):
            return self._count
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            if not self._chase(pid) and not select.select([process], [], [], 0)[0]:
                self._count = self._most + 1
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGCONT)
            os.close(process)
        return self._count

    def _chase(self, pid: int) -> bool:
        """Whether all its tables were read, or enough of them."""
        until = time.monotonic() + _MAX_CHASE_S
        while time.monotonic() < until:
            is_whole = [self._look_at(task) for task in tables_of(pid)]
            if all(is_whole) or self._count > self._most:
                return True
        return False

    def _look_at(self, task: str) -> bool:
        """Whether its table could be read to the end."""
        if task in self._whole:
            return True
        begun = set[str]()
        try:
            for number in os.listdir(f"{task}/fdinfo"):
                if number in self._read:
                    continue
                self._count += self._locks_at(task, number)
                begun.add(number)
                if self._count > self._most:
                    return True
            is_whole = os.path.exists(f"{task}/fdinfo")
        except OSError:  # the thread has ended
            is_whole = False
        if is_whole:
            self._whole.add(task)
        else:
            self._read |= begun
        return is_whole

    def _locks_at(self, task: str, number: str) -> int:
        try:
            # Each has a line of at least 32 bytes: `lock: 1: POSIX  ADVISORY  WRITE …`.
            text = read_some(f"{task}/fdinfo/{number}", 64 * (self._most + 64))
        except FileNotFoundError:
            if os.path.exists(task):
                return 0  # closed meanwhile
            raise
        return text.count(b"\nlock:")


class _Gauge:
    """Read at most so often, for however many cells."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = -1.0
        self._bytes = (0, 0)

    def read(self) -> tuple[int, int]:
        """Unreclaimable slab, and all that the kernel keeps for itself."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_at >= _GAUGE_FRESH_S:
                self._read_at = now
                self._bytes = _kernel_bytes()
            return self._bytes


def _kernel_bytes() -> tuple[int, int]:
    values: dict[str, int] = {}
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            values[name] = int(value.split()[0]) * 1024
    others = sum(values.get(name, 0) for name in _NOT_KERNEL)
    return values.get("SUnreclaim", 0), max(0, values.get("MemTotal", 0) - others)


_gauge = _Gauge()
