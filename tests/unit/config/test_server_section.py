"""[server]: what is accepted, and what is refused with a hint."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cellwall.config.models import Settings, weakened
from cellwall.core.errors import ConfigError

pytestmark = pytest.mark.requirement("SRV-3")
Load = Callable[[str | bytes], Settings]
Refusal = Callable[[str | bytes], ConfigError]


def test_the_default_is_loopback_without_other_names_or_origins(load_text: Load) -> None:
    server = load_text("").server
    assert (server.host, server.hosts, server.origins) == ("127.0.0.1", (), ())
    assert server.tls_certificate is None
    assert not server.dangerously_without_tls


@pytest.mark.parametrize(
    "line",
    [
        *('host = "::1"', 'host = "0.0.0.0"', 'host = "localhost"', "port = 0"),
        'hosts = ["cellwall.example.com", "10.0.0.1", "[::1]", "intra"]',
        'origins = ["https://app.example.com", "http://localhost:3000", "http://[::1]:8"]',
        *('public_url = "https://cellwall.example.com"', 'public_url = "http://127.0.0.1:8750"'),
        'tls_certificate = "/a"\ntls_key = "/b"',
    ],
)
def test_accepted(load_text: Load, line: str) -> None:
    load_text(f"[server]\n{line}\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('host = "example.com"', "is not an address"),
        ('host = "fe80::1%eth0"', "is not an address"),
        ('host = "127.1"', "is not an address"),
        ('host = ""', "is not an address"),
        ("port = 65536", ""),
        ("port = -1", ""),
        ('hosts = ["Example.com"]', "is not a host name"),
        ('hosts = ["example.com:80"]', "is not a host name"),
        ('hosts = ["*.example.com"]', "is not a host name"),
        ('hosts = ["*"]', "is not a host name"),
        ('hosts = [""]', "is not a host name"),
        ('origins = ["*"]', "is not an origin"),
        ('origins = ["null"]', "is not an origin"),
        ('origins = ["https://app.example.com/"]', "is not an origin"),
        ('origins = ["https://a.example@b.example"]', "is not an origin"),
        ('origins = ["https://app.example.com:x"]', "is not an origin"),
        ('origins = ["file:///"]', "is not an origin"),
        ('public_url = "https://a.example/path"', "is not an address without a path"),
        ('public_url = "http://a.example"', "has no TLS"),
        ('tls_certificate = "/a"', "has only one of"),
        ('tls_key = "/a"', "has only one of"),
        (
            'public_url = "http://127.0.0.1"\ntls_certificate = "/a"\ntls_key = "/b"',
            "a public_url without TLS",
        ),
        ('tls_certificate = "a"\ntls_key = "/b"', "is not an absolute path"),
        ("max_sessions_per_user = 0", ""),
        ("drain_s = -1.0", ""),
        ("drain_s = inf", ""),
        ("request_timeout_s = 0.0", ""),
    ],
)
def test_refused_with_the_setting_and_a_hint(refusal: Refusal, line: str, problem: str) -> None:
    text = str(refusal(f"[server]\n{line}\n"))
    assert "server" in text
    assert problem in text


def test_listening_without_tls_is_among_the_weakened_protections(load_text: Load) -> None:
    settings = load_text("[server]\ndangerously_without_tls = true\n")
    assert weakened(settings) == ("server.dangerously_without_tls",)
