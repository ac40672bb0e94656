"""Heads of HTTP/1.1 and HTTP/2 messages, and the headers that are forwarded (NET-2). Pure.

h2 has parsed the heads of HTTP/2 already. They are checked again by the grammar of HTTP/1.1: a
server behind the next one may translate to HTTP/1.1, and must not find a line break.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Literal

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.hostnames import host_of
from cellwall.egress.protocols.http1_codec import RequestHead
from cellwall.egress.protocols.http1_framing import (
    BodyEnd,
    BodyLength,
    ErrorBuilder,
    Fields,
    Headers,
    bad_request,
    bad_response,
    check_name,
    fold_name,
    length_of,
    list_values,
)

Scheme = Literal["http", "https"]

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


class TargetForm(StrEnum):
    """The form of a request target (RFC 9112, 3.2)."""

    AUTHORITY = "authority"
    ABSOLUTE = "absolute"
    ORIGIN = "origin"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A client's request."""

    method: str
    form: TargetForm
    scheme: Scheme
    host: str
    """As `hostnames.host_of` writes it; an IPv6 address in brackets."""
    port: int
    path: str
    """With the query, as sent; empty for CONNECT."""
    headers: Fields
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


def read_request(head: RequestHead, *, scheme: Scheme) -> HttpRequest:
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
    host_header = _stated_host(headers, port if form is TargetForm.AUTHORITY else PORTS[scheme])
    if form is TargetForm.ORIGIN:
        if host_header is None:
            raise bad_request("it names no host")
        host, port = host_header
    elif host_header not in (None, (host, port)):
        # One of the two is authorized here, the other one may decide at the server.
        raise bad_request("its target and its Host header name different hosts")
    return HttpRequest(
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


def _target(method: str, target: str, scheme: Scheme) -> tuple[TargetForm, str, int, str]:
    check_method_and_target(method, target)
    if method == "CONNECT":
        if scheme == "https":
            raise bad_request("CONNECT inside an intercepted connection")
        host, port = host_and_port(target, None)
        return TargetForm.AUTHORITY, host, port, ""
    if target.startswith("/"):
        return TargetForm.ORIGIN, "", 0, target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise bad_request("its target is neither a path nor a URL")
    if match[1].lower() != scheme:
        raise bad_request(f"its URL is not one for {scheme}; use CONNECT for https")
    host, port = host_and_port(match[2], PORTS[scheme])
    return TargetForm.ABSOLUTE, host, port, match[3] if match[3].startswith("/") else f"/{match[3]}"


@lru_cache(maxsize=4096)
def host_and_port(text: str, default_port: int | None) -> tuple[str, int]:
    """The canonical host and port of `host:port`."""
    match = _AUTHORITY.fullmatch(text)
    if match is None or (match[2] is None and default_port is None):
        raise bad_request("a host is not written as `host:port`")
    port = int(match[2] or default_port or 0)
    if not 0 < port <= 0xFFFF:
        raise bad_request("there is no such port")
    try:
        host = host_of(match[1])
    except EgressRefused as error:
        raise bad_request(error.message) from None
    return f"[{host}]" if isinstance(host, IPv6Address) else str(host), port


def _stated_host(headers: Headers, default_port: int) -> tuple[str, int] | None:
    values = [value for name, value in headers if name == b"host"]
    if not values:
        return None
    if len(values) > 1:
        raise bad_request("it has more than one Host header")
    try:
        return host_and_port(values[0].decode("ascii"), default_port)
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


def end_to_end_headers(headers: Headers, *, bad: ErrorBuilder, is_upgrade: bool = False) -> Fields:
    """HTTP/1.1 headers without hop-by-hop headers.

    Transfer-Encoding stays: it states how the body is written anew.
    """
    named = frozenset(list_values(headers, b"connection"))
    if named & _KEPT:
        raise bad("its Connection header would remove a protected header")
    dropped = _HOP_BY_HOP | named
    forwarded = [
        (name, value)
        for name, value in headers
        if name not in dropped and not name.startswith(b"proxy-")
    ]
    if is_upgrade:
        forwarded += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    return forwarded


_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\x20-\x7e\x80-\xff\t]*[\x21-\x7e\x80-\xff])?)?")
_METHOD = re.compile(rb"[A-Z][A-Z0-9-]{0,31}")
_PATH = re.compile(rb"/[\x21-\x7e]*")
_STATUS = re.compile(rb"[1-5][0-9][0-9]")
_MAX_FIELDS = {"client": 100, "server": 200}
_REQUEST_PSEUDO_HEADERS = frozenset({b":method", b":scheme", b":authority", b":path"})
_CONNECTION_HEADERS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NOT_IN_TRAILERS = frozenset(
    b"host content-length content-encoding content-type content-range authorization cookie "
    b"set-cookie location te trailer expect".split()
)


def read_h2_request(headers: Headers) -> HttpRequest:
    """A client's request; `BadMessage` if it is ambiguous."""
    pseudo, fields = _split(headers, max_fields=_MAX_FIELDS["client"], bad=bad_request)
    if pseudo.get(b":method") == b"CONNECT" or b":protocol" in pseudo:
        raise bad_request("CONNECT inside an intercepted connection")
    if pseudo.keys() != _REQUEST_PSEUDO_HEADERS:
        raise bad_request("it needs exactly method, scheme, authority and path")
    if pseudo[b":scheme"] != b"https":
        raise bad_request("its scheme is not that of its connection")
    if _METHOD.fullmatch(pseudo[b":method"]) is None:
        raise bad_request("its method is malformed")
    if _PATH.fullmatch(pseudo[b":path"]) is None:
        raise bad_request("its target is not a path")
    method, path = pseudo[b":method"].decode("ascii"), pseudo[b":path"].decode("ascii")
    check_method_and_target(method, path)
    check_overrides(fields)
    length_of(fields, bad=bad_request)
    host, port = _host(pseudo[b":authority"])
    host_headers = [value for name, value in fields if name == b"host"]
    if len(host_headers) > 1 or any(_host(value) != (host, port) for value in host_headers):
        # One of the two is authorized here, the other one may decide at the server.
        raise bad_request("its authority and its Host header name different hosts")
    return HttpRequest(
        method=method,
        form=TargetForm.ORIGIN,
        scheme="https",
        host=host,
        port=port,
        path=path,
        headers=[pair for pair in fields if pair[0] != b"host"],
        is_upgrade=False,
    )


def read_h2_response(headers: Headers) -> tuple[int, Fields]:
    """Status and headers of a response."""
    pseudo, fields = _split(headers, max_fields=_MAX_FIELDS["server"], bad=bad_response)
    status = pseudo.get(b":status", b"")
    if pseudo.keys() != {b":status"} or _STATUS.fullmatch(status) is None or status == b"101":
        raise bad_response("its status is malformed")
    length_of(fields, bad=bad_response)
    return int(status), [pair for pair in fields if not pair[0].startswith(b"proxy-")]


def read_h2_trailers(headers: Headers) -> Fields:
    """Trailers of a response, without fields that change the meaning of the response."""
    pseudo, fields = _split(headers, max_fields=_MAX_FIELDS["server"], bad=bad_response)
    if pseudo:
        raise bad_response("it has a second head after its body")
    return [
        pair
        for pair in fields
        if pair[0] not in _NOT_IN_TRAILERS and not pair[0].startswith(b"proxy-")
    ]


class DeclaredLength:
    """Compares a body with its Content-Length. h2 does not check it if there is no DATA frame."""

    def __init__(self, fields: Fields, *, bad: ErrorBuilder) -> None:
        """`fields` are checked already: they state the length at most once."""
        length = length_of(fields, bad=bad)
        self._left = length if isinstance(length, int) else None
        self._bad = bad

    def add(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise self._bad("its body is longer than it says")

    def end(self) -> None:
        if self._left:
            raise self._bad("its body is shorter than it says")


def end_to_end_h2_headers(headers: Fields) -> Fields:
    """Headers of an HTTP/2 request without hop-by-hop headers."""
    return [
        (name, value)
        for name, value in headers
        # `te: trailers` stays: gRPC servers require it, and h2 allows no other value.
        if name not in (b"trailer", b"expect", b"http2-settings") and not name.startswith(b"proxy-")
    ]


def _split(
    headers: Headers, *, max_fields: int, bad: ErrorBuilder
) -> tuple[dict[bytes, bytes], Fields]:
    pseudo: dict[bytes, bytes] = {}
    fields: Fields = []
    for name, value in headers:
        if _VALUE.fullmatch(value) is None:
            raise bad("a header has a line end or another control character")
        if name.startswith(b":"):
            if fields or name in pseudo:
                raise bad("a pseudo-header comes twice, or behind the others")
            pseudo[name] = value
            continue
        if _NAME.fullmatch(name) is None:
            raise bad("a header's name is malformed")
        if name in _CONNECTION_HEADERS or (name == b"te" and value.lower() != b"trailers"):
            raise bad("it has a header that HTTP/2 forbids")
        check_name(name, bad=bad)
        fields.append((name, value))
    if len(fields) > max_fields:
        raise bad(f"it has more than {max_fields} header lines")
    return pseudo, fields


def _host(authority: bytes) -> tuple[str, int]:
    try:
        return host_and_port(authority.decode("ascii"), PORTS["https"])
    except UnicodeDecodeError:
        raise bad_request("its authority is not ASCII") from None
