"""The cgroup of one run, v1 or v2: its limits, counters and removal (LIM-3)."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from cellwall.core.errors import SandboxFailed
from cellwall.core.limits import KIB, MIB, Limits
from cellwall.sandbox.files.descriptors import closing_fd, read_at_most
from cellwall.sandbox.linux.counter_files import CounterFiles

COLD_PROCESSES = 2  # bubblewrap's monitor and init share the group with the program
WARM_PROCESSES = 1  # init alone
_PERIOD_US = 100_000
_DISCARD_TRIES = 400
_DISCARD_PAUSE_S = 0.005
ZYGOTE = "zygote"
_MIN_SOCKET_BYTES = 8 * MIB  # a few busy connections need this much for their buffers
_SOCKET_SHARE = 8
_BYTES_PER_WRITE = 128 * KIB
_MIN_WRITES_PER_S = 64
_MAX_TEXT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Counters:
    """The usage and the refusals of a cgroup so far."""

    cpu_s: float | None = None
    memory_peak: int | None = None
    out_of_memory: int = 0
    forks_refused: int = 0
    io_bytes: int | None = None
    is_sampled: bool = False
    """Without a cgroup: a fast process may have used more memory than any sample shows."""

    @property
    def is_clean(self) -> bool:
        """Whether every counter can be reset."""
        return not (self.out_of_memory or self.forks_refused or self.io_bytes)

    def since(self, before: Counters) -> Counters:
        """The difference; the memory peak covers the group's whole life."""
        return Counters(
            cpu_s=_difference(self.cpu_s, before.cpu_s),
            memory_peak=self.memory_peak,
            out_of_memory=self.out_of_memory - before.out_of_memory,
            forks_refused=self.forks_refused - before.forks_refused,
            io_bytes=_difference(self.io_bytes, before.io_bytes),
            is_sampled=self.is_sampled,
        )


class Meter(Protocol):
    """What measures the code of a cell."""

    def counters(self) -> Counters: ...

    def cpu_s(self) -> float | None: ...

    def memory_bytes(self) -> int | None:
        """Of all processes now; None where it is not known."""

    def pids(self) -> list[int]:
        """The processes on this host."""


_Amount = TypeVar("_Amount", int, float)


def _difference(after: _Amount | None, before: _Amount | None) -> _Amount | None:
    return None if after is None or before is None else after - before


def socket_bytes(limits: Limits) -> int:
    """The limit for socket buffers where they are not counted as memory."""
    return max(_MIN_SOCKET_BYTES, limits.memory_bytes // _SOCKET_SHARE)


def settings_v1(
    limits: Limits, own_processes: int = COLD_PROCESSES
) -> tuple[tuple[str, str, str, bool], ...]:
    """(controller, file, value, required) of each limit, in the files of v1."""
    memory = str(limits.memory_bytes)
    return (
        ("memory", "memory.limit_in_bytes", memory, True),
        ("memory", "memory.memsw.limit_in_bytes", memory, False),  # only with swap accounting
        ("memory", "memory.swappiness", "0", False),
        # v1 counts the buffers of TCP and UDP sockets beside the memory, and only once this is
        # written; v2 counts them as memory (LIM-6). A kernel without it has no such buffers.
        ("memory", "memory.kmem.tcp.limit_in_bytes", str(socket_bytes(limits)), False),
        ("pids", "pids.max", str(limits.processes + own_processes), True),
        ("cpu", "cpu.cfs_period_us", str(_PERIOD_US), True),
        ("cpu", "cpu.cfs_quota_us", str(int(limits.cpus * _PERIOD_US)), True),
    )


def settings_v2(
    limits: Limits, own_processes: int = COLD_PROCESSES
) -> tuple[tuple[str, str, str, bool], ...]:
    """The same for v2. Not `memory.oom.group`: init must survive to report the end."""
    return (
        ("memory", "memory.max", str(limits.memory_bytes), True),
        ("memory", "memory.swap.max", "0", False),
        ("pids", "pids.max", str(limits.processes + own_processes), True),
        ("cpu", "cpu.max", f"{int(limits.cpus * _PERIOD_US)} {_PERIOD_US}", True),
    )


class RunCgroup:
    """The cgroup of one run. The shim joins and removes it."""

    def __init__(
        self,
        version: Literal[1, 2],
        directories: Mapping[str, str],
        *,
        nest: Mapping[str, str] | None = None,
        removes_nest: bool = True,
    ) -> None:
        self.version = version
        self._directories = directories
        self._nest = nest
        """For a template: the outer group, in which the groups of its cells are made as well."""
        self._removed = nest if nest is not None and removes_nest else directories
        self._open_files: CounterFiles | None = None

    @property
    def _own(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._directories.values()))

    @property
    def remove(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._removed.values()))

    def sibling(self, name: str) -> RunCgroup:
        """A new group beside that of a template."""
        group = self.existing(name)
        for path in group.remove:
            os.mkdir(path)
        return group

    @property
    def bases(self) -> tuple[str, ...]:
        """The directories in which the groups of a template's cells are made."""
        return tuple(dict.fromkeys((self._nest or {}).values()))

    def existing(self, name: str) -> RunCgroup:
        """The group of a cell that the template's shim has made."""
        assert self._nest is not None  # noqa: S101  # only templates make cells
        directories = {controller: f"{base}/{name}" for controller, base in self._nest.items()}
        return RunCgroup(self.version, directories)

    def limit_steps(self, limits: Limits, own_processes: int) -> list[tuple[int, str, str, int]]:
        """(index of the base, file, value, required) of every limit, for the template's shim."""
        settings = settings_v1 if self.version == 1 else settings_v2
        nest, bases = self._nest or {}, self.bases
        return [
            (bases.index(nest[controller]), file, value, int(required))
            for controller, file, value, required in settings(limits, own_processes)
            if controller in nest
        ]

    def reset_steps(self) -> list[tuple[int, str, str]]:
        """(index of the base, file, value) that reset the counters of a used group; v1 only."""
        nest, bases = self._nest or {}, self.bases
        counters = (("cpuacct", "cpuacct.usage"), ("memory", "memory.max_usage_in_bytes"))
        if self.version == 2 or not {controller for controller, _ in counters} <= nest.keys():
            return []
        return [(bases.index(nest[controller]), file, "0") for controller, file in counters]

    @property
    def members_name(self) -> str:
        return "tasks" if self.version == 1 else "cgroup.procs"

    def open_members(self) -> list[int]:
        """Files through which a process joins by writing "0", with the rights of the opener."""
        name = self.members_name
        return [os.open(f"{path}/{name}", os.O_WRONLY | os.O_CLOEXEC) for path in self._own]

    def pids(self) -> list[int]:
        """The processes of the group; 0 stands for one outside our PID namespace."""
        base = self._directories["memory"] if self.version == 1 else self._own[0]
        return [int(word) for word in read_text(f"{base}/cgroup.procs").split()]

    def try_remove(self) -> bool:
        """Try to remove it once; False while a process in it is still dying."""
        for path in self._own:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(f"{path}/tasks" for path in self._own) if self.version == 1 else ()

    @property
    def unified(self) -> str | None:
        return self._own[0] if self.version == 2 else None

    def discard(self) -> None:
        """Remove the group if it still exists: the run never began, or its shim was killed."""
        remove_groups(self.remove)

    def limit(
        self, limits: Limits, *, io_device: str | None, own_processes: int = COLD_PROCESSES
    ) -> None:
        """Write every limit; a required limit that cannot be written is a refusal."""
        settings = settings_v1 if self.version == 1 else settings_v2
        wanted = settings(limits, own_processes)
        for controller, file, value, required in wanted:
            directory = self._directories.get(controller)
            if directory is None and not required:
                continue
            try:
                write_control(f"{directory}/{file}", value)
            except OSError as error:
                if required:
                    raise SandboxFailed(
                        f"the kernel refused the {controller} limit of the cgroup",
                        hint="Run `cellwall doctor`.",
                        code="CW-CGROUP-LIMIT",
                        detail=f"{file}={value}: {error}",
                    ) from error
        if io_device is not None:
            self._limit_io(limits.io_bytes_per_s, io_device)

    def _limit_io(self, bytes_per_s: int, device: str) -> None:
        # Bandwidth is fairness between cells, not a wall: without the controller, or on a file
        # system without a block device, it is not limited (LIM-3).
        # Small synchronous writes (fsync in a loop) cost the disk far more than their size, so
        # their number is limited together with the bandwidth (LIM-6).
        writes_per_s = max(_MIN_WRITES_PER_S, bytes_per_s // _BYTES_PER_WRITE)
        try:
            if self.version == 2 and "io" in self._directories:
                text = f"{device} rbps={bytes_per_s} wbps={bytes_per_s} wiops={writes_per_s}"
                write_control(f"{self._directories['io']}/io.max", text)
            elif "blkio" in self._directories:
                for file, value in (
                    ("read_bps_device", bytes_per_s),
                    ("write_bps_device", bytes_per_s),
                    ("write_iops_device", writes_per_s),
                ):
                    path = f"{self._directories['blkio']}/blkio.throttle.{file}"
                    write_control(path, f"{device} {value}")
        except OSError:
            return

    def keep_files_open(self) -> None:
        """For a group whose counters are read often. The owner calls `close_files`."""
        self._open_files = CounterFiles()

    def close_files(self) -> None:
        """The counters are read by their paths again."""
        files, self._open_files = self._open_files, None
        if files is not None:
            files.close()

    def _read(self, path: str) -> str:
        files = self._open_files
        text = None if files is None else files.read(path)
        return read_text(path) if text is None else text.decode("ascii", "replace")

    def memory_bytes(self) -> int | None:
        """The memory that is charged to the group now; None if it is removed."""
        if self.version == 2:
            return read_number(f"{self._own[0]}/memory.current")
        return read_number(f"{self._directories['memory']}/memory.usage_in_bytes")

    def cpu_s(self) -> float | None:
        """The processor time of all its processes; None without a counter, or if it is removed."""
        if self.version == 2:
            cpu_us = _keyed(self._read(f"{self._own[0]}/cpu.stat"), "usage_usec")
            return None if cpu_us is None else cpu_us / 1e6
        if "cpuacct" not in self._directories:
            return None
        cpu_ns = _number(self._read(f"{self._directories['cpuacct']}/cpuacct.usage"))
        return None if cpu_ns is None else cpu_ns / 1e9

    def counters(self) -> Counters:
        """The kernel's counters; one that this kernel lacks is None."""
        if self.version == 2:
            base = self._own[0]
            io = re.findall(r"[rw]bytes=(\d+)", self._read(f"{base}/io.stat"))
            return Counters(
                cpu_s=self.cpu_s(),
                memory_peak=_number(self._read(f"{base}/memory.peak")),
                out_of_memory=_keyed(self._read(f"{base}/memory.events"), "oom_kill") or 0,
                forks_refused=_keyed(self._read(f"{base}/pids.events"), "max") or 0,
                io_bytes=sum(map(int, io)) if "io" in self._directories else None,
            )
        where = self._directories
        memory = where["memory"]
        io_bytes = None
        if "blkio" in where:
            served = self._read(f"{where['blkio']}/blkio.throttle.io_service_bytes")
            io_bytes = _keyed(served, "Total") or 0
        return Counters(
            cpu_s=self.cpu_s(),
            memory_peak=_number(self._read(f"{memory}/memory.max_usage_in_bytes")),
            out_of_memory=_keyed(self._read(f"{memory}/memory.oom_control"), "oom_kill") or 0,
            forks_refused=_keyed(self._read(f"{where['pids']}/pids.events"), "max") or 0,
            io_bytes=io_bytes,
        )


def remove_groups(paths: Iterable[str]) -> None:
    """Kill the processes in these groups and remove them.

    A template's outer group contains its own group and those of its cells. Processes may be dying,
    and the kernel removes a group only when all are dead.
    """
    tries = _DISCARD_TRIES
    for outer in paths:
        nested: list[str] = []
        with suppress(OSError):
            nested = [each.path for each in os.scandir(outer) if each.is_dir(follow_symlinks=False)]
        for path in (*nested, outer):
            while not _remove_or_kill(path) and (tries := tries - 1) > 0:
                time.sleep(_DISCARD_PAUSE_S)


def _remove_or_kill(path: str) -> bool:
    """Whether the group is removed, or cannot be; otherwise its processes were killed again."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno != errno.EBUSY:
            return True
        for word in read_text(f"{path}/cgroup.procs").split():
            pid = int(word)
            if pid > 1:  # 0 stands for a process outside our PID namespace
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        return False
    return True


def read_text(path: str) -> str:
    """The whole lines of a kernel file; empty if it does not exist.

    The kernel delivers a long file in parts that end at page boundaries, and the first digits of a
    pid are the pid of another process.
    """
    try:
        with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            text = read_at_most(descriptor, _MAX_TEXT_BYTES)
    except OSError:
        return ""
    if len(text) >= _MAX_TEXT_BYTES:
        text = text[: text.rfind(b"\n") + 1]
    return text.decode("ascii", "replace")


def write_control(path: str, value: str) -> None:
    """Write one control file of a cgroup."""
    with closing_fd(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
        os.write(descriptor, value.encode())


def read_number(path: str) -> int | None:
    """The number in a kernel file; None if the file holds none or does not exist."""
    return _number(read_text(path))


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None


def _keyed(text: str, key: str) -> int | None:
    """The number after a key at the beginning of a line."""
    at = 0 if text.startswith(f"{key} ") else text.find(f"\n{key} ") + 1
    if at == 0 and not text.startswith(f"{key} "):
        return None
    return _number(text[at + len(key) :].partition("\n")[0])
