"""Implements `TelemetryPort`: passes what happens on to metrics, traces and the log.

A failure in here is logged once and never reaches the action (OBS-1).
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from cellwall.core.outcomes import Event, Outcome
from cellwall.core.telemetry import OFF, ActionWatch, Step
from cellwall.core.types import Action
from cellwall.telemetry import names

if TYPE_CHECKING:
    from cellwall.telemetry.metrics import GaugeSource, Metrics
    from cellwall.telemetry.traces import ActionTrace, Traces

_log = logging.getLogger("cellwall.action")
_NO_CONTEXT = nullcontext()


class Telemetry:
    """The telemetry of one runtime; metrics are shared by all runtimes of the process."""

    def __init__(self, metrics: Metrics | None = None, traces: Traces | None = None) -> None:
        self.metrics, self._traces = metrics, traces
        self._at_close: list[Callable[[], object]] = []
        self.running: set[int] = set()
        """Ids of the watches of actions under way; a count would lose updates under threads."""

    def watch(self, action: Action) -> ActionWatch:
        try:
            trace = None if self._traces is None else self._traces.begin(action)
            return _MeasuredAction(self, action, trace)
        except Exception as error:  # noqa: BLE001  # telemetry never refuses an action
            _note_failure(error)
            return OFF.watch(action)

    def note_event(self, event: Event, seconds: float, *, is_written: bool) -> None:
        try:
            if self.metrics is not None:
                self.metrics.note_event(event, seconds, is_written=is_written)
        except Exception as error:  # noqa: BLE001  # telemetry never refuses an action
            _note_failure(error)

    def note_request(self, kind: str, seconds: float) -> None:
        try:
            if self.metrics is not None:
                self.metrics.note_request(kind, seconds)
        except Exception as error:  # noqa: BLE001  # telemetry never refuses an action
            _note_failure(error)

    def note_http(self, method: str, status: int, seconds: float) -> None:
        try:
            if self.metrics is not None:
                self.metrics.note_http(method, status, seconds)
        except Exception as error:  # noqa: BLE001  # telemetry never refuses an action
            _note_failure(error)

    def request(self, traceparent: str) -> AbstractContextManager[None]:
        return _NO_CONTEXT if self._traces is None else self._traces.request(traceparent)

    def gauge_with(self, source: GaugeSource) -> None:
        """Ask this function for gauges at each scrape, until `close`."""
        metrics = self.metrics
        if metrics is not None:
            metrics.add_source(source)
            self.call_at_close(lambda: metrics.remove_source(source))

    def call_at_close(self, callback: Callable[[], object]) -> None:
        self._at_close.append(callback)

    def close(self) -> None:
        for callback in self._at_close:
            callback()
        if self._traces is not None:
            self._traces.close()


class _MeasuredAction:
    __slots__ = ("_action", "_metrics", "_since", "_started", "_step", "_telemetry", "_trace")

    def __init__(self, telemetry: Telemetry, action: Action, trace: ActionTrace | None) -> None:
        self._telemetry, self._metrics = telemetry, telemetry.metrics
        self._action, self._trace = action, trace
        self._step: Step | None = None
        self._started = self._since = time.perf_counter()
        telemetry.running.add(id(self))

    def step(self, step: Step) -> None:
        if step is self._step:
            return
        now = time.perf_counter()
        try:
            if self._step is not None and self._metrics is not None:
                self._metrics.end_step(self._step, now - self._since)
            if self._trace is not None:
                self._trace.step(step)
        except Exception as error:  # noqa: BLE001  # telemetry never refuses an action
            _note_failure(error)
        self._step, self._since = step, now

    def fail(self, code: str) -> None:
        try:
            if self._step is not None and self._metrics is not None:
                self._metrics.fail_step(self._step)
            if self._trace is not None:
                self._trace.fail(code)
        except Exception as error:  # noqa: BLE001  # telemetry never refuses an action
            _note_failure(error)

    def end(self, outcome: Outcome | None) -> None:
        self._telemetry.running.discard(id(self))
        now = time.perf_counter()
        try:
            if self._metrics is not None:
                if self._step is not None:
                    self._metrics.end_step(self._step, now - self._since)
                operation = type(self._action.operation)
                self._metrics.end_action(operation, outcome, now - self._started)
            if self._trace is not None:
                self._trace.end(outcome)
            if _log.isEnabledFor(logging.INFO):
                self._write_line(outcome, now - self._started)
        except Exception as error:  # noqa: BLE001  # telemetry never refuses an action
            _note_failure(error)

    def _write_line(self, outcome: Outcome | None, seconds: float) -> None:
        """One line for each action. What it did is in the audit log, by the id."""
        fields = {
            "action_id": self._action.id,
            "operation": names.OPERATIONS.get(type(self._action.operation), names.OTHER),
            "interface": names.interface_of(self._action),
            "status": names.INTERRUPTED if outcome is None else outcome.status.value,
            "duration_ms": round(seconds * 1000, 3),
        }
        if outcome is not None:
            fields["verdict"] = outcome.decision.verdict.word
            fields["audit_id"] = outcome.audit_id
            if outcome.error is not None:
                fields["error_code"] = outcome.error.code
        if self._trace is not None and self._trace.trace_id:
            fields["trace_id"] = self._trace.trace_id
        _log.info("action", extra={"fields": fields})


def _note_failure(error: Exception) -> None:
    _log_once(type(error).__name__)


@functools.lru_cache(maxsize=32)
def _log_once(kind: str) -> None:
    _log.warning("telemetry failed: %s", kind)
