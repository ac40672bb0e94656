"""The section of the process of the service."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, Size, absolute_path, danger, listed, number, size
from cellwall.core.limits import GIB, KIB, MIB

_HOST_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){0,16}")
_LOCAL = "localhost"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach the address."""
    if host == _LOCAL:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_address(text: str) -> str:
    try:
        # Without a zone: `fe80::1%eth0` is an address of one interface.
        is_address = text == _LOCAL or ipaddress.ip_address(text).compressed == text.lower()
    except ValueError:
        is_address = False
    if not is_address or "%" in text:
        raise PydanticCustomError(
            "address", 'is not an address. Write for example "127.0.0.1", "::1" or "0.0.0.0".'
        )
    return text


def _check_host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        is_host = bool(ipaddress.ip_address(bare))
    except ValueError:
        is_host = bare == text and _HOST_NAME.fullmatch(text) is not None
    if not is_host:
        raise PydanticCustomError(
            "host",
            "is not a host name. Write it in lower case without a port, for example "
            '"cellwall.example.com".',
        )
    return f"[{bare}]" if ":" in bare else bare


def _check_preview(text: str) -> str:
    return _check_host(text) if text else text


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        named = _check_host(parts.hostname or "")
        port = parts.port
    except (ValueError, PydanticCustomError):
        return False
    plain = f"{parts.scheme}://{named}" + (f":{port}" if port is not None else "")
    return parts.scheme in {"http", "https"} and plain == text


def _check_origin(text: str) -> str:
    if not _is_origin(text):
        raise PydanticCustomError(
            "origin",
            'is not an origin. Write scheme, host and port alone, for example "https://app.example.com".',
        )
    return text


def _check_public_url(text: str) -> str:
    if text and not _is_origin(text):
        raise PydanticCustomError(
            "url",
            'is not an address without a path. Write for example "https://cellwall.example.com".',
        )
    if text.startswith("http:") and not is_loopback(urlsplit(text).hostname or ""):
        raise PydanticCustomError("url", "has no TLS. Write https://, or an address of loopback.")
    return text


class ServerSection(Section):
    """The process of `cellwall serve` (SRV-1, SRV-3)."""

    host: Annotated[str, AfterValidator(_check_address)] = Field(
        default="127.0.0.1",
        description="the address to listen on; beyond loopback only with TLS",
        max_length=64,
    )
    port: int = number(8750, "the port to listen on; 0 takes a free one", least=0, most=65_535)
    public_url: Annotated[str, AfterValidator(_check_public_url)] = Field(
        default="",
        description="the address that clients use, where a proxy stands in front; it is the issuer "
        "of access tokens. Left out, the address of the socket",
        max_length=300,
    )
    hosts: tuple[Annotated[str, AfterValidator(_check_host)], ...] = listed(
        (),
        "names under which clients may call the service, beside its address and public_url; other "
        "names are refused (DNS rebinding)",
        most=64,
    )
    origins: tuple[Annotated[str, AfterValidator(_check_origin)], ...] = listed(
        (), "web pages of these origins may call the service from a browser (CORS)", most=64
    )
    trusted_proxies: tuple[Annotated[str, AfterValidator(_check_address)], ...] = listed(
        (),
        "addresses of reverse proxies that append the client's address to X-Forwarded-For: limits "
        "by address then hold for each client, not for all of a proxy's together",
        most=64,
    )
    tls_certificate: Annotated[str, absolute_path("/etc/cellwall/tls/cert.pem")] | None = Field(
        default=None,
        description="the certificate with its chain (PEM); read again when it has changed",
        max_length=4096,
    )
    tls_key: Annotated[str, absolute_path("/etc/cellwall/tls/key.pem")] | None = Field(
        default=None,
        description="the private key of the certificate (PEM), not readable by other users",
        max_length=4096,
    )
    preview_domain: Annotated[str, AfterValidator(_check_preview)] = Field(
        default="",
        description="servers inside sandboxes are reached as PORT-SANDBOX below this domain, which "
        "needs a wildcard name and certificate and must hold nothing else. Left out: localhost, "
        "for a service on loopback",
        max_length=200,
    )
    max_sessions_per_user: int = number(
        20, "live sandboxes of one user; further ones are refused", least=1, most=10_000
    )
    max_kept_per_user: int = number(
        20, "ended sessions whose files one user keeps; 0 for none", least=0, most=10_000
    )
    max_kept_bytes_per_user: Size = size(
        10 * GIB, "size of all files that one user keeps", least=MIB, most=100_000 * GIB
    )
    max_body_bytes: Size = size(
        16 * MIB, "size of one request; larger ones are refused", least=KIB, most=GIB
    )
    max_file_bytes: Size = size(
        64 * MIB, "size of one file that a client writes", least=KIB, most=64 * GIB
    )
    max_connections: int = number(
        1000, "open connections; further ones are refused", least=8, most=100_000
    )
    request_timeout_s: float = number(
        30.0, "a connection is closed that has sent no whole request head by then, or whose body "
        "or answer has made no progress of 16 KiB", least=1.0, most=600.0,
    )  # fmt: skip
    drain_s: float = number(
        30.0, "after SIGTERM, requests under way have so long to end", least=0.0, most=3600.0
    )
    housekeeping_s: float = number(
        300.0, "expired tokens, old changes and old keys are looked for so often", least=1.0,
        most=86_400.0,
    )  # fmt: skip
    dangerously_without_tls: bool = danger(
        "listen beyond loopback without TLS: passwords, tokens and all data cross that network "
        "readable"
    )

    @model_validator(mode="after")
    def _check_tls(self) -> ServerSection:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise PydanticCustomError(
                "tls", "has only one of tls_certificate and tls_key. Write both, or none."
            )
        if self.tls_certificate is not None and self.public_url.startswith("http:"):
            # Cookies would lack the marks that keep them on TLS.
            raise PydanticCustomError(
                "tls", "has tls_certificate and a public_url without TLS. Write https://."
            )
        return self
