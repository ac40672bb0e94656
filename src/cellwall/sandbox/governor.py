"""Bounds how many sandboxes run at once and how much memory is promised to them (LIM-4).

All processes of one user share the limit by files in one directory. A sandbox's slot is a file
`slot-NNNN` that its holder keeps locked; the file's content is the memory promised to it. The
kernel drops the lock when the holder dies, so a crash leaks no slot. Slots are assigned and counted
under `governor.lock`, which is held for microseconds and never while waiting.

`flock` belongs to the open file description: tasks and threads of one process exclude each other
like processes do. A holder that forks without exec shares its slots with the child, and the last of
the two to exit frees them. Cellwall does not do that, and exec closes the descriptors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum

import anyio

from cellwall.core.errors import BadInput, Busy, ConfigError, SandboxFailed
from cellwall.core.sandbox_ports import Slot
from cellwall.sandbox.files.descriptors import OPEN_TO_LIST
from cellwall.sandbox.linux.run_cgroup import read_text

_LOCK_NAME = "governor.lock"
_SLOT_NAME = re.compile(r"slot-(\d{4})", re.ASCII)
_SLOT_CONTENT = re.compile(rb"\d{20}\n")  # fixed width: one write replaces the whole content
_MAX_CONCURRENT = 10_000  # as many as four digits can number
_MAX_QUEUE_S = 86_400
_MIN_QUEUE_S = 5.0
"""In which a cell is opened on a busy host."""
_FIRST_PAUSE_S = 0.001
_MAX_PAUSE_S = 0.050

_SOME_AVG10 = re.compile(r"^some avg10=(\d{1,3}\.\d{1,4}) ", re.MULTILINE)
_MEM_AVAILABLE = re.compile(r"^MemAvailable: +(\d{1,15}) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The kernel's figures of the host's memory; None where a figure is missing (a PSI file exists
    but cannot be read if PSI is disabled)."""

    pressure_file: str = "/proc/pressure/memory"
    meminfo_file: str = "/proc/meminfo"

    def pressure_percent(self) -> float | None:
        """The share of the last ten seconds in which some task waited for memory."""
        match = _SOME_AVG10.search(read_text(self.pressure_file))
        return float(match[1]) if match else None

    def available_bytes(self) -> int | None:
        """Memory that is available without swapping."""
        match = _MEM_AVAILABLE.search(read_text(self.meminfo_file))
        return int(match[1]) * 1024 if match else None


_THIS_HOST = HostMemory()


class _Shortage(Enum):
    """The shortage at the end of the wait: code, message, hint."""

    PLACES = (
        "CW-BUSY",
        "no place was free for one more sandbox within the time allowed to wait",
        "Wait for a run to end, or raise the number of concurrent sandboxes.",
    )
    MEMORY = (
        "CW-BUSY",
        "the memory that may be promised to sandboxes is taken by those that run",
        "Wait for a run to end, ask for less memory, or raise the total that may be promised.",
    )
    TURN = (
        "CW-BUSY",
        "other processes kept the governor occupied for the time allowed to wait",
        "Try again; if it stays so, look for a stopped Cellwall process.",
    )
    PRESSURE = (
        "CW-MEMORY-PRESSURE",
        "the host is short of memory",
        "Try again when other programs use less memory.",
    )

    def error(self) -> Busy:
        code, message, hint = self.value
        return Busy(message, hint=hint, code=code)


class Governor:
    """Assigns slots to sandboxes; implements `GovernorPort`."""

    def __init__(
        self,
        directory: str,
        *,
        max_concurrent: int,
        max_promised_memory_bytes: int,
        queue_timeout_s: float,
        min_available_memory_bytes: int,
        max_memory_pressure_percent: float,
        host: HostMemory = _THIS_HOST,
        sample_every_s: float = 0.0,
    ) -> None:
        if not 1 <= max_concurrent <= _MAX_CONCURRENT:
            raise ConfigError(f"the number of concurrent sandboxes is from 1 to {_MAX_CONCURRENT}")
        if max_promised_memory_bytes < 1:
            raise ConfigError("the memory that may be promised must be at least one byte")
        if not 0 <= queue_timeout_s <= _MAX_QUEUE_S:
            raise ConfigError(f"the time to wait for a place is from 0 to {_MAX_QUEUE_S} s")
        self._max_concurrent = max_concurrent
        self._max_promised_memory_bytes = max_promised_memory_bytes
        self._queue_timeout_s = queue_timeout_s
        self._min_available_memory_bytes = min_available_memory_bytes
        self._max_memory_pressure_percent = max_memory_pressure_percent
        self._host = host
        self._sample_every_s, self._roomy_until = sample_every_s, 0.0
        self._directory = _open_directory(directory)
        # Sets and no counts, which would lose updates under threads.
        self._waiting: set[object] = set()
        self._held: set[object] = set()

    def counts(self) -> tuple[int, int, int]:
        """Of this process: runs that wait, places that are taken, and all places."""
        return len(self._waiting), len(self._held), self._max_concurrent

    def close(self) -> None:
        """Close the directory; leases that are still held stay valid."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)

    @asynccontextmanager
    async def lease(self, *, memory_bytes: int, waits: bool = True) -> AsyncIterator[Slot]:
        """Hold one slot and a promise of memory; raises `Busy` after the queue timeout. A caller
        that does not wait gets a free one at once, where all others wait for theirs."""
        if memory_bytes < 1:
            raise BadInput("a sandbox needs a promise of at least one byte of memory")
        if memory_bytes > self._max_promised_memory_bytes:
            # Waiting cannot help, so this is not `Busy`.
            raise BadInput(
                f"{memory_bytes} bytes of memory are more than all sandboxes together may have",
                hint=f"Ask for at most {self._max_promised_memory_bytes} bytes.",
                code="CW-TOO-LARGE",
            )
        mark = object()
        self._waiting.add(mark)
        try:
            if not waits and self._queue_timeout_s < _MIN_QUEUE_S:
                # An action would be refused for it, in the time that a cell takes to open.
                raise _Shortage.PLACES.error()
            timeout_s = self._queue_timeout_s if waits else 0.0
            number, descriptor = await self._wait_for_slot(memory_bytes, timeout_s)
        finally:
            self._waiting.discard(mark)
        self._held.add(mark)
        try:
            yield Slot(number, memory_bytes)
        finally:
            self._held.discard(mark)
            _unlock_and_close(descriptor)

    async def _wait_for_slot(self, memory_bytes: int, timeout_s: float) -> tuple[int, int]:
        deadline_s = anyio.current_time() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            slot = self._try_take(memory_bytes)
            if isinstance(slot, tuple):
                return slot
            left_s = deadline_s - anyio.current_time()
            if left_s <= 0:
                raise slot.error()
            # Jitter keeps waiting processes from meeting at the lock again and again.
            jitter = random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
            await anyio.sleep(min(left_s, pause_s * jitter))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _try_take(self, memory_bytes: int) -> tuple[int, int] | _Shortage:
        """A slot's number and locked descriptor, or the present shortage. Never blocks."""
        if self._is_under_pressure():
            return _Shortage.PRESSURE
        try:
            # A fresh description each time, or threads of this process would share the lock.
            lock = self._open(_LOCK_NAME)
            try:
                if not _try_lock(lock):
                    return _Shortage.TURN
                return self._take(memory_bytes)
            finally:
                _unlock_and_close(lock)
        except OSError as error:
            raise _broken(error) from None

    def _is_under_pressure(self) -> bool:
        """Sampled: the kernel renews its average every two seconds, and a sandbox that was just
        started has used nothing yet that the next look could see."""
        now = time.monotonic()
        if now < self._roomy_until:
            return False
        is_short = self._is_short_of_memory()
        self._roomy_until = 0.0 if is_short else now + self._sample_every_s
        return is_short

    def _is_short_of_memory(self) -> bool:
        pressure_percent = self._host.pressure_percent()
        available_bytes = self._host.available_bytes()
        if pressure_percent is None and available_bytes is None:
            raise SandboxFailed(
                "the state of the host's memory cannot be read, so nothing more is started",
                hint="Mount /proc so that /proc/meminfo or /proc/pressure/memory can be read.",
                code="CW-MEMORY-UNKNOWN",
            )
        if pressure_percent is not None and pressure_percent > self._max_memory_pressure_percent:
            return True
        # The requested memory is not subtracted: few runs reach their limit, and the sum of the
        # limits has a bound of its own.
        return available_bytes is not None and available_bytes < self._min_available_memory_bytes

    def _take(self, memory_bytes: int) -> tuple[int, int] | _Shortage:
        """The lowest free slot, if slots and memory suffice. Only under `governor.lock`."""
        free: dict[int, int] = {}
        try:
            held: set[int] = set()
            promised_bytes = 0
            # All files, not just the first `max_concurrent`: another process may be configured
            # for more, and its slots count.
            for name in os.listdir(self._directory):
                if (match := _SLOT_NAME.fullmatch(name)) is None:
                    continue
                number, descriptor = int(match[1]), self._open(name)
                if _try_lock(descriptor):
                    free[number] = descriptor
                else:
                    held.add(number)
                    promised_bytes += self._promised_bytes(descriptor)
            if len(held) >= self._max_concurrent:
                return _Shortage.PLACES
            if promised_bytes + memory_bytes > self._max_promised_memory_bytes:
                return _Shortage.MEMORY
            lowest = next(number for number in range(len(held) + 1) if number not in held)
            if lowest not in free:
                free[lowest] = self._open(f"slot-{lowest:04}")
                if not _try_lock(free[lowest]):
                    raise BlockingIOError(errno.EBUSY, "a slot was locked out of turn")
            os.pwrite(free[lowest], b"%020d\n" % memory_bytes, 0)
            os.ftruncate(free[lowest], 21)
            # Free files are removed so that a past burst does not make every later scan long.
            # Safe: slot files are opened only under `governor.lock`, so no process waits for them.
            for number in free.keys() - {lowest}:
                os.unlink(f"slot-{number:04}", dir_fd=self._directory)
            return lowest, free.pop(lowest)
        finally:
            for descriptor in free.values():
                _unlock_and_close(descriptor)

    def _promised_bytes(self, descriptor: int) -> int:
        """The memory promised to a held slot; closes the descriptor.

        Unreadable content counts as the whole total: counting too little would promise memory that
        the host does not have, counting too much only waits until the holder has exited.
        """
        try:
            content = os.pread(descriptor, 64, 0)
        finally:
            os.close(descriptor)
        if _SLOT_CONTENT.fullmatch(content) is None:
            return self._max_promised_memory_bytes
        return int(content)

    def _open(self, name: str) -> int:
        # No symlink, device, pipe or second hard link: writing the promise into a planted file
        # would damage its target.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._directory)
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_nlink != 1
        ):
            os.close(descriptor)
            raise PermissionError(errno.EPERM, "not a plain file of our own")
        return descriptor


def _open_directory(directory: str) -> int:
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        descriptor = os.open(directory, OPEN_TO_LIST)
    except OSError as error:
        raise _broken(error) from None
    status = os.fstat(descriptor)
    # A reader of a file can lock it: another user could hold every slot for ever.
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise _broken(PermissionError(errno.EPERM, "open to other users"))
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock_and_close(descriptor: int) -> None:
    """Unlock first: a child between fork and exec has a copy that would keep the lock alive."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _broken(error: OSError) -> SandboxFailed:
    return SandboxFailed(
        "the files that count running sandboxes cannot be used, so nothing was started",
        hint="Check that the state folder is yours, mode 0700 and not full; with no sandbox "
        "running, its governor folder can be removed.",
        code="CW-GOVERNOR-FAILED",
        detail=errno.errorcode.get(error.errno or 0, "unknown"),
    )
