"""The processes of a search, each in a session of its own: an interrupt ends all of them.

In a session of their own, since Ctrl-C would otherwise reach a target as an exception, which looks
like a finding.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress


class SearchStopped(Exception):
    """The search was interrupted: no process is started any more."""


class FuzzerProcesses:
    """Starts processes and ends them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopped = False

    @contextmanager
    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str], timeout_s: float
    ) -> Iterator[subprocess.Popen[str]]:
        """A process with its standard error as a pipe; dead behind the block, with its children.

        Killed after `timeout_s`, and then its exit code is that of the signal.
        """
        with self._lock:
            if self._is_stopped:
                raise SearchStopped
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=dict(environment),
                start_new_session=True,
            )
            self._running.add(process)
        timer = threading.Timer(timeout_s, _kill_group, [process])
        timer.daemon = True
        timer.start()
        try:
            with process:
                try:
                    yield process
                finally:
                    timer.cancel()
                    _kill_group(process)
        finally:
            with self._lock:
                self._running.discard(process)
        if self._is_stopped:
            raise SearchStopped

    def stop(self) -> None:
        """Ends all processes; `run` raises `SearchStopped` from now on."""
        with self._lock:
            self._is_stopped = True
            for each in self._running:
                _kill_group(each)


def _kill_group(process: subprocess.Popen[str]) -> None:
    # The leader has the number of the group until it is reaped, and only `run` reaps it.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
