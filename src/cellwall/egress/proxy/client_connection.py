"""One connection from a cell, and how a refusal is encoded for its client: HTTP, SOCKS, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.limits import EgressSettings
from cellwall.egress.protocols import socks
from cellwall.egress.protocols.http1_framing import Fields
from cellwall.egress.proxy.streams import ByteStream, PeerClosed, SocketStream

_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    407: "Proxy Authentication Required",
    429: "Too Many Requests",
    502: "Bad Gateway",
    504: "Gateway Timeout",
}
_STATUSES = {
    "CW-BAD-REQUEST": 400,
    "CW-BAD-HOST": 400,
    "CW-NOT-TLS": 400,
    "CW-BAD-TLS": 400,
    "CW-PROXY-TOKEN": 407,
    "CW-NET-LIMIT": 429,
    "CW-NO-ADDRESS": 502,
    "CW-UNREACHABLE": 502,
    "CW-BAD-RESPONSE": 502,
    "CW-UPSTREAM-TLS": 502,
    "CW-LATE": 504,
}
"""All others are 403. Never 401, and 407 only where a program outside of any sandbox has no token:
a client would answer those with credentials."""
_CHALLENGE = ("Proxy-Authenticate", 'Basic realm="cellwall"')
_UNAUTHENTICATED = 407
_SOCKS_CODES = {
    "CW-SOCKS": socks.FAILED,
    "CW-SOCKS-LOGIN": socks.FAILED,
    "CW-SOCKS-COMMAND": socks.COMMAND_NOT_SUPPORTED,
    "CW-SOCKS-ADDRESS": socks.ADDRESS_TYPE_NOT_SUPPORTED,
    "CW-NO-ADDRESS": socks.HOST_UNREACHABLE,
    "CW-UNREACHABLE": socks.HOST_UNREACHABLE,
    "CW-LATE": socks.HOST_UNREACHABLE,
    "CW-NET-LIMIT": socks.CONNECTION_REFUSED,
}
_CODE = re.compile(r"CW(?:-[A-Z0-9]{1,24}){1,6}")
_HOST = re.compile(r"[0-9a-z_.-]{1,253}|\[[0-9a-f:.]{2,45}\]")
_MAX_CHARACTERS = 2000


def http_refusal(error: CellwallError, host: str, port: int) -> bytes:
    """A complete HTTP/1.1 response, after which the connection ends."""
    status, fields, body = refusal(error, host=host, port=port)
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *map(": ".join, fields)]
    return "\r\n".join((*lines, "Connection: close", "", "")).encode("ascii") + body


def refusal(
    error: CellwallError, *, host: str, port: int
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of a response, for all versions of HTTP.

    Only `code`, `message` and `hint` leave, never `detail` (ERR-1).
    """
    status = _STATUSES.get(error.code, 403)
    code = error.code if _CODE.fullmatch(error.code) else CellwallError.default_code
    error_body = {
        "code": code,
        "message": error.message[:_MAX_CHARACTERS],
        "hint": (error.hint or _hint(status, host, port))[:_MAX_CHARACTERS],
    }
    # ASCII only: a lone surrogate in a message must not raise here.
    body = json.dumps({"error": error_body}, ensure_ascii=True).encode("ascii") + b"\n"
    fields = [
        ("X-Cellwall-Refused", code),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if status == _UNAUTHENTICATED:
        fields.append(_CHALLENGE)
    return status, fields, body


def socks_refusal(error: CellwallError, _host: str, _port: int) -> bytes:
    """A SOCKS reply."""
    return socks.reply(_SOCKS_CODES.get(error.code, socks.NOT_ALLOWED))


def _hint(status: int, host: str, port: int) -> str:
    # The name came from the cell: repeated only if a rule could have it.
    if status != 403 or _HOST.fullmatch(host) is None:
        return ""
    return f"To allow it, use `--allow-domain {host}:{port}`."


_REFUSAL_TIMEOUT_S = 2.0

RefusalEncoder = Callable[[CellwallError, str, int], bytes]
"""Encodes an error and the host and port that it is about."""


def fixed_refusal(answer: bytes) -> RefusalEncoder:
    """Encodes every error as these bytes."""
    return lambda _error, _host, _port: answer


tls_alert = fixed_refusal(b"\x15\x03\x03\x00\x02\x02\x31")
"""Fatal alert access_denied: a TLS client ends at once instead of waiting for its timeout."""
no_refusal = fixed_refusal(b"")
"""The protocol is unknown, or cannot express a refusal in this state."""


@dataclass(slots=True, kw_only=True)
class ClientConnection:
    """Mutable: the protocol of a connection changes, such as from CONNECT to TLS to HTTP."""

    transport: SocketStream
    stream: ByteStream
    """The transport, or TLS over it once that is intercepted."""
    via: str
    """`proxy` at first, then `connect`, `socks`, `http`, `opened` or `transparent`."""
    encode_refusal: RefusalEncoder
    """Encodes a refusal in the current protocol; no bytes once a response has begun."""
    host: str = ""
    port: int = 0
    refusal: CellwallError | None = None
    """Known before the first byte; sent once the client's protocol is known."""
    authenticate: Callable[[Fields], Fields] | None = None
    """Checks the credentials of each request to the proxy, and returns its headers without them.
    None in a cell, where the socket itself tells whose connection it is."""

    def check_admitted(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def set_target(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def send(self, data: bytes, settings: EgressSettings) -> None:
        until = asyncio.get_running_loop().time() + settings.head_timeout_s
        await self.stream.send(data, until)

    async def refuse(self, error: CellwallError) -> None:
        """Send the refusal if the protocol still allows it, and end the connection."""
        answer = self.encode_refusal(error, self.host, self.port)
        if not answer or self.transport.is_closed:
            self.transport.abort()
            return
        with contextlib.suppress(PeerClosed, EgressRefused):
            await self.stream.send(answer, asyncio.get_running_loop().time() + _REFUSAL_TIMEOUT_S)
        await self.stream.close_after_answer()
