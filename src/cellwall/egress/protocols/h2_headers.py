"""Heads of HTTP/2 messages, parsed as strictly as those of HTTP/1.1, into the same form. Pure.

h2 has parsed them already. They are checked again by the grammar of HTTP/1.1: a server behind the
next one may translate to HTTP/1.1, and must not find a line break.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from cellwall.egress.protocols.http1_framing import (
    BadMessage,
    Fields,
    bad_request,
    bad_response,
    check_name,
    length_of,
)
from cellwall.egress.protocols.http1_requests import (
    PORTS,
    Form,
    Request,
    check_method_and_target,
    check_overrides,
    host_and_port,
)

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\x20-\x7e\x80-\xff\t]*[\x21-\x7e\x80-\xff])?)?")
_METHOD = re.compile(rb"[A-Z][A-Z0-9-]{0,31}")
_PATH = re.compile(rb"/[\x21-\x7e]*")
_STATUS = re.compile(rb"[1-5][0-9][0-9]")
_MAX_FIELDS = {"client": 100, "server": 200}
_OF_A_REQUEST = frozenset({b":method", b":scheme", b":authority", b":path"})
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_NOT_IN_TRAILERS = frozenset(
    b"host content-length content-encoding content-type content-range authorization cookie "
    b"set-cookie location te trailer expect".split()
)

Headers = Iterable[tuple[bytes, bytes]]
Bad = Callable[[str], BadMessage]


def read_head(headers: Headers) -> Request:
    """A client's request; `BadMessage` if it is ambiguous."""
    pseudo, fields = _split(headers, most=_MAX_FIELDS["client"], bad=bad_request)
    if pseudo.get(b":method") == b"CONNECT" or b":protocol" in pseudo:
        raise bad_request("CONNECT inside an intercepted connection")
    if pseudo.keys() != _OF_A_REQUEST:
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
    stated = [value for name, value in fields if name == b"host"]
    if len(stated) > 1 or any(_host(value) != (host, port) for value in stated):
        # One of the two is authorized here, the other one may decide at the server.
        raise bad_request("its authority and its Host header name different hosts")
    return Request(
        method=method,
        form=Form.ORIGIN,
        scheme="https",
        host=host,
        port=port,
        path=path,
        headers=[pair for pair in fields if pair[0] != b"host"],
        is_upgrade=False,
    )


def read_answer(headers: Headers) -> tuple[int, Fields]:
    """Status and headers of a response."""
    pseudo, fields = _split(headers, most=_MAX_FIELDS["server"], bad=bad_response)
    status = pseudo.get(b":status", b"")
    if pseudo.keys() != {b":status"} or _STATUS.fullmatch(status) is None or status == b"101":
        raise bad_response("its status is malformed")
    length_of(fields, bad=bad_response)
    return int(status), [pair for pair in fields if not pair[0].startswith(b"proxy-")]


def read_trailers(headers: Headers) -> Fields:
    """Trailers of a response, without fields that change the meaning of the response."""
    pseudo, fields = _split(headers, most=_MAX_FIELDS["server"], bad=bad_response)
    if pseudo:
        raise bad_response("it has a second head after its body")
    return [
        pair
        for pair in fields
        if pair[0] not in _NOT_IN_TRAILERS and not pair[0].startswith(b"proxy-")
    ]


class DeclaredLength:
    """Compares a body with its Content-Length. h2 does not check it if there is no DATA frame."""

    def __init__(self, fields: Fields, *, bad: Bad) -> None:
        """`fields` are checked already: they state the length at most once."""
        stated = length_of(fields, bad=bad)
        self._left = stated if isinstance(stated, int) else None
        self._bad = bad

    def add(self, count: int) -> None:
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise self._bad("its body is longer than it says")

    def end(self) -> None:
        if self._left:
            raise self._bad("its body is shorter than it says")


def end_to_end_request(headers: Fields) -> Fields:
    """Request headers without hop-by-hop headers."""
    return [
        (name, value)
        for name, value in headers
        # `te: trailers` stays: gRPC servers require it, and h2 allows no other value.
        if name not in (b"trailer", b"expect", b"http2-settings") and not name.startswith(b"proxy-")
    ]


def _split(headers: Headers, *, most: int, bad: Bad) -> tuple[dict[bytes, bytes], Fields]:
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
        if name in _OF_A_CONNECTION or (name == b"te" and value.lower() != b"trailers"):
            raise bad("it has a header that HTTP/2 forbids")
        check_name(name, bad=bad)
        fields.append((name, value))
    if len(fields) > most:
        raise bad(f"it has more than {most} header lines")
    return pseudo, fields


def _host(authority: bytes) -> tuple[str, int]:
    try:
        return host_and_port(authority.decode("ascii"), PORTS["https"])
    except UnicodeDecodeError:
        raise bad_request("its authority is not ASCII") from None
