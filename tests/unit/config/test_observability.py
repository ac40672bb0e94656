"""Where traces may go: a collector on this machine, or another one by TLS (OBS-1)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cellwall.config.observability_section import ObservabilitySection

GOOD = {
    "": "",
    "http://127.0.0.1:4318": "http://127.0.0.1:4318/v1/traces",
    "http://localhost:4318/": "http://localhost:4318/v1/traces",
    "http://[::1]:4318": "http://[::1]:4318/v1/traces",
    "https://otel.example/custom/path": "https://otel.example/custom/path",
}
BAD = [
    "127.0.0.1:4318",
    "ftp://127.0.0.1/",
    "http://",
    "http://collector:4318",
    "http://127.0.0.1.example/",
    "http://169.254.169.254/",
    "http://0.0.0.0:4318",
    "https://user:hunter2@otel.example/",
    "https://hunter2@otel.example/",
    "https://otel.example/?token=hunter2",
    "https://otel.example/#x",
    "https://otel.example:99999/",
    "https://otel.example/ x",
    "https://otel.example/\n",
    "https://ötel.example/",
    "x" * 3000,
]


@pytest.mark.parametrize("given", GOOD)
def test_a_collector_is_named_by_its_url(given: str) -> None:
    assert ObservabilitySection(otlp_endpoint=given).otlp_endpoint == GOOD[given]


@pytest.mark.requirement("OBS-1")
@pytest.mark.parametrize("given", BAD, ids=range(len(BAD)))
def test_another_url_is_refused_and_not_repeated_with_its_credentials(given: str) -> None:
    with pytest.raises(ValidationError) as error:
        ObservabilitySection(otlp_endpoint=given)
    assert "hunter2" not in str(error.value)


def test_another_machine_without_tls_is_a_weakened_setting() -> None:
    section = ObservabilitySection(
        otlp_endpoint="http://collector:4318", dangerously_without_tls=True
    )
    assert section.otlp_endpoint == "http://collector:4318/v1/traces"


@pytest.mark.parametrize(
    "values",
    [{"metrics": "yes"}, {"log_level": "trace"}, {"log_format": "xml"}, {"trace_ratio": 1.1}],
)
def test_an_unknown_word_or_ratio_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ObservabilitySection.model_validate(values)
