"""Runs in a sandbox and their events, which a client can read again after a lost connection.

A run belongs to its sandbox, not to the connection: it goes on when the client is gone, bounded by
its own limits, and its events are kept until a while after its end. With an `Idempotency-Key`, a
repeated request joins the run of the first one.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import anyio
import anyio.abc

from cellwall.core.errors import BadInput, Busy, CellwallError, NotFound
from cellwall.core.outcomes import ErrorInfo, Outcome
from cellwall.core.text import plain
from cellwall.core.types import Json, OutputSink, new_id
from cellwall.interfaces.http.rendering import outcome_json

MAX_RUNS = 32
"""Of one sandbox, running or kept."""
MAX_KEPT_CHARACTERS = 8 * 1024 * 1024
"""Of the ended runs of one sandbox; the oldest are forgotten beyond it."""
KEPT_S = 900.0
_PING_S = 15.0
_FAILED = ErrorInfo("CW-INTERNAL", "the service failed on this run", "Try again.")
_CANCELLED = ErrorInfo("CW-CANCELLED", "the run was cancelled")

EventName = Literal["stdout", "stderr", "result", "outcome", "error"]
Work = Callable[[OutputSink], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One server-sent event."""

    number: int
    name: EventName
    data: Json

    def encode(self) -> bytes:
        """The text of the event. JSON has no line break, so the data are one line."""
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
        text = f"id: {self.number}\nevent: {self.name}\ndata: {data}\n\n"
        return text.encode("utf-8", "replace")


class Run:
    """One run, its output so far and, at the end, its outcome."""

    def __init__(self) -> None:
        self.id = new_id("run")
        self.outcome: Outcome | None = None
        self.failure: BaseException | None = None
        self.ended_at: float | None = None
        self.characters = 0
        self.scope = anyio.CancelScope()
        self._events: list[RunEvent] = []
        self._changed = anyio.Event()
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

    def write(self, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        """Implements `OutputSink`."""
        if text := self._decoders[name].decode(chunk):
            self.characters += len(text)
            self._add(name, {"text": text})

    def end(self, outcome: Outcome) -> None:
        """The last events: rest of the output, or all of a run without a sink; results, outcome."""
        if not self._events:
            self.write("stdout", outcome.stdout.encode("utf-8", "replace"))
            self.write("stderr", outcome.stderr.encode("utf-8", "replace"))
        for name, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                self._add("stdout" if name == "stdout" else "stderr", {"text": text})
        for result in outcome.results:
            self._add("result", plain(result))
        self.outcome = outcome
        self.characters += len(outcome.stdout) + len(outcome.stderr)
        self._add("outcome", outcome_json(outcome))

    def close(self) -> None:
        """No more events follow. Without an outcome the last one is the error."""
        if self.outcome is None:
            error = self.failure
            known = ErrorInfo.of(error) if isinstance(error, CellwallError) else _FAILED
            info = _CANCELLED if error is None else known
            self._add("error", {**info.to_json(), "audit_id": ""})
        self.ended_at = time.monotonic()
        self._changed.set()

    def _add(self, name: EventName, data: Json) -> None:
        self._events.append(RunEvent(len(self._events) + 1, name, data))
        self._changed.set()
        self._changed = anyio.Event()

    def output(self) -> str:
        """The text written so far."""
        texts = (each.data for each in self._events if each.name in {"stdout", "stderr"})
        return "".join(str(data["text"]) for data in texts if isinstance(data, dict))

    async def stream(self, after: int = 0) -> AsyncIterator[bytes]:
        """The encoded events behind this number, then those to come; pings in times of silence."""
        at = max(after, 0)
        while True:
            changed = self._changed
            while at < len(self._events):
                yield self._events[at].encode()
                at += 1
            if self.ended_at is not None:
                return
            with anyio.move_on_after(_PING_S) as scope:
                await changed.wait()
            if scope.cancelled_caught:
                yield b": ping\n\n"

    async def wait(self) -> Outcome:
        """The outcome; raises what the run raised."""
        while self.ended_at is None:
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure
        if self.outcome is None:
            raise _CANCELLED.to_exception()
        return self.outcome


class Runs:
    """The runs of one sandbox."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._runs: dict[str, Run] = {}
        self._by_key: dict[str, tuple[str, Run]] = {}

    def begin(self, work: Work, *, key: str | None, request: bytes) -> Run:
        """Start a run, or join the run of an earlier request with this key."""
        self._forget()
        digest = hashlib.sha256(request).hexdigest()
        if key is not None:
            joined = self._joined(key, digest)
            if joined is not None:
                return joined
        if len(self._runs) >= MAX_RUNS and not self._drop_oldest():
            raise Busy(
                f"{MAX_RUNS} runs of this sandbox are under way", hint="Wait for one of them."
            )
        run = Run()
        self._runs[run.id] = run
        if key is not None:
            self._by_key[key] = digest, run
        self._tasks.start_soon(_perform, run, work)
        return run

    @property
    def count(self) -> int:
        """Of the runs that are under way or kept."""
        return len(self._runs)

    def output(self) -> str:
        """The output of all these runs, the oldest first."""
        return "".join(run.output() for run in self._runs.values())

    def _joined(self, key: str, digest: str) -> Run | None:
        before = self._by_key.get(key)
        if before is None:
            return None
        if before[0] != digest:
            raise BadInput(
                "this Idempotency-Key was used for another request",
                hint="Use a new key for each new request.",
                code="CW-IDEMPOTENCY",
            )
        return before[1]

    def find(self, name: str) -> Run:
        """Raises for an unknown or forgotten run."""
        self._forget()
        run = self._runs.get(name)
        if run is None:
            hint = f"Events are kept for {KEPT_S / 60:.0f} minutes after the end of a run."
            raise NotFound("there is no such run", hint=hint)
        return run

    def _forget(self) -> None:
        now = time.monotonic()
        for run in list(self._runs.values()):
            if run.ended_at is not None and now - run.ended_at > KEPT_S:
                self._drop(run)
        ended = [run for run in self._runs.values() if run.ended_at is not None]
        characters = sum(run.characters for run in ended)
        for run in ended[:-1]:  # the newest stays, however large
            if characters <= MAX_KEPT_CHARACTERS:
                break
            characters -= run.characters
            self._drop(run)

    def _drop_oldest(self) -> bool:
        ended = (run for run in self._runs.values() if run.ended_at is not None)
        oldest = next(ended, None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, run: Run) -> None:
        del self._runs[run.id]
        self._by_key = {key: each for key, each in self._by_key.items() if each[1] is not run}


async def _perform(run: Run, work: Work) -> None:
    try:
        with run.scope:
            run.end(await work(run.write))
    except Exception as error:  # noqa: BLE001  # raised to the client that waits
        run.failure = error
    finally:
        run.close()
