"""What the path of an action reports about itself, and to whom (OBS-1).

The numbered steps of `runtime/pipeline.py` are named here. A `TelemetryPort` turns them into
metrics, traces and log lines; `OFF` does nothing and costs one call per step. Telemetry is no part
of the boundary: it may be lost, it never refuses an action, and it never raises into one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import Enum, StrEnum
from typing import Protocol

from cellwall.core.outcomes import Event, Outcome
from cellwall.core.types import Action


class Step(Enum):
    """The numbered steps of an action, in their order; the value is the name in metrics."""

    BOUND = "bound"
    WHO = "who"
    GUARD_INPUT = "guard-input"
    JUDGE = "judge"
    ASK = "ask"
    INTENT = "intent"
    LEASE = "lease"
    RUN = "run"
    GUARD_OUTPUT = "guard-output"
    OUTCOME = "outcome"


class Lifetime(StrEnum):
    """How long a process keeps its runtime, which decides what it reports.

    Nothing could read the metrics of a short process, and loading a trace exporter would take
    longer than its action.
    """

    CALL = "call"
    """One action, as `cellwall run` without a supervisor: no telemetry."""
    PROGRAM = "program"
    """A program that embeds the SDK: traces, if an endpoint is configured."""
    SERVICE = "service"
    """The supervisor and the HTTP service: metrics as well."""


class ActionWatch(Protocol):
    """Follows one action through its steps."""

    def step(self, step: Step) -> None:
        """Begin a step, which ends the step before. The step under way goes on."""

    def fail(self, code: str) -> None:
        """The step under way has failed with this error code."""

    def end(self, outcome: Outcome | None) -> None:
        """The action has ended. None: it was cancelled, or ended by a bug."""


class TelemetryPort(Protocol):
    """Receives what happens. No method raises, and none waits for anything outside."""

    def watch(self, action: Action) -> ActionWatch:
        """Begin an action."""

    def note_event(self, event: Event, seconds: float, *, is_written: bool) -> None:
        """An event of the audit log, and how long its write took."""

    def note_request(self, kind: str, seconds: float) -> None:
        """A request of a local client was answered: its latency as the client sees it."""

    def note_http(self, method: str, status: int, seconds: float) -> None:
        """An HTTP request was answered."""

    def request(self, traceparent: str) -> AbstractContextManager[None]:
        """Actions within the block belong to the trace of this W3C header, if it is well formed."""

    def close(self) -> None:
        """Deliver what is left, within seconds."""


class _NoWatch:
    __slots__ = ()

    def step(self, step: Step) -> None:
        pass

    def fail(self, code: str) -> None:
        pass

    def end(self, outcome: Outcome | None) -> None:
        pass


class _NoTelemetry:
    __slots__ = ()

    def watch(self, action: Action) -> ActionWatch:  # noqa: ARG002  # the port's signature
        return _NO_WATCH

    def note_event(self, event: Event, seconds: float, *, is_written: bool) -> None:
        pass

    def note_request(self, kind: str, seconds: float) -> None:
        pass

    def note_http(self, method: str, status: int, seconds: float) -> None:
        pass

    def request(self, traceparent: str) -> AbstractContextManager[None]:  # noqa: ARG002  # the same
        return _NO_CONTEXT

    def close(self) -> None:
        pass


_NO_WATCH = _NoWatch()
_NO_CONTEXT = nullcontext()
OFF: TelemetryPort = _NoTelemetry()
"""Telemetry that is switched off."""
