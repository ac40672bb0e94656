"""Refusals encoded for the client: HTTP responses and SOCKS reply codes. Pure."""

from __future__ import annotations

import json
import re

from cellwall.core.errors import CellwallError
from cellwall.egress.protocols import socks

_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    429: "Too Many Requests",
    502: "Bad Gateway",
    504: "Gateway Timeout",
}
_STATUSES = {
    "CW-BAD-REQUEST": 400,
    "CW-BAD-HOST": 400,
    "CW-NOT-TLS": 400,
    "CW-BAD-TLS": 400,
    "CW-NET-LIMIT": 429,
    "CW-NO-ADDRESS": 502,
    "CW-UNREACHABLE": 502,
    "CW-BAD-RESPONSE": 502,
    "CW-UPSTREAM-TLS": 502,
    "CW-LATE": 504,
}
"""All others are 403. Never 407 or 401: a client would answer those with credentials."""
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


def http_status(error: CellwallError) -> int:
    """The HTTP status for an error."""
    return _STATUSES.get(error.code, 403)


def http_refusal(error: CellwallError, *, host: str, port: int) -> bytes:
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
    status = http_status(error)
    code = error.code if _CODE.fullmatch(error.code) else CellwallError.default_code
    told = {
        "code": code,
        "message": error.message[:_MAX_CHARACTERS],
        "hint": (error.hint or _hint(status, host, port))[:_MAX_CHARACTERS],
    }
    # ASCII only: a lone surrogate in a message must not raise here.
    body = json.dumps({"error": told}, ensure_ascii=True).encode("ascii") + b"\n"
    fields = [
        ("X-Cellwall-Refused", code),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    return status, fields, body


def socks_code(error: CellwallError) -> int:
    """The code for `socks.reply`."""
    return _SOCKS_CODES.get(error.code, socks.NOT_ALLOWED)


def _hint(status: int, host: str, port: int) -> str:
    # The name came from the cell: repeated only if a rule could have it.
    if status != 403 or _HOST.fullmatch(host) is None:
        return ""
    return f"To allow it, use `--allow-domain {host}:{port}`."
