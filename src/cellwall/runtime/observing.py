"""Telemetry as configured: metrics, traces and logs of a process, wired to its runtimes (OBS-1)."""

# ruff: noqa: PLC0415  # late imports: a short process reports nothing and must not load exporters

from __future__ import annotations

import importlib.util
import logging
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import urlsplit

from cellwall.audit.redaction import redact_text
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.config.observability_section import ObservabilitySection
from cellwall.core.errors import BadInput, CellwallError, ConfigError
from cellwall.core.telemetry import Lifetime
from cellwall.telemetry.logs import LogRedactor, configure_logging
from cellwall.telemetry.service import Telemetry

if TYPE_CHECKING:
    from cellwall.audit.log import AuditLog
    from cellwall.runtime.approvals import ApprovalBroker
    from cellwall.runtime.secret_leases import RecordRedactor
    from cellwall.sandbox.governor import Governor
    from cellwall.sandbox.linux.native import NativeSandbox
    from cellwall.sandbox.linux.pool import Pool
    from cellwall.telemetry.metrics import Metrics
    from cellwall.telemetry.traces import Traces

_LOG_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 3.0
_INSTALL = "Run: pip install 'cellwall[otel]'"
log_redactor = LogRedactor(redact_text)
"""Of this process; each runtime adds the values of its vault."""


def open_telemetry(settings: Settings, lifetime: Lifetime) -> Telemetry | None:
    """The telemetry of one runtime; None if it would report nothing.

    A service has one in any case, for the lines of its log.
    """
    section = settings.observability
    has_metrics = lifetime is Lifetime.SERVICE and section.metrics == "on"
    has_traces = lifetime is not Lifetime.CALL and bool(section.otlp_endpoint)
    if not has_traces and lifetime is not Lifetime.SERVICE:
        return None
    return Telemetry(
        _metrics() if has_metrics else None, _open_traces(section) if has_traces else None
    )


def gauge_runtime(
    telemetry: Telemetry,
    audit: AuditLog,
    sandbox: NativeSandbox,
    pool: Pool,
    approvals: ApprovalBroker,
    governor: Governor,
) -> None:
    """Count the events of the audit log, and report what the runtime holds at the moment of each
    scrape, until it is closed."""
    if telemetry.metrics is None:
        return
    audit.observe_with(telemetry.note_event)
    from cellwall.telemetry.metrics import Gauges

    def gauges() -> Gauges:
        templates, ready = pool.counts()
        waiting, taken, places = governor.counts()
        hits, misses = pool.uses()
        return Gauges(
            running=sandbox.running_count,
            live=sandbox.live_count,
            ready=ready,
            templates=templates,
            approvals_waiting=approvals.waiting_count,
            actions=len(telemetry.running),
            waiting=waiting,
            taken=taken,
            free=max(0, places - taken),
            hits=hits,
            misses=misses,
        )

    telemetry.gauge_with(gauges)


def redact_logs(telemetry: Telemetry, redactor: RecordRedactor) -> None:
    """Remove values of the runtime's vault from the log of this process, until it is closed."""

    def redact(text: str) -> str:
        return str(redactor({"text": text})["text"])

    log_redactor.add(redact)
    telemetry.call_at_close(lambda: log_redactor.remove(redact))


def _metrics() -> Metrics:
    from cellwall import __version__
    from cellwall.telemetry.metrics import process_metrics

    return process_metrics(__version__)


def metrics_text() -> tuple[bytes, str]:
    """All metrics of this process in the Prometheus text format, and their content type.

    Raises `BadInput` if no runtime of this process counts anything: zeros would look like peace.
    """
    from cellwall.telemetry.metrics import CONTENT_TYPE, process_metrics

    if not process_metrics.cache_info().currsize:
        raise BadInput(
            "metrics are switched off",
            hint='Set metrics = "on" in [observability].',
            code="CW-METRICS-OFF",
        )
    return _metrics().text(), CONTENT_TYPE


def _open_traces(section: ObservabilitySection) -> Traces:
    from cellwall import __version__

    try:
        from cellwall.telemetry.traces import Traces, otlp_processor
    except ImportError:
        raise ConfigError(
            "observability.otlp_endpoint is set, but the exporter is not installed",
            hint=_INSTALL,
        ) from None
    processor = otlp_processor(section.otlp_endpoint)
    return Traces(processor, version=__version__, ratio=section.trace_ratio)


def log_to_file(path: str, environ: Mapping[str, str]) -> None:
    """Configure the log of this process: a file that is rotated."""
    from logging.handlers import RotatingFileHandler

    _configure(RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1), environ)


def log_to_stderr(
    environ: Mapping[str, str], *, config: str | None = None, profile: str | None = None
) -> None:
    """Configure the log of a service, whose standard error its service manager keeps.

    Without traces: they name paths of the host, and a journal has other readers.
    """
    _configure(logging.StreamHandler(), environ, config, profile, has_traces=False)


def _configure(
    handler: logging.Handler,
    environ: Mapping[str, str],
    config: str | None = None,
    profile: str | None = None,
    *,
    has_traces: bool = True,
) -> None:
    try:
        section = load_settings(file=config, profile=profile, environ=environ).observability
    except CellwallError:  # the clients get this error; the log must work all the same
        section = ObservabilitySection()
    configure_logging(
        handler,
        form=cast("Literal['json', 'text']", section.log_format),
        level=section.log_level,
        redact=log_redactor,
        has_traces=has_traces,
    )


def describe_telemetry(settings: Settings) -> tuple[Literal["info", "weak"], str, str, str]:
    """For the host check: the status, what is on, why, and a hint. Tries the collector."""
    section = settings.observability
    why = "how the supervisor and the service are watched"
    log = f"log {section.log_format} from {section.log_level}"
    found = f"metrics {section.metrics}, {log}"
    if not section.otlp_endpoint:
        return "info", f"{found}, no traces", why, ""
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        return "weak", f"{found}, no exporter for traces", why, _INSTALL
    parts = urlsplit(section.otlp_endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), _CONNECT_TIMEOUT_S).close()
    except OSError:
        hint = "Start the collector, or check observability.otlp_endpoint."
        return "weak", f"{found}, the collector for traces does not answer", why, hint
    return "info", f"{found}, traces are sent", why, ""
