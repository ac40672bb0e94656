"""Runs in a sandbox and their events, which a client can read again after a lost connection.

A run belongs to its sandbox, not to the connection: it goes on when the client is gone, bounded by
its own limits, and its events are kept until a while after its end. With an `Idempotency-Key`, a
repeated request joins the run of the first one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.abc

from cellwall.core.errors import BadInput, Busy, CellwallError, NotFound
from cellwall.core.ids import new_id
from cellwall.core.outcomes import ErrorInfo, Outcome
from cellwall.core.text import plain
from cellwall.core.types import OutputSink
from cellwall.interfaces.http.rendering import outcome_json
from cellwall.interfaces.http.run_events import RunEvents, encode

MAX_RUNS = 32
"""Of one sandbox, running or kept."""
MAX_KEPT_CHARACTERS = 8 * 1024 * 1024
MAX_KEPT_EVENTS = 100_000
"""Of the ended runs of one sandbox; the oldest are forgotten beyond either."""
KEPT_S = 900.0
_FAILED = ErrorInfo("CW-INTERNAL", "the service failed on this run", "Try again.")
_CANCELLED = ErrorInfo("CW-CANCELLED", "the run was cancelled")

Work = Callable[[OutputSink], Awaitable[Outcome]]


class Run:
    """One run, its output so far and, at the end, its outcome."""

    def __init__(self) -> None:
        self.id = new_id("run")
        self.events = RunEvents()
        self.failure: BaseException | None = None
        self.ended_at: float | None = None
        self.scope = anyio.CancelScope()
        self._outcome: str | None = None
        """As JSON."""
        self._audit_id = ""
        self._kept_characters = 0

    @property
    def characters(self) -> int:
        """Of its output and its outcome."""
        return self.events.characters + self._kept_characters

    @property
    def audit_id(self) -> str:
        """Of the record of its outcome; empty until then."""
        return self._audit_id

    def end(self, outcome: Outcome) -> None:
        """The last events: rest of the output, or all of a run without a sink; results, outcome."""
        events = self.events
        if not events.count:
            events.write("stdout", outcome.stdout.encode("utf-8", "replace"))
            events.write("stderr", outcome.stderr.encode("utf-8", "replace"))
        events.end_output()
        for result in outcome.results:
            events.add("result", plain(result))
        self._outcome, self._audit_id = encode(outcome_json(outcome)), outcome.audit_id
        self._kept_characters = len(outcome.stdout) + len(outcome.stderr)
        events.add_encoded("outcome", self._outcome)

    def close(self) -> None:
        """No more events follow. Without an outcome the last one is the error."""
        if self._outcome is None:
            self.events.end_output()
            error = self.failure
            known = ErrorInfo.of(error) if isinstance(error, CellwallError) else _FAILED
            info = _CANCELLED if error is None else known
            self.events.add("error", {**info.to_json(), "audit_id": ""})
        self.ended_at = time.monotonic()
        self.events.close()

    async def wait(self) -> str:
        """The JSON of the outcome as clients see it; raises what the run raised."""
        while self.ended_at is None:
            await self.events.changed()
        if self.failure is not None:
            raise self.failure
        if self._outcome is None:
            raise _CANCELLED.to_exception()
        return self._outcome


class Runs:
    """The runs of one sandbox."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._runs: dict[str, Run] = {}
        self._by_key: dict[str, tuple[str, Run]] = {}

    def begin(self, work: Work, *, key: str | None, request: bytes) -> Run:
        """Start a run, or join the run of an earlier request with this key."""
        self._forget()
        digest = ""
        if key is not None:
            digest = hashlib.sha256(request).hexdigest()
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

    def knows(self, key: str) -> bool:
        """Whether a run with this key is under way or kept."""
        return key in self._by_key

    @property
    def count(self) -> int:
        """Of the runs that are under way or kept."""
        return len(self._runs)

    def output(self) -> str:
        """The output of all these runs, the oldest first."""
        return "".join(run.events.output() for run in self._runs.values())

    def output_under_way(self) -> str:
        """The output of the runs that have not ended, the oldest first."""
        running = (run for run in self._runs.values() if run.ended_at is None)
        return "".join(run.events.output() for run in running)

    def outputs(self) -> dict[str, str]:
        """The output of each ended run that is kept, by the id of its record."""
        return {
            run.audit_id: run.events.output() for run in self._runs.values() if run.audit_id != ""
        }

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
        expired_at = time.monotonic() - KEPT_S
        runs = self._runs.values()
        for run in [
            each for each in runs if each.ended_at is not None and each.ended_at < expired_at
        ]:
            self._drop(run)
        characters = events = 0
        ended = []
        for run in self._runs.values():
            if run.ended_at is not None:
                ended.append(run)
                characters += run.characters
                events += run.events.count
        for run in ended[:-1]:  # the newest stays, however large
            if characters <= MAX_KEPT_CHARACTERS and events <= MAX_KEPT_EVENTS:
                break
            characters -= run.characters
            events -= run.events.count
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
            run.end(await work(run.events.write))
    except Exception as error:  # noqa: BLE001  # raised to the client that waits
        run.failure = error
    finally:
        run.close()
