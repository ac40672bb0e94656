"""Kernel memory that a cell uses and no cgroup counts: file locks and netlink queues (LIM-6).

Counting costs something, so a cheap gauge is read often, the host's unreclaimable slab, and only
its growth makes us count. Whose the memory is, is then told exactly, by descriptor; a neighbour's
growth ends nobody. Not by /proc/locks: reading it costs the square of their number and holds up
everybody on the host who locks.

What else is counted by nobody cannot be made in a cell, or not in a number that matters: see
docs/limitations.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from cellwall.core.limits import MIB
from cellwall.sandbox.native.holdings import read_some, tables_of

MAX_BYTES = 8 * MIB
_LOCK_BYTES = 256  # struct file_lock and its share of a slab
_GAUGE_STEP_BYTES = 4 * MIB
_GAUGE_FRESH_S = 0.02
_PAUSE_FACTOR = 2


class UnchargedMemory:
    """Of one cell, from when this is made."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._level = _gauge.slab_bytes()
        self._not_before = 0.0

    def is_due(self) -> bool:
        """Whether the host's kernel has grown so much that the cell's part should be counted."""
        level = _gauge.slab_bytes()
        self._level = min(self._level, level)
        return level - self._level >= _GAUGE_STEP_BYTES and time.monotonic() >= self._not_before

    def is_too_much(self) -> bool:
        """Count. May take a moment."""
        started = time.monotonic()
        self._level = _gauge.slab_bytes()
        pids = self._pids()
        used = _LOCK_BYTES * count_locks(pids, most=MAX_BYTES // _LOCK_BYTES)
        used += netlink_bytes(pids)
        now = time.monotonic()
        self._not_before = now + _PAUSE_FACTOR * (now - started)
        return used > MAX_BYTES


def count_locks(pids: Sequence[int], *, most: int) -> int:
    """File locks of these processes, no further than to the first beyond `most`.

    A POSIX lock ends when its process closes the file, so it is found at a descriptor. Locks of an
    open file description could be in flight; the filter lets nobody make them.
    """
    count = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            for task in tables_of(pid):
                count += _locks_in(f"{task}/fdinfo", most - count)
                if count > most:
                    return count
    return count


def _locks_in(notes: str, most: int) -> int:
    count = 0
    with suppress(OSError):
        for number in os.listdir(notes):
            with suppress(OSError):  # closed meanwhile
                # Each has a line of at least 32 bytes: `lock: 1: POSIX  ADVISORY  WRITE …`.
                count += read_some(f"{notes}/{number}", 64 * (most + 64)).count(b"\nlock:")
            if count > most:
                break
    return count


def netlink_bytes(pids: Sequence[int]) -> int:
    """What waits in the netlink sockets of the cell's own network namespace."""
    # bubblewrap's own process is in the group of a cold cell, and in the host's namespace.
    seen, used = {os.stat("/proc/self/ns/net").st_ino}, 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            namespace = os.stat(f"/proc/{pid}/ns/net").st_ino
            if namespace in seen:
                continue
            with open(f"/proc/{pid}/net/netlink", encoding="ascii", errors="replace") as file:
                lines = [line.split() for line in file]
            seen.add(namespace)
            # sk Eth Pid Groups Rmem Wmem …
            used += sum(int(each[4]) + int(each[5]) for each in lines[1:] if len(each) > 5)
    return used


class _Gauge:
    """Read at most so often, for however many cells."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = -1.0
        self._bytes = 0

    def slab_bytes(self) -> int:
        with self._lock:
            now = time.monotonic()
            if now - self._read_at >= _GAUGE_FRESH_S:
                self._read_at = now
                self._bytes = _slab_bytes()
            return self._bytes


def _slab_bytes() -> int:
    with suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "SUnreclaim":
                return int(value.split()[0]) * 1024
    return 0


_gauge = _Gauge()
