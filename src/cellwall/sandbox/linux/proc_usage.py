"""Resource usage of a cell's processes, read from /proc by the supervisor.

`UsageSampler` replaces the counters of a cgroup, only with `dangerously_without_cgroup`. A cgroup
refuses memory at the time of the allocation; a sample sees the memory up to one monitor interval
later, so the limit can be exceeded for that long. rlimits bound each single process meanwhile, see
walls.py. Not available without a cgroup: a share of processors, disk bandwidth, and the name of
the limit that refused a fork. Every process of a cell is a descendant of its shim: the cell's init
adopts orphans. Calls that allocate memory which no process maps and no file system shows are
refused: `without_cgroup` in seccomp.toml. Buffers of pipes and sockets are not measured, see
docs/limitations.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from cellwall.core.limits import Limits
from cellwall.sandbox.files.descriptors import closing_fd, read_at_most
from cellwall.sandbox.linux._syscalls import share_descriptors
from cellwall.sandbox.linux.run_cgroup import Counters

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Offsets in /proc/PID/stat after the command's closing parenthesis, proc_pid_stat(5).
_PARENT, _UTIME, _STIME, _CSTIME, _STARTTIME = 1, 11, 12, 14, 19
_TMPFS_INSIDE = frozenset({"/tmp", "/dev/shm", "/workspace"})


class UsageSampler:
    """Samples the processes below one shim."""

    def __init__(self, shim_pid: int, limits: Limits) -> None:
        self._shim_pid = shim_pid
        self._limits = limits
        self._cpu_s = 0.0
        self._own_ticks: dict[tuple[int, str], int] = {}
        """Processor time of each live process, by pid and start time."""
        self._ended_ticks = 0
        self._peak = 0
        self._is_over = False

    def pids(self) -> list[int]:
        """Descendants of the shim, without the shim itself."""
        return list(_descendants(self._shim_pid))

    def cpu_s(self) -> float:
        """The highest sum seen so far."""
        self._cpu_s = max(self._cpu_s, self._ticks(_descendants(self._shim_pid)) / _TICKS_PER_S)
        return self._cpu_s

    def memory_bytes(self) -> int | None:
        """Not sampled for this question."""
        return None

    def counters(self) -> Counters:
        """The highest values seen so far: ended processes cannot be sampled."""
        stats = _descendants(self._shim_pid)
        self._cpu_s = max(self._cpu_s, self._ticks(stats) / _TICKS_PER_S)
        used = self._memory(list(stats))
        self._peak = max(self._peak, used)
        self._is_over = self._is_over or used > self._limits.memory_bytes
        return Counters(
            cpu_s=self._cpu_s,
            memory_peak=self._peak,
            out_of_memory=int(self._is_over),
            is_sampled=True,
        )

    def _ticks(self, stats: dict[int, list[str]]) -> int:
        """The larger of two incomplete sums.

        One counts each live process and the children it has waited for. The other counts the last
        known time of every process ever seen: the kernel accounts the children of a process that
        ignores SIGCHLD to no parent.
        """
        waited_for = sum(sum(map(int, stat[_UTIME : _CSTIME + 1])) for stat in stats.values())
        own = {
            (pid, stat[_STARTTIME]): int(stat[_UTIME]) + int(stat[_STIME])
            for pid, stat in stats.items()
        }
        self._ended_ticks += sum(self._own_ticks[gone] for gone in self._own_ticks.keys() - own)
        self._own_ticks = own
        return max(waited_for, self._ended_ticks + sum(own.values()))

    def _memory(self, pids: list[int]) -> int:
        stored = _tmpfs_bytes(reversed(pids))
        resident = sum(_status_bytes(pid, ("RssAnon", "RssShmem")) for pid in pids)
        if resident + stored <= self._limits.memory_bytes:
            return resident + stored
        # Shared pages were counted once for each process. The exact figure is expensive.
        return stored + sum(_shared_bytes(pid) for pid in pids)


def _descendants(root: int) -> dict[int, list[str]]:
    """pid -> the fields of its stat after the command, parents before children."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            # A process chooses its name, which may contain a closing parenthesis.
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read().rpartition(b")")[2].decode("ascii", "replace").split()
                if len(stat) > _STARTTIME:
                    stats[int(name)] = stat
                    children.setdefault(int(stat[_PARENT]), []).append(int(name))
    descendants: dict[int, list[str]] = {}
    todo = children.get(root, [])
    while todo:
        pid = todo.pop(0)
        descendants[pid] = stats[pid]
        todo += children.get(pid, [])
    return descendants


def _status_bytes(pid: int, names: tuple[str, ...]) -> int:
    return _kib_lines(f"/proc/{pid}/status", names)


def _shared_bytes(pid: int) -> int:
    """Proportional set size: shared pages divided by the number of processes that share them."""
    exact = _kib_lines(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem"))
    return exact or _status_bytes(pid, ("RssAnon", "RssShmem"))


def _kib_lines(path: str, names: tuple[str, ...]) -> int:
    total = 0
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in names:
                total += int(value.split()[0]) * 1024
    return total


def _tmpfs_bytes(pids: Iterable[int]) -> int:
    """Files in the cell's tmpfs mounts, seen through the root of one of its processes."""
    ours = os.stat("/proc/self/ns/pid").st_ino
    for pid in pids:
        with suppress(OSError):
            # The parents of the cell's init see the host's mounts.
            if os.stat(f"/proc/{pid}/ns/pid").st_ino != ours:
                return sum(_used_bytes(f"/proc/{pid}/root{point}") for point in _tmpfs_points(pid))
    return 0


def _tmpfs_points(pid: int) -> list[str]:
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
        lines = [line.partition(" - ") for line in file]
    mounts = [(before.split(" ")[4], after) for before, _, after in lines]
    return [point for point, kind in mounts if point in _TMPFS_INSIDE and kind.startswith("tmpfs ")]


def _used_bytes(path: str) -> int:
    info = os.statvfs(path)
    return (info.f_blocks - info.f_bfree) * info.f_frsize


def tables_of(pid: int) -> Iterator[str]:
    """The /proc directory of each thread that has a descriptor table of its own."""
    for name in os.listdir(f"/proc/{pid}/task"):
        if int(name) == pid or not share_descriptors(pid, int(name)):
            yield f"/proc/{pid}/task/{name}"


def read_some(path: str, most: int) -> bytes:
    """At most this many bytes of a file in /proc."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        return read_at_most(descriptor, most)
