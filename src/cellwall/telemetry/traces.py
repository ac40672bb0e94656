"""OpenTelemetry spans of actions, sent by OTLP over HTTP from a thread of the SDK.

Attributes are those of names.py. Exceptions are never attached to a span: their messages and
traces quote commands, paths and values.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from cellwall.core.outcomes import Outcome
from cellwall.core.outcomes import Status as OutcomeStatus
from cellwall.core.telemetry import Step
from cellwall.core.types import Action
from cellwall.telemetry import names

_EXPORT_TIMEOUT_S = 3.0
_MAX_QUEUED = 8192
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ERROR_CODE = re.compile(r"CW-[A-Z0-9-]{1,60}")
_FAILED = frozenset({OutcomeStatus.DENIED, OutcomeStatus.ERROR})


def otlp_processor(endpoint: str) -> SpanProcessor:
    """Sends spans in batches; what does not fit into the queue is dropped."""
    session = requests.Session()
    # No proxy, no credentials of .netrc: the endpoint of the configuration is the only receiver.
    session.trust_env = False
    session.max_redirects = 0
    exporter = OTLPSpanExporter(endpoint, timeout=_EXPORT_TIMEOUT_S, session=session)
    return BatchSpanProcessor(exporter, max_queue_size=_MAX_QUEUED)


class Traces:
    """Makes the spans of actions."""

    def __init__(self, processor: SpanProcessor, *, version: str, ratio: float = 1.0) -> None:
        sampled = TraceIdRatioBased(ratio)
        # The flag in a client's header decides nothing: it could leave out the trace of an attack.
        sampler = ParentBased(
            sampled, remote_parent_sampled=sampled, remote_parent_not_sampled=sampled
        )
        # `Resource(…)`, not `Resource.create(…)`: no detector adds the host, the command line or
        # variables of the environment.
        resource = Resource({"service.name": "cellwall", "service.version": version})
        limits = SpanLimits(max_span_attributes=16, max_events=0, max_links=0)
        self._provider = TracerProvider(
            sampler=sampler, resource=resource, span_limits=limits, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("cellwall", version)

    def begin(self, action: Action) -> ActionTrace:
        return ActionTrace(self._tracer, action)

    @contextmanager
    def request(self, traceparent: str) -> Iterator[None]:
        """Continue the trace of a request. `tracestate` and baggage are not taken: they are free
        text of the client."""
        parent = _remote_parent(traceparent)
        if parent is None:
            yield
            return
        token = otel_context.attach(trace.set_span_in_context(parent, otel_context.Context()))
        try:
            yield
        finally:
            otel_context.detach(token)

    def close(self) -> None:
        """Send the rest. In a thread with a deadline: the SDK would try each queued batch against
        a collector that does not answer."""
        last = threading.Thread(target=self._provider.shutdown, name="cellwall-otlp", daemon=True)
        last.start()
        last.join(_EXPORT_TIMEOUT_S)


def _remote_parent(traceparent: str) -> NonRecordingSpan | None:
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    trace_id, span_id, flags = (int(text, 16) for text in found.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags & 1))
    return NonRecordingSpan(context) if context.is_valid else None


class ActionTrace:
    """The span of one action, and of the step that it is in."""

    __slots__ = ("_context", "_span", "_step", "_token", "_tracer")

    def __init__(self, tracer: trace.Tracer, action: Action) -> None:
        self._tracer = tracer
        self._step: trace.Span | None = None
        attributes = {
            "cellwall.action_id": action.id,
            "cellwall.operation": names.OPERATIONS.get(type(action.operation), names.OTHER),
            "cellwall.interface": names.interface_of(action),
        }
        self._span = tracer.start_span(names.ACTION_SPAN, attributes=attributes)
        self._context = trace.set_span_in_context(self._span)
        # Actions that code inside starts by calling host functions belong below this one.
        self._token = otel_context.attach(self._context)

    @property
    def trace_id(self) -> str:
        """As in logs; empty if the trace is not sampled."""
        context = self._span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    def step(self, step: Step) -> None:
        self._end_step()
        self._step = self._tracer.start_span(names.STEP_SPANS[step], context=self._context)

    def fail(self, code: str) -> None:
        if self._step is not None:
            _mark_failed(self._step, code)

    def end(self, outcome: Outcome | None) -> None:
        span = self._span
        if outcome is None:
            for each in (self._step, span):
                if each is not None:
                    each.set_attribute("cellwall.status", names.INTERRUPTED)
                    each.set_status(Status(StatusCode.ERROR))
        else:
            span.set_attribute("cellwall.verdict", outcome.decision.verdict.word)
            span.set_attribute("cellwall.status", outcome.status.value)
            span.set_attribute("cellwall.audit_id", outcome.audit_id)
            if outcome.limit is not None:
                span.set_attribute("cellwall.limit", outcome.limit.value)
            if outcome.error is not None and outcome.status in _FAILED:
                _mark_failed(span, outcome.error.code)
        self._end_step()
        span.end()
        otel_context.detach(self._token)

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.end()


def _mark_failed(span: trace.Span, code: str) -> None:
    span.set_attribute("cellwall.error_code", code if _ERROR_CODE.fullmatch(code) else names.OTHER)
    span.set_status(Status(StatusCode.ERROR))
