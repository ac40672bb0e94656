"""The flag of an emergency stop: while the file exists, nothing starts in the state folder (OBS-3).

Its existence is the whole meaning, so that a check is one stat(2), and so that a file cut short by
a full disk or a crash still stops. The content is for people: who stopped, when and why.

Order makes a stop safe against a run that starts at the same instant. A run registers its shim in
the ledger, then checks the flag, then releases its program; a stop sets the flag, then looks for
shims. Either the run sees the flag, or the stop sees the shim.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from cellwall.core.errors import Busy, CellwallError, Denied, SandboxFailed
from cellwall.core.types import Json
from cellwall.sandbox.files.descriptors import closing_fd, read_at_most

_NAME = "stopped"
_MAX_BYTES = 64 * 1024
_STOP_WITHIN_S = 0.2
_LIFT_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.01
_PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

FlagMark = tuple[int, int]


class StopFlag:
    """The flag of one state folder."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._path = os.path.join(home, _NAME)

    def is_set(self) -> bool:
        """Whether the file exists, as whatever kind; raises if that is unknown."""
        try:
            os.lstat(self._path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SandboxFailed(
                "the state of the emergency stop cannot be read, so nothing is started",
                hint="Check the permissions of the Cellwall state folder.",
                code="CW-STOP-UNKNOWN",
                detail=str(error),
            ) from error
        return True

    def is_known_set(self) -> bool:
        """The same where an unknown state has no effect of its own."""
        try:
            return self.is_set()
        except SandboxFailed:
            return False

    def check(self) -> None:
        """Raise `Denied` while the flag is set, and `SandboxFailed` if that is unknown."""
        if self.is_set():
            raise stopped()

    def cause_of(self, error: CellwallError) -> CellwallError:
        """A sandbox that failed while the flag is set was ended by the stop."""
        if not isinstance(error, SandboxFailed):
            return error
        if self.is_known_set():
            return stopped(detail=f"{error.code}: {error.message}: {error.detail}")
        return error

    def read(self) -> dict[str, Json] | None:
        """What the person who stopped has said; None if the flag is not set."""
        if not self.is_set():
            return None
        with suppress(OSError, ValueError, RecursionError):
            with closing_fd(os.open(self._path, os.O_RDONLY | _PLAIN)) as descriptor:
                found = json.loads(read_at_most(descriptor, _MAX_BYTES))
            if isinstance(found, dict):
                return found
        return {}

    def mark(self) -> FlagMark | None:
        """Another value after every `set`; None if the flag is not set."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def set(self, content: Mapping[str, Json]) -> None:
        """Set the flag; the content of a flag that is set already stays."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except FileExistsError:
            with suppress(OSError):  # a lift that is under way sees that there is another stop
                now_ns = time.time_ns()
                os.utime(self._path, ns=(now_ns, now_ns), follow_symlinks=False)
            return
        except OSError as error:
            raise SandboxFailed(
                "the emergency stop could not be recorded, so new runs are not refused",
                hint="Free space in the Cellwall state folder, then stop again; the service and "
                "the supervisor can be ended meanwhile.",
                code="CW-STOP-NOT-SET",
                detail=str(error),
            ) from error
        with closing_fd(descriptor), suppress(OSError):  # a full disk: the empty file stops as well
            os.write(descriptor, json.dumps(dict(content)).encode()[:_MAX_BYTES])

    def make_durable(self) -> None:
        """Flush the flag, so that a power cut does not lift it. After the cells have ended: a slow
        disk must not delay their end."""
        with suppress(OSError):
            for path, kind in ((self._path, 0), (self._home, os.O_DIRECTORY)):
                with closing_fd(os.open(path, os.O_RDONLY | _PLAIN | kind)) as descriptor:
                    os.fsync(descriptor)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While a stop is under way. Stops share the lock; a lift waits for all of them.

        A stop goes on without the lock after a moment: a lift that was suspended, or a full disk,
        must not keep it from its work.
        """
        try:
            lock = self._open_lock()
        except OSError:
            yield
            return
        with closing_fd(lock):
            _try_lock(lock, fcntl.LOCK_SH, within_s=_STOP_WITHIN_S)
            yield

    def lift(self, *, seen: FlagMark | None = None) -> bool:
        """Remove the flag, after every stop that is under way; whether it was set.

        `seen` is the mark of the stop that a person has decided to lift. A stop that came since is
        another one, which no person has looked at: it stays.
        """
        seen = seen or self.mark()
        try:
            with closing_fd(self._open_lock()) as lock:
                if not _try_lock(lock, fcntl.LOCK_EX, within_s=_LIFT_WITHIN_S):
                    raise Busy(
                        "a stop is still under way, so it is not lifted",
                        hint="Try again when `cellwall stop --all` has ended.",
                        code="CW-STOP-BUSY",
                    )
                if self.mark() not in (seen, None):
                    raise Busy(
                        "somebody has stopped everything again, so that stop is not lifted",
                        hint="Look at it with `cellwall stop --status`, then lift again.",
                        code="CW-STOP-BUSY",
                    )
                os.unlink(self._path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SandboxFailed(
                "the emergency stop could not be lifted",
                hint=f"Remove the file {_NAME!r} from the Cellwall state folder.",
                code="CW-STOP-NOT-LIFTED",
                detail=str(error),
            ) from error
        return True

    def _open_lock(self) -> int:
        return os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | _PLAIN, 0o600)


def _try_lock(lock: int, kind: int, *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_EVERY_S)
        else:
            return True


def stopped(*, detail: str = "") -> Denied:
    """The refusal while the flag is set."""
    return Denied(
        "everything was stopped by an administrator",
        hint="Nothing runs until a person lifts the stop: cellwall stop --lift.",
        code="CW-STOPPED",
        detail=detail,
    )
