"""Prometheus metrics of this process.

One registry for each process, as scrapers expect: the runtimes of a supervisor count together.
Every label comes from the lists in names.py, so the number of time series is bounded.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from cellwall.core.forks import forget_in_child
from cellwall.core.outcomes import Event, EventKind, Finding, Outcome
from cellwall.core.telemetry import Step
from cellwall.core.types import Json
from cellwall.core.verdict import Verdict
from cellwall.telemetry import names
from cellwall.telemetry.names import Metric

CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a runtime holds at this moment."""

    running: int = 0
    live: int = 0
    ready: int = 0
    templates: int = 0
    approvals_waiting: int = 0
    actions: int = 0
    waiting: int = 0
    taken: int = 0
    free: int = 0
    hits: int = 0
    misses: int = 0
    """The last two only grow; those of a runtime that ended are kept."""

    def __add__(self, other: Gauges) -> Gauges:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(Gauges))
        return Gauges(*(one + two for one, two in pairs))


GaugeSource = Callable[[], Gauges]
_log = logging.getLogger("cellwall.telemetry")


class Metrics:
    """The metrics of one process. Safe for threads; a forked child starts from zero."""

    def __init__(self, version: str = "") -> None:
        self._version = version
        self._sources: list[GaugeSource] = []
        self._ended = Gauges()
        self._build()
        forget_in_child(self)

    def _build(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._lock = threading.Lock()
        registry.register(_GaugeCollector(self._gauges, self._version))
        ProcessCollector(registry=registry)
        self._actions = _LabelledCounter(names.ACTIONS, registry)
        self._action_s = _histograms(names.ACTION_SECONDS, registry)
        by_name = _histograms(names.STEP_SECONDS, registry)
        self._step_s = {step: by_name[step.value].observe for step in Step}
        self._step_failures = _LabelledCounter(names.STEP_FAILURES, registry)
        self._request_s = _histograms(names.REQUEST_SECONDS, registry)
        self._http_requests = _LabelledCounter(names.HTTP_REQUESTS, registry)
        self._http_s = _histograms(names.HTTP_SECONDS, registry)
        self._egress = _LabelledCounter(names.EGRESS, registry)
        self._secret_uses = _LabelledCounter(names.SECRET_USES, registry)
        audit = names.AUDIT_SECONDS
        self._audit_s = Histogram(audit.name, audit.help, buckets=audit.buckets, registry=registry)
        self._audit_failures = _LabelledCounter(names.AUDIT_FAILURES, registry)
        self._approvals = _LabelledCounter(names.APPROVALS, registry)
        self._findings = _LabelledCounter(names.FINDINGS, registry)
        self._limits = _LabelledCounter(names.LIMITS, registry)
        self._packages = _LabelledCounter(names.PACKAGES, registry)
        self._sign_ins = _LabelledCounter(names.SIGN_INS, registry)

    def forget_parent(self) -> None:
        """In a child: another thread of the parent may have held a lock of a metric."""
        self._sources, self._ended = [], Gauges()
        self._build()

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    # --- gauges

    def add_source(self, source: GaugeSource) -> None:
        """Ask this function for gauges at each scrape."""
        with self._lock:
            self._sources = [*self._sources, source]

    def remove_source(self, source: GaugeSource) -> None:
        last = self._read(source)
        with self._lock:
            self._ended += Gauges(hits=last.hits, misses=last.misses)
            self._sources = [each for each in self._sources if each is not source]

    def _gauges(self) -> Gauges:
        found = self._ended
        for source in self._sources:
            found += self._read(source)
        return found

    def _read(self, source: GaugeSource) -> Gauges:
        try:
            return source()
        except Exception as error:  # noqa: BLE001  # a runtime that ends at this moment
            _log.warning("a gauge could not be read: %s", type(error).__name__)
            return Gauges()

    # --- actions

    def end_step(self, step: Step, seconds: float) -> None:
        self._step_s[step](seconds)

    def fail_step(self, step: Step) -> None:
        self._step_failures.add(step.value)

    def end_action(self, operation: type, outcome: Outcome | None, seconds: float) -> None:
        """None: the action was cancelled or ended by a bug."""
        word = names.OPERATIONS.get(operation, names.OTHER)
        self._action_s[word].observe(seconds)
        if outcome is None:
            self._actions.add(word, Verdict.DENY.word, names.INTERRUPTED)
            return
        self._actions.add(word, outcome.decision.verdict.word, outcome.status.value)
        if outcome.limit is not None:
            self._limits.add(outcome.limit.value)
        if outcome.findings:
            self._count_findings(outcome.findings)

    def _count_findings(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            self._findings.add(
                names.FINDINGS.value("category", finding.category),
                names.FINDINGS.value("severity", finding.severity),
            )

    # --- requests

    def note_request(self, kind: str, seconds: float) -> None:
        self._request_s[names.REQUEST_SECONDS.value("request", kind)].observe(seconds)

    def note_http(self, method: str, status: int, seconds: float) -> None:
        known = names.HTTP_REQUESTS.value("method", method)
        self._http_requests.add(known, names.HTTP_REQUESTS.value("status", f"{status // 100}xx"))
        self._http_s[known].observe(seconds)

    # --- events of the audit log

    def note_event(self, event: Event, seconds: float, *, is_written: bool) -> None:
        """Count an event. Its body holds names that agents chose: none of them becomes a label."""
        self._audit_s.observe(seconds)
        if not is_written:
            self._audit_failures.add()
        match event.kind:
            case EventKind.CONNECTION:
                self._note_connection(event.body)
            case EventKind.APPROVAL:
                answer = names.APPROVALS.value("answer", event.body.get("verdict"))
                self._approvals.add(answer)
            case EventKind.SIGN_IN:
                result = str(event.body.get("status", "")).partition(",")[0]
                self._sign_ins.add(
                    names.SIGN_INS.value("method", event.body.get("change")),
                    names.SIGN_INS.value("result", result),
                )
            case _:
                pass

    def _note_connection(self, body: dict[str, Json]) -> None:
        match body.get("event"):
            case "opened":
                self._egress.add("allowed")
            case "refused":
                self._egress.add("refused")
            case "leak-refused":
                self._egress.add("leak")
            case "refused-more":
                count = body.get("count")
                self._egress.add("refused", count=count if isinstance(count, int) else 1)
            case "secret-used":
                self._secret_uses.add()
            case "package-served" | "package-refused" | "package-built" as what:
                self._packages.add(_ecosystem(body), str(what).removeprefix("package-"))
            case "package-verdict":
                verdict = str(body.get("verdict"))
                if verdict in {each.word for each in Verdict}:
                    self._packages.add(_ecosystem(body), verdict)
            case _:
                pass


def _ecosystem(body: dict[str, Json]) -> str:
    """Named as such, or as the type of a package URL, or before the name of a verdict."""
    package = str(body.get("package", "")).removeprefix("pkg:")
    found = body.get("ecosystem", package.partition(":")[0].partition("/")[0])
    return names.PACKAGES.value("ecosystem", found)


class _LabelledCounter:
    """A counter by the values of its labels; the children are looked up once."""

    __slots__ = ("_counter", "_increment")

    def __init__(self, metric: Metric, registry: CollectorRegistry) -> None:
        self._counter = Counter(metric.name, metric.help, tuple(metric.labels), registry=registry)
        self._increment: dict[tuple[str, ...], Callable[..., None]] = {}
        if not metric.labels:
            self._increment[()] = self._counter.inc

    def add(self, *values: str, count: float = 1) -> None:
        increment = self._increment.get(values)
        if increment is None:
            # Two threads may both look it up; the child is the same.
            increment = self._increment[values] = self._counter.labels(*values).inc
        increment(count)


def _histograms(metric: Metric, registry: CollectorRegistry) -> dict[str, Histogram]:
    """The children of a histogram with one label."""
    (label,) = metric.labels
    whole = Histogram(metric.name, metric.help, [label], buckets=metric.buckets, registry=registry)
    return {value: whole.labels(value) for value in metric.labels[label]}


class _GaugeCollector(Collector):
    """Asks for gauges at the moment of the scrape, so that nothing keeps them up to date."""

    def __init__(self, gauges: GaugeSource, version: str) -> None:
        self._gauges, self._version = gauges, version

    def collect(self) -> Iterator[MetricFamily]:
        found = self._gauges()
        for by_state in (names.CELLS, names.PLACES):
            family = GaugeMetricFamily(by_state.name, by_state.help, labels=["state"])
            for state in by_state.labels["state"]:
                family.add_metric([state], getattr(found, state))
            yield family
        uses = CounterMetricFamily(
            names.TEMPLATE_USES.name, names.TEMPLATE_USES.help, labels=["result"]
        )
        uses.add_metric(["hit"], found.hits)
        uses.add_metric(["miss"], found.misses)
        yield uses
        for metric, value in (
            (names.TEMPLATES, found.templates),
            (names.APPROVALS_WAITING, found.approvals_waiting),
            (names.ACTIONS_RUNNING, found.actions),
            (names.QUEUE, found.waiting),
        ):
            yield GaugeMetricFamily(metric.name, metric.help, value=value)
        build = GaugeMetricFamily(names.BUILD.name, names.BUILD.help, labels=["version"])
        build.add_metric([self._version], 1)
        yield build


@functools.cache
def process_metrics(version: str) -> Metrics:
    """The metrics of this process, made when a runtime first needs them."""
    return Metrics(version)
