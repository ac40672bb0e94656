"""The usage of the code in a virtual machine: the counters that its kernel reports.

Code that has taken over that kernel can report what it likes. What bounds it then is on the host:
the cgroup of the emulator (memory, processes, processor share) and the wall time.
"""

from __future__ import annotations

import os
import struct

from cellwall.sandbox.linux.run_cgroup import Counters, RunCgroup

_USAGE = struct.Struct("=5Q")  # struct usage in cell/link.h
USAGE_BYTES = _USAGE.size
_MAX_VALUE = 1 << 62


class GuestMeter:
    """Measures a cell in a machine: by the guest's counters, and by the group of the emulator."""

    def __init__(self, group: RunCgroup, usage_fd: int) -> None:
        """`usage_fd` is the memory to which the relay writes; borrowed."""
        self._group, self._usage_fd = group, usage_fd

    def _read(self) -> tuple[int, ...]:
        try:
            text = os.pread(self._usage_fd, USAGE_BYTES, 0)
        except OSError:  # closed with the cell
            text = b""
        values = _USAGE.unpack(text) if len(text) == USAGE_BYTES else (0,) * 5
        return tuple(min(value, _MAX_VALUE) for value in values)

    def counters(self) -> Counters:
        cpu_us, memory_peak, _memory, out_of_memory, forks_refused = self._read()
        outside = self._group.counters()
        return Counters(
            cpu_s=cpu_us / 1e6,
            memory_peak=memory_peak,
            # The machine as a whole may not fit either: then the kernel of the host has killed it.
            out_of_memory=out_of_memory + outside.out_of_memory,
            forks_refused=forks_refused,
            io_bytes=outside.io_bytes,
        )

    def cpu_s(self) -> float | None:
        return self._read()[0] / 1e6

    def memory_bytes(self) -> int | None:
        return self._read()[2]

    def pids(self) -> list[int]:
        """The relay and the emulator, which hold the machine's memory and files."""
        return self._group.pids()
