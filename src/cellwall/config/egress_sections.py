"""The sections of egress and packages."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, Size, danger, listed, number, one_of, size, word
from cellwall.core.limits import GIB, KIB, MIB


def _check_url(text: str) -> str:
    if re.fullmatch(r"https?://[a-z0-9.-]+(?::\d{1,5})?(?:/[!-~]*)?", text) is None:
        raise PydanticCustomError("url", 'is not a URL. Write for example "https://pypi.org".')
    return text


_SERVER = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+)(?::(\d{1,5}))?")
_DNS_PORT = 53


def read_server(text: str) -> tuple[str, int] | None:
    """An address with an optional port: `192.0.2.1`, `[2001:db8::1]:5353`."""
    found = _SERVER.fullmatch(text)
    if found is None:
        return None
    host, port = found[1].strip("[]"), int(found[2] or _DNS_PORT)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return (host, port) if 0 < port < 65_536 else None


def _check_server(text: str) -> str:
    if read_server(text) is None:
        raise PydanticCustomError(
            "server", 'is not the address of a server. Write for example "192.0.2.53:53".'
        )
    return text


def _check_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise PydanticCustomError(
            "network", 'is not a network. Write for example "10.1.2.0/24" or "10.1.2.3/32".'
        ) from None
    return text


_Url = Annotated[str, Field(max_length=1024), AfterValidator(_check_url)]


def _check_license(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9*][A-Za-z0-9.+*-]{0,99}", text) is None:
        raise PydanticCustomError("license", "is not an SPDX id. Write for example AGPL-3.0-only.")
    return text


class PackagesSection(Section):
    """Packages that agents may install, through the registry proxy (PKG-1 to PKG-5)."""

    registries: tuple[Annotated[str, one_of("pypi", "npm")], ...] = listed(
        (), "registries that every sandbox may install from, beside those named for one run", most=2
    )
    pypi_url: _Url = Field(
        default="https://pypi.org", description="the index of Python packages, or a mirror"
    )
    pypi_file_urls: tuple[_Url, ...] = listed(
        ("https://files.pythonhosted.org",), "the servers of the index's files", most=8
    )
    npm_url: _Url = Field(
        default="https://registry.npmjs.org",
        description="the registry of npm packages, or a mirror",
    )
    feed_url: _Url = Field(
        default="https://osv-vulnerabilities.storage.googleapis.com",
        description="the advisories in OSV format",
    )
    min_age_days: int = number(
        7, "a version must have been public for so long; most attacks are found by then",
        least=0, most=365,
    )  # fmt: skip
    dangerously_build_sources: bool = danger(
        "versions without a wheel are built, in a sandbox without network or secrets: unknown code "
        "makes the wheels that later sandboxes install"
    )
    build_timeout_s: int = number(600, "a build from source may take so long", least=1, most=86_400)
    without_feed: Annotated[str, one_of("allow", "ask", "deny")] = word(
        "the verdict on a package while the feed is missing or old", "ask", "deny", "allow"
    )
    max_feed_age_days: int = number(
        14, "a feed that was not updated for longer counts as missing", least=1, most=365
    )
    without_rule: Annotated[str, one_of("allow", "ask", "deny")] = word(
        "the verdict on a package that no rule `Install(…)` of a policy file allows",
        "allow", "ask", "deny",
    )  # fmt: skip
    denied_licenses: tuple[Annotated[str, AfterValidator(_check_license)], ...] = listed(
        (), "SPDX ids of licenses that packages must not need; * stands for any text", most=256
    )
    unknown_license: Annotated[str, one_of("allow", "ask", "deny")] = word(
        "the verdict on a version whose registry names no SPDX license", "allow", "ask", "deny"
    )


class EgressSection(Section):
    """Network access of sandboxes (NET-2 to NET-7)."""

    allow_domains: tuple[Annotated[str, Field(max_length=1024)], ...] = listed(
        (),
        "domains that every sandbox and fetch may reach, beside those named for one run",
        most=10_000,
    )
    unknown: Annotated[str, one_of("deny", "ask")] = word(
        "a destination that no domain names: refused, or put to a person while the connection "
        "waits, at most `approvals.timeout_s`; no answer refuses it",
        "deny",
        "ask",
    )
    header_rules: tuple[Annotated[str, Field(max_length=2048)], ...] = listed(
        (),
        "headers that requests must have, must not have or get added, as in "
        "`api.example.com forbid x-admin`; TLS to such hosts is intercepted",
        most=1000,
    )
    max_connections: int = number(
        256, "concurrent connections of one sandbox; ends floods", least=1, most=65_536
    )
    max_total_connections: int = number(
        10_000, "connections of one sandbox in its lifetime", least=1, most=100_000_000
    )
    max_upload_bytes: Size = size(
        64 * MIB,
        "total upload of one sandbox; bounds exfiltration",
        least=KIB,
        most=1024 * GIB,
    )
    max_download_bytes: Size = size(
        4 * GIB, "total download of one sandbox", least=KIB, most=1024 * GIB
    )
    bytes_per_s: Size = size(
        512 * MIB, "bandwidth of one sandbox, both directions together", least=KIB, most=1024 * GIB
    )
    connect_timeout_s: float = number(
        10.0, "for the DNS lookup and the connection to one address", least=0.1, most=300.0
    )
    head_timeout_s: float = number(
        15.0,
        "for the first bytes of a connection or request; ends slow-loris clients",
        least=0.1,
        most=300.0,
    )
    idle_timeout_s: float = number(
        120.0, "an idle connection is closed after this time", least=0.1, most=86_400.0
    )
    personal_data: Annotated[str, one_of("off", "deny")] = word(
        "whether requests with personal data are refused; TLS to every host is then intercepted",
        "off",
        "deny",
    )
    dns_servers: tuple[Annotated[str, AfterValidator(_check_server)], ...] = listed(
        (), "DNS servers; left out, those of the system", most=8
    )
    fetch_max_bytes: Size = size(
        10 * MIB, "a fetched page is truncated at this size", least=KIB, most=GIB
    )
    fetch_timeout_s: float = number(
        30.0, "for a page with all its redirects", least=0.1, most=3600.0
    )
    dangerously_allow_addresses: tuple[Annotated[str, AfterValidator(_check_network)], ...] = (
        listed(
            (),
            "private networks to which allowed names may resolve, such as a mirror's; other "
            "addresses that are not public stay blocked",
            most=64,
        )
    )
