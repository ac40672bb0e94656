"""Runs a command in the supervisor. Light: a warm run takes less time than most imports."""

# ruff: noqa: PLC0415  # late imports: a run in a warm supervisor takes less time than these modules

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cellwall.core.errors import BadInput, CellwallError, SandboxFailed
from cellwall.core.home import state_path
from cellwall.interfaces.cli.run_output import RunRenderer
from cellwall.interfaces.supervisor.client import (
    SupervisorConnection,
    connect,
    is_switched_off,
    is_text,
    raise_for_error,
)
from cellwall.interfaces.supervisor.requests import single_message

_MAX_INPUT_BYTES = 64 * 1024 * 1024
_RECENT_S = 600.0
_STAMP = "last-run"
_DRAIN_S = 1.0


def open_connection() -> SupervisorConnection | None:
    """A connection to the supervisor, if one runs and the user has not switched it off."""
    if is_switched_off(os.environ):
        return None
    return connect(os.environ)


def start_after_second_run() -> None:
    """Start a supervisor where this is the second run within ten minutes: more runs will follow."""
    if is_switched_off(os.environ):
        return
    stamp = os.path.join(state_path(os.environ), _STAMP)
    recent = False
    with suppress(OSError):
        recent = time.time() - os.stat(stamp).st_mtime < _RECENT_S
    with suppress(OSError):
        os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(stamp)
    if recent:
        from cellwall.runtime.home import start_supervisor

        with suppress(CellwallError, OSError):
            start_supervisor(os.environ, wait=False)


def run_in_supervisor(
    connection: SupervisorConnection,
    options: Mapping[str, Any],
    operation: Mapping[str, Any],
    data: bytes,
) -> int | None:
    """The exit code; None if the supervisor could not take the run, and nothing was run.

    `options` are those of `SandboxOptions.to_message`; one that is left out has its default.
    """
    began_ns = time.monotonic_ns()
    if options.get("secret"):
        return None  # the vault's passphrase is asked for at this terminal
    message = single_message(operation, began_ns=began_ns)
    if message is None or not is_text({**message, "options": options}):
        return None
    message["options"], stdin = options, None
    if options.get("stdin"):
        from cellwall.interfaces.sandbox_options import read_bounded

        stdin = read_bounded(0, _MAX_INPUT_BYTES)
        if stdin is None:
            raise BadInput(
                f"standard input is larger than the {_MAX_INPUT_BYTES} bytes allowed",
                hint="Give the data as a file of the workspace.",
                code="CW-STDIN-TOO-LARGE",
            )
        message["stdin"] = len(stdin)
    ended = _RemoteRun(connection, options).follow(message, (stdin or b"") + data)
    if ended is None and stdin is not None:
        raise SandboxFailed(
            "the supervisor did not take the run: it hangs, or belongs to another version",
            hint="Run the command again, with CELLWALL_SUPERVISOR=off if that does not help; its "
            "standard input was already read.",
            code="CW-SUPERVISOR-STALE",
        )
    return ended


class _RemoteRun:
    """Follows one run in the supervisor: shows its output, forwards signals, returns its end."""

    def __init__(self, connection: SupervisorConnection, options: Mapping[str, Any]) -> None:
        self._connection = connection
        self._as_json = bool(options.get("as_json"))
        self._configured = options.get("config"), options.get("profile")
        self._renderer = RunRenderer(as_json=self._as_json)
        self._relay = self._renderer.relay
        self._stopped_by: signal.Signals | None = None
        self._is_sent = False
        # A signal that arrives just before a system call would not interrupt the call; a byte in
        # this pipe does.
        self._wakeup, wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)

    def follow(self, message: Mapping[str, Any], blob: bytes) -> int | None:
        before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._stop)
        ended = self._follow(message, blob)
        if ended is None:  # a local run follows, which handles signals itself
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
        return ended

    def _follow(self, message: Mapping[str, Any], blob: bytes) -> int | None:
        if not self._connection.begin(message, blob):
            self._connection.close()
            return None if self._stopped_by is None else self._show_stopped(None)
        self._is_sent = True
        while True:
            if not self._wait_for_frame():
                self._connection.close()  # which ends the run
                failed = self._renderer.output_failure()
                assert failed is not None  # noqa: S101  # the relay ended before it was closed
                return failed
            frame = self._connection.read()
            if frame is None and self._stopped_by is not None:
                return self._show_stopped(None)
            if frame is None:
                raise SandboxFailed(
                    "the supervisor ended during the run, and the run ended with it",
                    hint="Run the command again; a new supervisor starts when one is needed.",
                    code="CW-SUPERVISOR-GONE",
                )
            answer, data = frame
            if "asking" in answer:
                self._ask(str(answer["asking"]))
            elif "out" not in answer:
                return self._finish(answer)
            elif self._relay is not None:
                self._relay.send(answer["out"], data)

    def _ask(self, question_id: str) -> None:
        """The supervisor has the question; the terminal, and so the person, is here."""
        import anyio

        from cellwall.interfaces.cli.approval_prompt import answer_from_here

        config, profile = self._configured
        anyio.run(answer_from_here, question_id, config, profile, self._renderer.hush)

    def _stop(self, number: int, _frame: object) -> None:
        self._stopped_by = self._stopped_by or signal.Signals(number)
        if not self._is_sent:
            self._connection.shut()  # a frame in the middle of the request would become its data
            return
        with suppress(OSError):
            self._connection.send({"do": "stop"})

    def _wait_for_frame(self) -> bool:
        """False where our own output cannot be written any more."""
        while not self._connection.has_buffered:
            ready = self._poll(self._connection.fileno(), timeout_s=None)
            if self._relay is not None and self._relay.over in ready:
                return False
            if self._connection.fileno() in ready:
                break
        return True

    def _drain(self) -> bool:
        """Wait until all output is written or failed; False after a signal if the reader stalls."""
        if self._relay is None:
            return True
        self._relay.close()
        while True:
            ready = self._poll(timeout_s=None if self._stopped_by is None else _DRAIN_S)
            if self._relay.over in ready or not ready:
                return bool(ready)

    def _poll(self, *descriptors: int, timeout_s: float | None) -> set[int]:
        """Which of the descriptors, the relay's end and the signal pipe are readable."""
        poll = select.poll()
        for descriptor in (*descriptors, self._wakeup):
            poll.register(descriptor, select.POLLIN)
        if self._relay is not None:
            poll.register(self._relay.over, select.POLLIN)
        ready = {number for number, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._wakeup in ready:
            os.read(self._wakeup, 4096)
        return ready

    def _finish(self, answer: Mapping[str, Any]) -> int:
        if not self._drain():
            return self._show_stopped(answer.get("workspace_id"))
        if (failed := self._renderer.output_failure()) is not None:
            return failed
        raise_for_error(answer)
        if answer.get("stopped"):
            return self._show_stopped(answer.get("workspace_id"))
        if self._as_json:
            self._renderer.show_json(json.dumps(answer["outcome"]).encode("ascii") + b"\n")
        else:
            self._renderer.show_notes(answer["notes"])
        return int(answer["exit"])

    def _show_stopped(self, workspace_id: str | None) -> int:
        return self._renderer.show_stopped(self._stopped_by or signal.SIGTERM, workspace_id)
