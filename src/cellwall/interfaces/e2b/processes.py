"""Programs that envd's clients start, and their output for one client or several.

Every read of output is an action of its own: judged, redacted and recorded. Cellwall hands out each
piece of output once, so the clients of one program share the reads: the client whose turn it is
reads, and puts the piece into the queue of every client. Output that no client waits for stays in
the sandbox, bounded, until a client connects.
"""

from __future__ import annotations

import logging
import signal
import time
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anyio

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.outcomes import NOT_STARTED, Outcome
from cellwall.core.types import Principal, ProcessInfo, ProcessOperation
from cellwall.interfaces.cli.interactive import ScreenFilter
from cellwall.interfaces.e2b.callers import Message, SandboxCaller
from cellwall.interfaces.e2b.problems import DeadlinePassed
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.problems import raise_for_refusal

_FOLLOW_S = 5.0
_KEEPALIVE_S = 30.0
_LOOK_EVERY_S = 30.0
"""Whether the sandbox of a program with a deadline still lives."""
_log = logging.getLogger("cellwall.http")
MAX_UNREAD_BYTES = 8 * 1024 * 1024
"""Of one client that reads slower than another."""


@dataclass(slots=True, eq=False)  # two empty queues are not the same queue
class _OutputQueue:
    """What one client has not been sent yet."""

    events: deque[Message] = field(default_factory=deque)
    unread_bytes: int = 0
    is_overrun: bool = False


class StreamedProcess:
    """A background program with its clients."""

    def __init__(self, info: ProcessInfo, *, tag: str | None, has_terminal: bool) -> None:
        self.id = info.id
        self.tag = tag
        self._has_terminal = has_terminal
        self._screen = ScreenFilter()
        """As for every terminal of the service: a client may show this output on a real one."""
        self._queues: list[_OutputQueue] = []
        self._reading = anyio.Lock()
        self._end: Message | None = None
        self._ended = anyio.Event()

    @property
    def is_ended(self) -> bool:
        return self._end is not None

    async def events(
        self, caller: SandboxCaller, *, deadline: float | None
    ) -> AsyncIterator[Message]:
        """`start`, then output, then `end`. Raises at the deadline, and once the client may not
        read any more."""
        queue = _OutputQueue()
        self._queues.append(queue)
        sent_at = time.monotonic()
        try:
            yield {"event": {"start": {"pid": self.id}}}
            while True:
                if queue.events:
                    # Another client may have read this piece: the token of this one still counts?
                    await caller.principal()
                while queue.events:
                    event = queue.events.popleft()
                    queue.unread_bytes = 0 if not queue.events else queue.unread_bytes
                    sent_at = time.monotonic()
                    yield {"event": event}
                    if "end" in event:
                        return
                if queue.is_overrun:
                    raise BadInput("output came faster than it was read", code="CW-TOO-LARGE")
                if time.monotonic() - sent_at > _KEEPALIVE_S:
                    sent_at = time.monotonic()
                    yield {"event": {"keepalive": {}}}
                async with self._reading:
                    if not queue.events:
                        await self._read(caller, _time_left(deadline))
        finally:
            self._queues.remove(queue)

    async def _read(self, caller: SandboxCaller, within_s: float) -> None:
        """One piece of output for all clients; nothing if none comes in time."""
        if self._end is not None:
            self._share({"end": self._end}, 0)
            return
        outcome = await self._perform(caller, "follow", within_s)
        self._share_output(outcome)
        info = outcome.payload
        if isinstance(info, ProcessInfo) and info.is_running:
            return
        for finding in outcome.findings:
            if finding.category == NOT_STARTED:
                raise BadInput(finding.message, code=finding.rule)
        self._share_output(await self._perform(caller, "read", within_s))
        self._end = _end_event(outcome)
        self._ended.set()
        self._share({"end": self._end}, 0)

    async def _perform(self, caller: SandboxCaller, name: Any, within_s: float) -> Outcome:  # noqa: ANN401  # one of two literals
        principal = await caller.principal()
        operation = ProcessOperation(name, self.id)
        return raise_for_refusal(
            await caller.sandbox.perform(principal, operation, timeout=within_s)
        )

    def _share_output(self, outcome: Outcome) -> None:
        names = ("pty", "pty") if self._has_terminal else ("stdout", "stderr")
        for name, data in zip(names, (outcome.stdout_bytes, outcome.stderr_bytes), strict=True):
            shown = self._screen.feed(data) if self._has_terminal else data
            if shown:
                self._share({"data": {name: b64encode(shown).decode("ascii")}}, len(shown))

    def _share(self, event: Message, size: int) -> None:
        for queue in self._queues:
            queue.unread_bytes += size
            queue.is_overrun |= queue.unread_bytes > MAX_UNREAD_BYTES
            if not queue.is_overrun:
                queue.events.append(event)

    def forget(self) -> None:
        """The program has ended without a client, or its sandbox has ended."""
        self._ended.set()

    async def kill_at(self, sandbox: OwnedSandbox, principal: Principal, deadline: float) -> None:
        """End the program at the deadline of its start, also where its client has left or may not
        use the sandbox any more."""
        while (left := deadline - time.monotonic()) > 0:
            with anyio.move_on_after(min(left, _LOOK_EVERY_S)):
                await self._ended.wait()
            if self._ended.is_set() or not sandbox.host.alive:
                return
        operation = ProcessOperation("signal", self.id, number=signal.SIGKILL)
        try:
            await sandbox.perform(principal, operation)
        except CellwallError:
            pass  # the sandbox has ended, and the program with it
        except Exception as error:  # noqa: BLE001  # a failed task would end the whole service
            _log.error("a command was not ended at its deadline: %s", type(error).__name__)


def _time_left(deadline: float | None) -> float:
    if deadline is None:
        return _FOLLOW_S
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlinePassed
    return min(_FOLLOW_S, max(left, 0.01))


def _end_event(outcome: Outcome) -> Message:
    code = outcome.exit_code
    if code is None:
        code = outcome.payload.exit_code if isinstance(outcome.payload, ProcessInfo) else None
    code = -1 if code is None else code
    found: Message = {"exitCode": code, "exited": True, "status": f"exit status {code}"}
    if outcome.limit is not None:
        found["error"] = f"ended by its {outcome.limit.value} limit"
    elif code:
        found["error"] = found["status"]
    return found
