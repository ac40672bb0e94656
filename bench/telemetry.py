"""What telemetry costs a warm run: switched off, with metrics, with metrics and traces.

The paired medians carry the noise of the machine, which is larger than the effect. The share is the
processor time of exactly the calls that one action makes, divided by the fastest warm run without
telemetry in this process: on a busy machine the share of a usual run is smaller.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import anyio
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cellwall.core.outcomes import Event, EventKind, Outcome, Status
from cellwall.core.telemetry import OFF, Lifetime, Step, TelemetryPort
from cellwall.core.types import Action, RunCode
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal
from cellwall.runtime.wiring import open_app
from cellwall.telemetry.metrics import Metrics
from cellwall.telemetry.service import Telemetry
from cellwall.telemetry.traces import Traces

_CALLS = 2000
_STEPS = [step for step in Step if step is not Step.ASK]
_EVENT = Event(EventKind.INTENT, "act_x", "user", "sdk", {"status": "ok"})


def measure(rounds: int, *, quiet: bool) -> dict[str, float]:
    del quiet
    metrics = Telemetry(Metrics("bench"))
    processor = BatchSpanProcessor(InMemorySpanExporter())
    traces = Telemetry(Metrics("bench"), Traces(processor, version="bench"))
    ways: dict[str, TelemetryPort] = {"off": OFF, "metrics": metrics, "traces": traces}
    app = open_app(lifetime=Lifetime.PROGRAM)
    try:
        app.warm_up()
        taken = anyio.run(_rounds, app, ways, max(rounds, 20))
    finally:
        app.close()
        traces.close()
    whole_ms = {name: statistics.median(values) for name, values in taken.items()}
    figures = {f"{name}_run_p50_ms": round(value, 3) for name, value in whole_ms.items()}
    figures["off_run_fastest_ms"] = round(min(taken["off"]), 3)
    for name, way in ways.items():
        call_us = _per_action_us(way)
        figures[f"{name}_calls_us"] = round(call_us, 2)
        figures[f"{name}_share_percent"] = round(call_us / min(taken["off"]) / 10, 3)
    for name in ("metrics", "traces"):
        pairs = zip(taken[name], taken["off"], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        figures[f"{name}_over_off_ratio"] = round(ratio, 4)
    return figures


async def _rounds(app: App, ways: dict[str, TelemetryPort], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 5):
        for name, way in ways.items():
            runtime = replace(app.runtime, telemetry=way)
            app.audit.observe_with(way.note_event)
            await anyio.sleep(0.02)  # the next cell is ready
            started = time.perf_counter()
            outcome = await runtime.perform(_action())
            spent_ms = (time.perf_counter() - started) * 1000
            outcome.raise_for_status()
            if number >= 5 and outcome.sandbox_path == "warm":
                taken[name].append(spent_ms)
    shortest = min(map(len, taken.values()))
    return {name: values[:shortest] for name, values in taken.items()}


def _action() -> Action:
    return Action(principal=local_principal("sdk"), operation=RunCode("python", b"print(1)"))


def _per_action_us(way: TelemetryPort) -> float:
    """Exactly what the pipeline and the audit log call for one allowed run."""
    action = _action()
    decision = Decision(Verdict.ALLOW)
    outcome = Outcome(status=Status.OK, action_id=action.id, decision=decision, audit_id="aud_x")

    def one() -> None:
        watch = way.watch(action)
        for step in _STEPS:
            watch.step(step)
        if way is not OFF:  # a log without an observer calls nothing
            way.note_event(_EVENT, 0.001, is_written=True)
            way.note_event(_EVENT, 0.001, is_written=True)
        watch.end(outcome)

    return min(_timed(one) for _ in range(5)) * 1e6


def _timed(one: Callable[[], None]) -> float:
    started = time.thread_time()
    for _ in range(_CALLS):
        one()
    return (time.thread_time() - started) / _CALLS
