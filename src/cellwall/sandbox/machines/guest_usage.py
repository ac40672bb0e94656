"""The usage of the code in a virtual machine: the counters that its kernel reports.

Code that has taken over that kernel can report less than it used. What bounds it then is on the
host: the cgroup of the emulator (memory, processes, processor share) and the wall time. No counter
falls, and no more processor time is believed than the host has given the machine: a report that
does either would change what other runs of the same account are charged.
"""

from __future__ import annotations

import os
import struct
import threading

from cellwall.sandbox.linux.run_cgroup import Counters, RunCgroup

_USAGE = struct.Struct("=5Q")  # struct usage in cell/link.h
USAGE_BYTES = _USAGE.size
_MAX_VALUE = 1 << 62


class GuestMeter:
    """Measures a cell in a machine: by the guest's counters, and by the group of the emulator."""

    def __init__(self, group: RunCgroup, usage_fd: int) -> None:
        """`usage_fd` is the memory to which the relay writes; borrowed."""
        self._group, self._usage_fd = group, usage_fd
        self._lock = threading.Lock()
        self._most = (0,) * 5

    def _read(self) -> tuple[int, ...]:
        try:
            text = os.pread(self._usage_fd, USAGE_BYTES, 0)
        except OSError:  # closed with the cell
            text = b""
        values = _USAGE.unpack(text) if len(text) == USAGE_BYTES else (0,) * 5
        now = tuple(min(value, _MAX_VALUE) for value in values)
        with self._lock:
            self._most = tuple(map(max, self._most, now))
            cpu, peak, _memory, *events = self._most
        return cpu, peak, now[2], *events  # the memory in use is no counter

    def _cpu_s(self, cpu_us: int, outside_s: float | None) -> float:
        return cpu_us / 1e6 if outside_s is None else min(cpu_us / 1e6, outside_s)

    def counters(self) -> Counters:
        cpu_us, memory_peak, _memory, out_of_memory, forks_refused = self._read()
        outside = self._group.counters()
        return Counters(
            cpu_s=self._cpu_s(cpu_us, outside.cpu_s),
            memory_peak=memory_peak,
            # The machine as a whole may not fit either: then the kernel of the host has killed it.
            out_of_memory=out_of_memory + outside.out_of_memory,
            forks_refused=forks_refused,
            io_bytes=outside.io_bytes,
        )

    def cpu_s(self) -> float | None:
        return self._cpu_s(self._read()[0], self._group.cpu_s())

    def memory_bytes(self) -> int | None:
        return self._read()[2]

    def pids(self) -> list[int]:
        """The relay and the emulator, which hold the machine's memory and files."""
        return self._group.pids()
