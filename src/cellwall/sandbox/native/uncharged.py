"""Kernel memory that a cell uses and no cgroup counts: file locks and netlink queues (LIM-6).

Counting costs the host something: a read of /proc/locks holds up everybody who locks. So a cheap
gauge is read often, the host's unreclaimable slab, and only its growth makes us count. Whose the
memory is, is then told exactly, by process; a neighbour's growth ends nobody.

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

MAX_BYTES = 8 * MIB
_LOCK_BYTES = 256  # struct file_lock and its share of a slab
_GAUGE_STEP_BYTES = 4 * MIB
_GAUGE_FRESH_S = 0.02
_PAUSE_FACTOR = 10  # a tenth of one core at most
_MAX_LOCKS_READ = 500_000
_PAGE = 4096


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
    """POSIX and flock locks, held or waited for; no further than to the first beyond `most`.

    Locks of an open file description belong to no process: the filter lets nobody make them, as it
    lets no two processes share a table of descriptors, in which a lock would outlive its maker.
    """
    wanted = {b"%d" % pid for pid in pids if pid > 0}
    if not wanted:
        return 0
    count, left, rest = 0, _MAX_LOCKS_READ, b""
    with suppress(OSError):
        descriptor = os.open("/proc/locks", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The newest come first: whoever is making them is found before all are read.
            while count <= most and left > 0 and (chunk := os.read(descriptor, 16 * _PAGE)):
                *lines, rest = (rest + chunk).split(b"\n")
                left -= len(lines)
                count += sum(_holder(line) in wanted for line in lines)
        finally:
            os.close(descriptor)
    return count


def _holder(line: bytes) -> bytes:
    """`7: POSIX  ADVISORY  WRITE 4711 fe:00:99 0 EOF`; `7: -> POSIX …` waits for another."""
    fields = line.replace(b"->", b"", 1).split(None, 5)
    return fields[4] if len(fields) > 4 else b""


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
