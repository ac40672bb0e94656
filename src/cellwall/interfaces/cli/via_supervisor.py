"""Has the supervisor carry out what was typed. Light: a warm run takes less than most imports."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from cellwall import __version__
from cellwall.core.errors import BadInput, CellwallError, SandboxFailed, make_error
from cellwall.core.home import shaping, state_path
from cellwall.interfaces.cli.main import REFUSED
from cellwall.interfaces.cli.options import read_bounded
from cellwall.interfaces.cli.run_output import Relay, write_all
from cellwall.interfaces.supervisor.client import Link, connect

if TYPE_CHECKING:
    from cellwall.interfaces.cli.options import SandboxOptions

_MAX_INPUT_BYTES = 64 * 1024 * 1024
_RECENT_S = 600.0
_STAMP = "last-run"
_DRAIN_S = 1.0


def supervisor_link() -> Link | None:
    """The supervisor, if one runs and is wanted."""
    if os.environ.get("CELLWALL_SUPERVISOR") == "off":
        return None
    return connect(os.environ)


def want_supervisor() -> None:
    """After a run without one: who runs again soon will find it waiting."""
    if os.environ.get("CELLWALL_SUPERVISOR") == "off":
        return
    stamp = os.path.join(state_path(os.environ), _STAMP)
    recent = False
    with suppress(OSError):
        recent = time.time() - os.stat(stamp).st_mtime < _RECENT_S
    with suppress(OSError):
        os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(stamp)
    if recent:
        from cellwall.runtime.home import start_supervisor  # noqa: PLC0415  # heavy

        with suppress(CellwallError, OSError):
            start_supervisor(os.environ, wait=False)


def run_remotely(
    link: Link, options: SandboxOptions, operation: Mapping[str, Any], data: bytes
) -> int | None:
    """The exit code; None if the supervisor could not take it, and nothing was run."""
    if options.secret:
        return None  # only here is a person who can be asked for the vault's passphrase
    if not _is_text(operation) or not _is_text(options.typed()):
        return None  # frames carry text; file names that are none are for the path without
    stdin = None
    if options.stdin:
        stdin = read_bounded(0, _MAX_INPUT_BYTES)
        if stdin is None:
            raise BadInput(
                f"standard input is larger than the {_MAX_INPUT_BYTES} bytes allowed",
                hint="Give the data as a file of the workspace.",
                code="CW-STDIN-TOO-LARGE",
            )
    message = {
        "do": "run",
        "version": __version__,
        "operation": operation,
        "options": options.typed(),
        "shaping": shaping(os.environ),
        "stdin": None if stdin is None else len(stdin),
    }
    ended = _Follower(link, options).follow(message, (stdin or b"") + data)
    if ended is None and stdin is not None:
        raise SandboxFailed(
            "the supervisor is of another version and has made room",
            hint="Run it again; standard input was read already.",
            code="CW-SUPERVISOR-STALE",
        )
    return ended


def _is_text(words: object) -> bool:
    try:
        json.dumps(words, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Follower:
    """Shows what comes, passes signals on, and ends as the run did."""

    def __init__(self, link: Link, options: SandboxOptions) -> None:
        self._link = link
        self._options = options
        self._as_json = options.as_json
        self._relay = None if options.as_json else Relay(spinner=True)
        self._stopped_by: signal.Signals | None = None
        self._is_sent = False
        # A signal that comes on the way into a system call would not end the wait in it; a byte
        # in this pipe does.
        self._awake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def follow(self, message: Mapping[str, Any], blob: bytes) -> int | None:
        before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._stop)
        ended = self._follow(message, blob)
        if ended is None:  # whoever goes on without the supervisor listens to signals again
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
        return ended

    def _follow(self, message: Mapping[str, Any], blob: bytes) -> int | None:
        try:
            self._link.send(message, blob)
            self._is_sent = True
        except OSError:
            return None if self._stopped_by is None else self._tell_stopped(None)
        while True:
            if self._is_unheard():
                self._link.close()  # which ends the run
                return self._unheard()
            frame = self._link.read()
            if frame is None:
                return self._gone() if self._stopped_by is None else self._tell_stopped(None)
            told, data = frame
            if "stale" in told:
                return None
            if "asking" in told:
                self._ask(str(told["asking"]))
                continue
            if "out" in told:
                if self._relay is not None:
                    self._relay.send(told["out"], data)
                continue
            return self._finish(told)

    def _ask(self, question_id: str) -> None:
        """The question is the supervisor's; the terminal, and so the person, is here."""
        import anyio  # noqa: PLC0415  # only here

        from cellwall.interfaces.cli.approval_prompt import answer_from_here  # noqa: PLC0415  # only here

        hush = nullcontext if self._relay is None else self._relay.hushed
        anyio.run(answer_from_here, question_id, self._options.config, self._options.profile, hush)

    def _stop(self, number: int, _frame: object) -> None:
        self._stopped_by = self._stopped_by or signal.Signals(number)
        if not self._is_sent:
            self._link.shut()  # a word in the middle of our request would be taken for its data
            return
        with suppress(OSError):
            self._link.send({"do": "stop"})

    def _is_unheard(self) -> bool:
        """Waits for a frame, or for our own output to be of no use to anybody."""
        while not self._link.has_buffered:
            ready = self._ready(self._link.fileno(), timeout_s=None)
            if self._relay is not None and self._relay.over in ready:
                return True
            if self._link.fileno() in ready:
                break
        return False

    def _drain(self) -> bool:
        """Until all is written or cannot be; False if a signal came and nobody reads."""
        if self._relay is None:
            return True
        self._relay.close()
        while True:
            ready = self._ready(timeout_s=None if self._stopped_by is None else _DRAIN_S)
            if self._relay.over in ready or not ready:
                return bool(ready)

    def _ready(self, *descriptors: int, timeout_s: float | None) -> set[int]:
        """Which of these, the relay's end and the pipe that signals write to can be read."""
        poll = select.poll()
        for descriptor in (*descriptors, self._awake):
            poll.register(descriptor, select.POLLIN)
        if self._relay is not None:
            poll.register(self._relay.over, select.POLLIN)
        ready = {found for found, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._awake in ready:
            os.read(self._awake, 4096)
        return ready

    def _unheard(self) -> int:
        assert self._relay is not None  # noqa: S101  # only then can it be unheard
        if isinstance(self._relay.failure, BrokenPipeError):
            return 128 + signal.SIGPIPE  # as every tool before `| head`
        from cellwall.interfaces.cli.output import UNWRITABLE, tell_error  # noqa: PLC0415  # only here

        tell_error(UNWRITABLE, as_json=False)
        return REFUSED

    def _gone(self) -> int:
        raise SandboxFailed(
            "the supervisor ended while this ran, and the run with it",
            hint="Run it again; a new supervisor is started when one is wanted.",
            code="CW-SUPERVISOR-GONE",
        )

    def _finish(self, told: Mapping[str, Any]) -> int:
        if not self._drain():
            return self._tell_stopped(told.get("workspace_id"))
        if self._relay is not None and self._relay.failure is not None:
            return self._unheard()
        if "error" in told:
            error = told["error"]
            kind = error.get("kind", "")
            raise make_error(kind, error["message"], hint=error["hint"], code=error["code"])
        if told.get("stopped"):
            return self._tell_stopped(told.get("workspace_id"))
        if self._as_json:
            write_all(1, json.dumps(told["outcome"]).encode("ascii") + b"\n")
        elif told["notes"]:
            from cellwall.interfaces.cli.output import say  # noqa: PLC0415  # only here

            if self._relay is not None:
                self._relay.end_line()
            for note in told["notes"]:
                say(note)
        return int(told["exit"])

    def _tell_stopped(self, workspace_id: str | None) -> int:
        from cellwall.interfaces.cli.execute import tell_stopped  # noqa: PLC0415  # heavy, seldom

        if self._relay is not None:
            self._relay.end_line()
        number = self._stopped_by or signal.SIGTERM
        return tell_stopped(number, workspace_id, as_json=self._as_json)
