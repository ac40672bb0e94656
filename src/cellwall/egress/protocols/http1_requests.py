"""An HTTP/1.1 request and the headers of it that are forwarded (NET-2). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Literal

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.hostnames import host_of
from cellwall.egress.protocols.http1_codec import RequestHead
from cellwall.egress.protocols.http1_framing import (
    BadMessage,
    BodyEnd,
    BodyLength,
    bad_request,
    bad_response,
    fold_name,
    length_of,
    list_values,
)

Scheme = Literal["http", "https"]
Headers = Sequence[tuple[bytes, bytes]]

PORTS: dict[str, int] = {"http": 80, "https": 443}
_ABSOLUTE = re.compile(r"(?i:(https?))://([^/?#]*)(.*)")
_AUTHORITY = re.compile(r"([^\[\]:@/?#\\]+|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,4}))?")
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings"}
)
_KEPT = frozenset(
    b"host content-length transfer-encoding content-type content-encoding content-range expect "
    b"authorization cookie set-cookie location range accept-encoding".split()
)
"""Removed by `Connection: authorization`, these would change the checked request."""
_METHOD_OVERRIDES = frozenset({b"x-http-method", b"x-http-method-override", b"x-method-override"})
_PATH_OVERRIDES = frozenset({b"x-original-url", b"x-rewrite-url"})


class Form(StrEnum):
    """The form of a request target (RFC 9112, 3.2)."""

    AUTHORITY = "authority"
    ABSOLUTE = "absolute"
    ORIGIN = "origin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A client's request."""

    method: str
    form: Form
    scheme: Scheme
    host: str
    """As `names.host_of` writes it; an IPv6 address in brackets."""
    port: int
    path: str
    """With the query, as sent; empty for CONNECT."""
    headers: list[tuple[bytes, bytes]]
    """Names in lower case."""
    is_upgrade: bool
    """To WebSocket. No other switch is allowed: `h2c` would hide the requests behind it."""

    @property
    def authority(self) -> str:
        """For the Host header."""
        return self.host if self.port == PORTS[self.scheme] else f"{self.host}:{self.port}"

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that a server may read from it; a rule must allow each of them."""
        others = [
            value.decode("latin-1").strip().upper()
            for name, value in self.headers
            if fold_name(name) in _METHOD_OVERRIDES
        ]
        return self.method, *others


def read_request(head: RequestHead, *, scheme: Scheme) -> Request:
    """Parse a head; `BadMessage` if it is ambiguous.

    `scheme` is that of the connection: `https` where TLS is intercepted.
    """
    if head.version not in (b"1.0", b"1.1"):
        raise bad_request("it is neither HTTP/1.1 nor HTTP/1.0")
    headers = list(head.headers)
    extent = length_of(headers, bad=bad_request)
    if extent is BodyEnd.CHUNKED and head.version == b"1.0":
        raise bad_request("HTTP/1.0 knows no Transfer-Encoding")
    check_overrides(headers)
    method = head.method.decode("ascii")
    form, host, port, path = _target(method, head.target.decode("ascii"), scheme)
    stated = _stated_host(headers, port if form is Form.AUTHORITY else PORTS[scheme])
    if form is Form.ORIGIN:
        if stated is None:
            raise bad_request("it names no host")
        host, port = stated
    elif stated not in (None, (host, port)):
        # One of the two is authorized here, the other one may decide at the server.
        raise bad_request("its target and its Host header name different hosts")
    if form is Form.AUTHORITY and extent not in (None, 0):
        raise bad_request("CONNECT has no body")
    return Request(
        method=method,
        form=form,
        scheme=scheme,
        host=host,
        port=port,
        path=path,
        headers=headers,
        is_upgrade=head.version == b"1.1" and _is_upgrade(method, headers, extent),
    )


def check_method_and_target(method: str, target: str) -> None:
    """Refuse methods and targets that no version of HTTP may have."""
    if method == "TRACE":
        raise bad_request("TRACE would return injected headers")
    if "#" in target:
        raise bad_request("its target has a fragment")


def check_overrides(headers: Headers) -> None:
    """Refuse headers from which a server may take another path than the authorized one."""
    if any(fold_name(name) in _PATH_OVERRIDES for name, _ in headers):
        raise bad_request("a header overrides the path of the request")


def _target(method: str, target: str, scheme: Scheme) -> tuple[Form, str, int, str]:
    check_method_and_target(method, target)
    if method == "CONNECT":
        if scheme == "https":
            raise bad_request("CONNECT inside an intercepted connection")
        host, port = host_and_port(target, None)
        return Form.AUTHORITY, host, port, ""
    if target.startswith("/"):
        return Form.ORIGIN, "", 0, target
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        raise bad_request("its target is neither a path nor a URL")
    if found[1].lower() != scheme:
        raise bad_request(f"its URL is not one for {scheme}; use CONNECT for https")
    host, port = host_and_port(found[2], PORTS[scheme])
    return Form.ABSOLUTE, host, port, found[3] if found[3].startswith("/") else f"/{found[3]}"


@lru_cache(maxsize=4096)
def host_and_port(text: str, default_port: int | None) -> tuple[str, int]:
    """The canonical host and port of `host:port`."""
    found = _AUTHORITY.fullmatch(text)
    if found is None or (found[2] is None and default_port is None):
        raise bad_request("a host is not written as `host:port`")
    port = int(found[2] or default_port or 0)
    if not 0 < port <= 0xFFFF:
        raise bad_request("there is no such port")
    try:
        host = host_of(found[1])
    except EgressRefused as error:
        raise bad_request(error.message) from None
    return f"[{host}]" if isinstance(host, IPv6Address) else str(host), port


def _stated_host(headers: Headers, default_port: int) -> tuple[str, int] | None:
    stated = [value for name, value in headers if name == b"host"]
    if not stated:
        return None
    if len(stated) > 1:
        raise bad_request("it has more than one Host header")
    try:
        return host_and_port(stated[0].decode("ascii"), default_port)
    except UnicodeDecodeError:
        raise bad_request("its Host header is not ASCII") from None


def _is_upgrade(method: str, headers: Headers, extent: BodyLength | None) -> bool:
    return (
        method == "GET"
        and extent in (None, 0)
        and b"upgrade" in list_values(headers, b"connection")
        and list_values(headers, b"upgrade") == [b"websocket"]
        and list_values(headers, b"sec-websocket-version") == [b"13"]
        and any(name == b"sec-websocket-key" for name, _ in headers)
    )


def end_to_end_request(headers: Headers, *, is_upgrade: bool = False) -> list[tuple[bytes, bytes]]:
    """Request headers without hop-by-hop headers.

    Transfer-Encoding stays: it states how the body is written anew.
    """
    return _end_to_end(headers, is_upgrade=is_upgrade, bad=bad_request)


def end_to_end_response(headers: Headers, *, is_upgrade: bool = False) -> list[tuple[bytes, bytes]]:
    """The same for a response."""
    return _end_to_end(headers, is_upgrade=is_upgrade, bad=bad_response)


def _end_to_end(
    headers: Headers, *, is_upgrade: bool, bad: Callable[[str], BadMessage]
) -> list[tuple[bytes, bytes]]:
    named = frozenset(list_values(headers, b"connection"))
    if named & _KEPT:
        raise bad("its Connection header would remove a protected header")
    dropped = _HOP_BY_HOP | named
    kept = [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith(b"proxy-")
    ]
    if is_upgrade:
        kept += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    return kept
