"""The section of metrics, traces and logs."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, danger, number, one_of, word
from cellwall.config.server_section import is_loopback

_TRACES_PATH = "/v1/traces"


def _check_endpoint(text: str) -> str:
    if not text:
        return text
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_url = is_url and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, is_url = urlsplit(""), False
    has_rest = bool(parts.query or parts.fragment)
    if not is_url or has_rest or not text.isascii() or not text.isprintable() or " " in text:
        raise PydanticCustomError(
            "url", 'is not the URL of a collector. Write for example "http://127.0.0.1:4318".'
        )
    if parts.username is not None or parts.password is not None:
        raise PydanticCustomError(
            "secret",
            "contains credentials. Set the variable OTEL_EXPORTER_OTLP_HEADERS for the service.",
        )
    return text if parts.path.strip("/") else f"{text.rstrip('/')}{_TRACES_PATH}"


class ObservabilitySection(Section):
    """Metrics, traces and logs of the supervisor and the service (OBS-1)."""

    metrics: Annotated[str, one_of("on", "off")] = word(
        "count what happens, for Prometheus: `/metrics` of the service, "
        "`cellwall supervisor metrics`",
        "on",
        "off",
    )
    otlp_endpoint: Annotated[str, AfterValidator(_check_endpoint)] = Field(
        default="",
        description="a collector that gets a trace of each action by OTLP over HTTP, such as "
        "`http://127.0.0.1:4318`; needs `pip install 'cellwall[otel]'`; left out, no traces",
        max_length=2048,
    )
    trace_ratio: float = number(
        1.0, "the share of traces that is sent, by their ids", least=0.0, most=1.0
    )
    log_format: Annotated[str, one_of("json", "text")] = word(
        "one JSON object for each line of the log, or text", "json", "text"
    )
    log_level: Annotated[str, one_of("warning", "error", "info", "debug")] = word(
        "the least severity that is logged; `info` writes a line for each action",
        "warning",
        "error",
        "info",
        "debug",
    )
    dangerously_without_tls: bool = danger(
        "send traces to another machine without TLS, where others can read and change them"
    )

    @model_validator(mode="after")
    def _check_tls(self) -> ObservabilitySection:
        endpoint = urlsplit(self.otlp_endpoint)
        is_readable = endpoint.scheme == "http" and not is_loopback(endpoint.hostname or "")
        if is_readable and not self.dangerously_without_tls:
            raise PydanticCustomError(
                "url", "names another machine without TLS. Use https, or a collector on loopback."
            )
        return self
