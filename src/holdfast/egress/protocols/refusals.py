"""What a client is told whose way out was refused, in the words of its own protocol. Pure."""

from __future__ import annotations

import json
import re

from holdfast.core.errors import HoldfastError
from holdfast.egress.protocols import socks

_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    429: "Too Many Requests",
    502: "Bad Gateway",
    504: "Gateway Timeout",
}
_STATUSES = {
    "HF-BAD-REQUEST": 400,
    "HF-BAD-HOST": 400,
    "HF-NOT-TLS": 400,
    "HF-BAD-TLS": 400,
    "HF-NET-LIMIT": 429,
    "HF-NO-ADDRESS": 502,
    "HF-UNREACHABLE": 502,
    "HF-BAD-RESPONSE": 502,
    "HF-UPSTREAM-TLS": 502,
    "HF-LATE": 504,
}
"""Everything else is a 403. Never 407 or 401: a client would send its passwords around for it."""
_SOCKS_CODES = {
    "HF-SOCKS": socks.FAILED,
    "HF-SOCKS-LOGIN": socks.FAILED,
    "HF-SOCKS-COMMAND": socks.COMMAND_NOT_SUPPORTED,
    "HF-SOCKS-ADDRESS": socks.ADDRESS_TYPE_NOT_SUPPORTED,
    "HF-NO-ADDRESS": socks.HOST_UNREACHABLE,
    "HF-UNREACHABLE": socks.HOST_UNREACHABLE,
    "HF-LATE": socks.HOST_UNREACHABLE,
    "HF-NET-LIMIT": socks.CONNECTION_REFUSED,
}
_CODE = re.compile(r"HF(?:-[A-Z0-9]{1,24}){1,6}")
_HOST = re.compile(r"[0-9a-z_.-]{1,253}|\[[0-9a-f:.]{2,45}\]")
_MOST_CHARACTERS = 2000


def http_status(error: HoldfastError) -> int:
    """The status of the answer."""
    return _STATUSES.get(error.code, 403)


def http_refusal(error: HoldfastError, *, host: str, port: int) -> bytes:
    """A whole answer, after which the connection ends."""
    status, fields, body = refusal(error, host=host, port=port)
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *map(": ".join, fields)]
    return "\r\n".join((*lines, "Connection: close", "", "")).encode("ascii") + body


def refusal(
    error: HoldfastError, *, host: str, port: int
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of an answer, by whatever version of HTTP.

    Only `code`, `message` and `mend` leave, never `detail` (ERR-1).
    """
    status = http_status(error)
    code = error.code if _CODE.fullmatch(error.code) else HoldfastError.default_code
    told = {
        "code": code,
        "message": error.message[:_MOST_CHARACTERS],
        "mend": (error.mend or _mend(status, host, port))[:_MOST_CHARACTERS],
    }
    # ASCII alone: a lone surrogate in a message must not become an error of its own here.
    body = json.dumps({"error": told}, ensure_ascii=True).encode("ascii") + b"\n"
    fields = [
        ("X-Holdfast-Refused", code),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    return status, fields, body


def socks_code(error: HoldfastError) -> int:
    """The code for `socks.reply`."""
    return _SOCKS_CODES.get(error.code, socks.NOT_ALLOWED)


def _mend(status: int, host: str, port: int) -> str:
    # The name came from inside: repeated only in the form that a rule could have.
    if status != 403 or _HOST.fullmatch(host) is None:
        return ""
    return f"Allow it with `--allow-domain {host}:{port}` if it is meant to be reached."
