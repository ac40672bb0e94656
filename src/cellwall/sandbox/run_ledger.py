"""The ledger of live runs: enough, on disk, to clean up after a killed supervisor (ISO-8), and to
find every cell of a state folder for an emergency stop (OBS-3).

The shim cleans up in almost every case. After its own death or a power cut, the next start sweeps
the ledger: an entry that no process has locked belongs to a dead run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from cellwall.core.errors import BadInput, SandboxFailed, WorkspaceError
from cellwall.core.forks import OwnerProcess
from cellwall.core.ids import check_id
from cellwall.core.types import Json
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.linux.run_cgroup import remove_groups
from cellwall.sandbox.stop_flag import StopFlag

_MAX_ENTRY_BYTES = 1024 * 1024
_NUMBER_BYTES = 16


class LedgerEntry:
    """One live run; its lock lasts exactly as long as the process that created it."""

    def __init__(self, run_id: str, descriptor: int) -> None:
        self.id = run_id
        self._descriptor = descriptor
        self._notes: dict[str, Json] = {}

    def note_groups(self, paths: Iterable[str]) -> None:
        """Record the cgroups of the run, which a later sweep removes."""
        self._write(groups=list(paths))

    def note_shim(self, pid: int, started: int) -> None:
        """Record the shim before it starts anything; its start time tells a reused pid apart."""
        self._write(shim=[pid, started])

    def _write(self, **notes: Json) -> None:
        self._notes |= notes
        text = json.dumps(self._notes).encode()
        try:
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))
        except OSError as error:
            raise _unwritable(error) from error


def _unwritable(error: OSError) -> SandboxFailed:
    return SandboxFailed(
        "the ledger of runs cannot be written",
        hint="Check space and permissions of the Cellwall state folder.",
        code="CW-STATE",
        detail=str(error),
    )


def cell_tag(directory: str) -> str:
    """Marks the processes and cgroups of the cells of one ledger.

    A path could be read by other users on a command line. An inode number alone is used again once
    its file is deleted, and a random number alone is the same in a copy of the folder.
    """
    with closing_fd(_open_lock_file(directory)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # one process chooses the number
        number = os.pread(descriptor, _NUMBER_BYTES, 0)
        if len(number) < _NUMBER_BYTES:  # new, or truncated by a power cut
            number = os.urandom(_NUMBER_BYTES)
            os.pwrite(descriptor, number, 0)
        status = os.fstat(descriptor)
    known = f"{number.hex()}:{status.st_dev}:{status.st_ino}"
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _open_lock_file(directory: str) -> int:
    """Beside the directory, which holds only runs."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(f"{directory}.lock", flags, 0o600)


class RunLedger:
    """A directory with one file for each live run."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        os.makedirs(directory, mode=0o700, exist_ok=True)
        home = os.path.dirname(os.path.abspath(directory))
        self.tag = cell_tag(directory)
        self.stop_flag = StopFlag(home)
        self._guard = _open_lock_file(directory)

    def close(self) -> None:
        """Accept no more runs; open entries stay open until their runs end."""
        guard, self._guard = self._guard, -1
        if guard >= 0:
            os.close(guard)

    @contextmanager
    def _hold_guard(self) -> Iterator[None]:
        """Exclusive use: between its creation and its lock, an entry looks abandoned."""
        fcntl.flock(self._guard, fcntl.LOCK_EX)  # held for a few system calls only
        try:
            yield
        finally:
            fcntl.flock(self._guard, fcntl.LOCK_UN)

    @contextmanager
    def open(self, run_id: str) -> Iterator[LedgerEntry]:
        path = os.path.join(self.directory, check_id(run_id))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with self._hold_guard():
                descriptor = os.open(path, flags, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _unwritable(error) from error
        owner = OwnerProcess()
        try:
            yield LedgerEntry(run_id, descriptor)
        finally:
            if owner.is_current:  # a forked child only closes its copy
                with suppress(OSError):
                    os.unlink(path)
            os.close(descriptor)

    @contextmanager
    def hold_ended(self, run_id: str) -> Iterator[None]:
        """Exclusive use of the files of an ended run; refused while the run is alive."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.open(run_id))
            except SandboxFailed as error:
                if not isinstance(error.__cause__, FileExistsError):
                    raise
                raise WorkspaceError(
                    f"{run_id} is still in use",
                    hint="Wait until its run or session has ended, then try again.",
                    code="CW-WORKSPACE-BUSY",
                ) from None
            yield

    def live(self) -> frozenset[str]:
        """The ids of the runs and sessions with an entry."""
        return frozenset(os.listdir(self.directory))

    def sweep(self) -> tuple[str, ...]:
        """Clean up after dead supervisors; returns the ids of their runs and sessions."""
        swept = []
        for name in os.listdir(self.directory):
            with suppress(OSError, BadInput), self._hold_guard():
                self._sweep_one(os.path.join(self.directory, check_id(name)))
                swept.append(name)
        return tuple(swept)

    def _sweep_one(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with closing_fd(os.open(path, flags)) as descriptor:
            # Locked by a live supervisor: BlockingIOError, an OSError, skips the entry.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                notes = json.loads(os.pread(descriptor, _MAX_ENTRY_BYTES, 0) or b"{}")
            except (ValueError, RecursionError):
                notes = {}  # truncated by the crash: the groups were not created either
            groups = notes.get("groups") if isinstance(notes, dict) else None
            remove_groups(map(str, groups if isinstance(groups, list) else ()))
            os.unlink(path)
