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

from cellwall.core.errors import BadInput, Busy
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json, OutputSink, new_id
from cellwall.interfaces.http.rendering import outcome_json

MAX_RUNS = 32
"""Of one sandbox, running or kept."""
KEPT_S = 900.0
_MAX_KEY_CHARACTERS = 200

Work = Callable[[OutputSink], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One server-sent event."""

    number: int
    name: Literal["stdout", "stderr", "result", "outcome"]
    data: Json

    def encode(self) -> bytes:
        """The text of the event. JSON has no line break, so the data are one line."""
        data = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
        return f"id: {self.number}\nevent: {self.name}\ndata: {data}\n\n".encode()


class Run:
    """One run, its output so far and, at the end, its outcome."""

    def __init__(self) -> None:
        self.id = new_id("run")
        self.outcome: Outcome | None = None
        self.failure: BaseException | None = None
        self.ended_at: float | None = None
        self.scope = anyio.CancelScope()
        self._events: list[RunEvent] = []
        self._changed = anyio.Event()
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }

    def write(self, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        """Implements `OutputSink`."""
        if text := self._decoders[name].decode(chunk):
            self._add(name, {"text": text})

    def end(self, outcome: Outcome) -> None:
        """The last events: rest of the output, results, outcome."""
        for name, decoder in self._decoders.items():
            if text := decoder.decode(b"", final=True):
                self._add("stdout" if name == "stdout" else "stderr", {"text": text})
        for result in outcome.results:
            self._add("result", result)
        self.outcome = outcome
        self._add("outcome", outcome_json(outcome))

    def close(self) -> None:
        """No more events follow."""
        self.ended_at = time.monotonic()
        self._changed.set()

    def _add(self, name: Literal["stdout", "stderr", "result", "outcome"], data: Json) -> None:
        self._events.append(RunEvent(len(self._events) + 1, name, data))
        self._changed.set()
        self._changed = anyio.Event()

    async def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events behind this number, then those to come."""
        at = max(after, 0)
        while True:
            changed = self._changed
            while at < len(self._events):
                yield self._events[at]
                at += 1
            if self.ended_at is not None:
                return
            await changed.wait()

    async def wait(self) -> Outcome:
        """The outcome; raises what the run raised."""
        async for _ in self.events(len(self._events)):
            pass
        if self.failure is not None:
            raise self.failure
        if self.outcome is None:
            raise BadInput("the run was cancelled", code="CW-CANCELLED")
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

    def _joined(self, key: str, digest: str) -> Run | None:
        if not key or len(key) > _MAX_KEY_CHARACTERS:
            raise BadInput(f"an Idempotency-Key has 1 to {_MAX_KEY_CHARACTERS} characters")
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
            raise BadInput("no run of this sandbox has this id", hint=hint, code="CW-NO-RUN")
        return run

    def _forget(self) -> None:
        now = time.monotonic()
        for run in list(self._runs.values()):
            if run.ended_at is not None and now - run.ended_at > KEPT_S:
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
    except anyio.get_cancelled_exc_class():
        raise
    except Exception as error:  # noqa: BLE001  # raised to the client that waits
        run.failure = error
    finally:
        run.close()
