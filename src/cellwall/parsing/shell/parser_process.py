"""The processes of the shell parser: one for each text, and the next one started ahead.

A process keeps no state, reads no file, gets no environment and reads one text from its standard
input. To start one takes longer than to parse: so a program that parses more than one text has a
process waiting, which ends by itself when its standard input is closed, however this one ends.
"""

from __future__ import annotations

import atexit
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from cellwall.core.forks import forget_in_child


class ParserOutput(NamedTuple):
    """What a process of the parser has printed, and its exit status."""

    status: int
    stdout: bytes
    stderr: bytes


class ParserProcesses:
    """`run` may be called by many threads at once."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._waiting: subprocess.Popen[bytes] | None = None
        self._is_used = False
        forget_in_child(self)
        atexit.register(self.close)

    def run(self, source: bytes, *, timeout_s: float) -> ParserOutput:
        """Raises `subprocess.TimeoutExpired`, and OSError where no process can be started."""
        process = self._take()
        if process is not None:
            output = _feed(process, source, timeout_s)
            if output.status >= 0:
                self._start_ahead()
                return output
            # The process was killed while it waited: that says nothing about the text.
        output = _feed(self._start(), source, timeout_s)
        # A program that parses one text, such as a hook, needs no second process.
        if self._is_used:
            self._start_ahead()
        self._is_used = True
        return output

    def close(self) -> None:
        """End the process that waits."""
        process = self._take()
        if process is not None:
            with process:
                process.kill()

    def forget_parent(self) -> None:
        process, self._waiting = self._waiting, None
        self._lock, self._is_used = threading.Lock(), False
        if process is not None:
            # Without these copies it ends with the process that started it.
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.returncode = 0  # not a child of this process

    def _take(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            process, self._waiting = self._waiting, None
        return process

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={},
            process_group=0,  # Ctrl-C must not end the one that waits
        )

    def _start_ahead(self) -> None:
        with self._lock:
            if self._waiting is None:
                with suppress(OSError):  # the next text starts its own, or is refused
                    self._waiting = self._start()


def _feed(process: subprocess.Popen[bytes], source: bytes, timeout_s: float) -> ParserOutput:
    with process:
        try:
            stdout, stderr = process.communicate(source, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return ParserOutput(process.returncode, stdout, stderr)
