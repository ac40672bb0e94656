"""The processes of this host, as the kernel describes them in /proc/PID/stat.

A lookup of /proc/PID of a process that has just ended makes the kernel drop what it has cached of
that directory (d_invalidate), which the ending process does as well: the reader loops, without
sleeping, until the other one has had a processor. With hundreds of ending processes this took
seconds. A descriptor that was opened before needs no lookup, so a table that is read again keeps
its descriptors.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from cellwall.sandbox.files.descriptors import closing_fd

# Offsets in /proc/PID/stat after the command's closing parenthesis, proc_pid_stat(5).
_STATE, _PARENT, _FLAGS, _THREADS, _STARTED = 0, 1, 6, 17, 19
_EXITING = 0x4  # PF_EXITING: the kernel takes it apart, and no code of it runs again
_MAX_STAT_BYTES = 4096
_OTHER_DESCRIPTORS = 512
"""Left to the rest of this process."""


@dataclass(frozen=True, slots=True)
class CellProcess:
    """A process as the kernel describes it. A pid with its start time is never reused."""

    pid: int
    parent: int
    started: int
    state: str
    name: str

    @property
    def is_stopped(self) -> bool:
        return self.state in "Tt"


class ProcessTable:
    """All living processes; may be read again and again."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_files = max(0, soft - len(os.listdir("/proc/self/fd")) - _OTHER_DESCRIPTORS)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def read(self) -> dict[int, CellProcess]:
        """The processes by pid, without those that have ended or are about to."""
        listed = set(_listed_pids())
        for pid in self._files.keys() - listed:
            os.close(self._files.pop(pid))
        found: dict[int, CellProcess] = {}
        reused = set(self._read_all(listed, found))
        if reused:  # ended since, unless another process has the number now
            list(self._read_all(reused.intersection(_listed_pids()), found))
        return found

    def _read_all(self, pids: set[int], found: dict[int, CellProcess]) -> Iterator[int]:
        """Add the processes to `found`; yields the pids of those that ended."""
        for pid in pids:
            file = self._files.get(pid)
            try:
                if file is None:
                    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
                    self._files[pid] = file
                text = os.pread(file, _MAX_STAT_BYTES, 0)
            except OSError:
                if file is not None:
                    os.close(self._files.pop(pid))
                yield pid
                continue
            if len(self._files) > self._max_files:
                os.close(self._files.pop(pid))
            process = _parse(pid, text)
            if process is not None:
                found[pid] = process

    def is_same(self, process: CellProcess) -> bool:
        """Whether this process, and no other of its pid, is still there."""
        file = self._files.get(process.pid)
        if file is None:
            return start_time(process.pid) == process.started
        with suppress(OSError):
            now = _parse(process.pid, os.pread(file, _MAX_STAT_BYTES, 0))
            return now is not None and now.started == process.started
        return False


def start_time(pid: int) -> int:
    """When a process started, in ticks since boot; 0 for a process that is gone."""
    found = _read_process(pid)
    return 0 if found is None else found.started


def is_suspended(pid: int) -> bool:
    """Whether a process of ours was suspended, as the shims of frozen cells are."""
    found = _read_process(pid)
    return found is not None and found.is_stopped


def _listed_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _read_process(pid: int) -> CellProcess | None:
    try:
        with closing_fd(os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            return _parse(pid, os.read(descriptor, _MAX_STAT_BYTES))
    except OSError:
        return None


def _parse(pid: int, text: bytes) -> CellProcess | None:
    """None for a process that is gone, a zombie or on its way there: the kernel may need long to
    take its namespaces apart. The main thread of a living process may be dead as well, so that
    such a process counts by its threads."""
    before, _, after = text.rpartition(b")")
    fields = after.split()
    if len(fields) <= _STARTED:
        return None
    state = fields[_STATE].decode("ascii", "replace")
    is_ending = state in "ZX" or int(fields[_FLAGS]) & _EXITING
    if is_ending and int(fields[_THREADS]) <= 1:
        return None
    name = before.partition(b"(")[2].decode("utf-8", "replace")
    return CellProcess(pid, int(fields[_PARENT]), int(fields[_STARTED]), state, name)
