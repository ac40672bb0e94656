"""Checks before any route: Host, Origin, size of the body, rate of the address; and the headers of
every response.

A browser sends requests to loopback for any page that asks it to. So a request must name one of
the service's own hosts (DNS rebinding), and an `Origin` must be one of the named origins (SRV-3).
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from cellwall.core.errors import CellwallError, LimitExceeded
from cellwall.core.outcomes import ErrorInfo

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_SIGN_IN = "/v1/auth/"
_E2B_FILES = "/e2b/files"
_LOCAL = frozenset({"127.0.0.1", "localhost", "[::1]"})
_CORS_METHODS = b"GET, POST, PUT, PATCH, DELETE"
_CORS_HEADERS = (
    b"authorization, content-type, idempotency-key, last-event-id, if-match, if-none-match, "
    b"range, if-range, "
    b"x-csrf-token, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name"
)
_CORS_EXPOSED = (
    b"cellwall-run, content-range, etag, location, retry-after, mcp-session-id, www-authenticate"
)
_HOST = ErrorInfo(
    "CW-HOST", "this service does not go by that name", "Add the name to hosts in [server]."
)
_ORIGIN = ErrorInfo(
    "CW-ORIGIN", "pages of this origin may not use the service", "Add it to origins in [server]."
)
_NUL = ErrorInfo("CW-BAD-INPUT", "the address contains a NUL", "See /openapi.json.")
_LARGE = ErrorInfo("CW-TOO-LARGE", "the body is too large", "Send less at once.")


MAX_UNKNOWN_BYTES = 64 * 1024
"""Of a body that is parsed before the caller is known, as that of a sign-in."""


class Gate:
    """ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Iterable[str],
        origins: Iterable[str],
        max_body_bytes: int,
        max_file_bytes: int,
        is_https: bool,
        count_request: Callable[[str], Awaitable[None]],
    ) -> None:
        """`count_request` raises `LimitExceeded` for an address with too many requests."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)
        self._max_body_bytes = max_body_bytes
        self._max_file_bytes = max_file_bytes
        self._is_https = is_https
        self._count_request = count_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = _single(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        # A file is the only body that is not parsed on the event loop, so it may be larger.
        is_file = (scope.get("method") == "PUT" and "/files/" in scope["path"]) or (
            scope.get("method") == "POST" and scope["path"] == _E2B_FILES
        )
        most = self._max_file_bytes if is_file else self._max_body_bytes
        if scope["path"].startswith(_SIGN_IN):
            most = min(most, MAX_UNKNOWN_BYTES)
        refusal = self._refusal(headers, origin, most) or _refuse_nul(scope)
        if refusal is None:
            refusal = await self._over_rate(scope)
        if refusal is not None:
            await _refuse(scope, receive, send, *refusal)
            return
        is_named = bool(origin) and origin in self._origins
        answer = _with_headers(send, origin if is_named else "")
        if is_named and scope.get("method") == "OPTIONS":
            await _allow_preflight(answer)
            return
        await self._app(scope, _bounded(receive, most), answer)

    async def _over_rate(self, scope: Scope) -> tuple[ErrorInfo, int] | None:
        """By address, before anything is known about the caller (RBAC-4)."""
        peer = scope.get("client")
        try:
            await self._count_request(peer[0] if peer else "")
        except LimitExceeded as error:
            return ErrorInfo.of(error), 429
        except CellwallError as error:  # not counted, or not recorded: refused
            return ErrorInfo.of(error), 503
        return None

    def _refusal(
        self, headers: Mapping[bytes, bytes], origin: str, max_bytes: int
    ) -> tuple[ErrorInfo, int] | None:
        if _name_of(headers.get(b"host", b"")) not in self._hosts:
            return _HOST, 421
        if origin and not self._is_own(origin, headers) and origin not in self._origins:
            return _ORIGIN, 403
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > max_bytes:
            return _LARGE, 413
        return None

    def _is_own(self, origin: str, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a page of the service itself asks. One without TLS is not a page of a service
        with TLS: everybody on the network can write such pages."""
        scheme, _, host = origin.partition("://")
        is_local = _name_of(headers[b"host"]) in _LOCAL
        is_safe = scheme == "https" or (scheme == "http" and (is_local or not self._is_https))
        return is_safe and host == headers[b"host"].decode("latin-1")


def _refuse_nul(scope: Scope) -> tuple[ErrorInfo, int] | None:
    """No id, name or path contains one; PostgreSQL and the kernel would fail on it."""
    has_nul = "\0" in scope["path"] or b"%00" in scope.get("query_string", b"")
    return (_NUL, 400) if has_nul else None


def _bounded(receive: Receive, max_bytes: int) -> Receive:
    """A body without a length is counted while it comes."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > max_bytes:
                raise HTTPException(413)
        return message

    return counted


def _single(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; one that came twice is empty, and so refused where it counts."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found[name] = b"" if name in found and name in {b"host", b"origin"} else value
    return found


def _name_of(host: bytes) -> str:
    """The host without its port, `[::1]` with its brackets."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() and not port.startswith("]") else text


def _with_headers(send: Send, origin: str) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            message["headers"] += [each for each in _HEADERS if each[0] not in given]
            if origin:
                message["headers"] += _cors(origin)
        await send(message)

    return answer


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", _CORS_EXPOSED),
        (b"vary", b"Origin"),
    ]


async def _allow_preflight(send: Send) -> None:
    headers = [
        (b"access-control-allow-methods", _CORS_METHODS),
        (b"access-control-allow-headers", _CORS_HEADERS),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, receive: Receive, send: Send, info: ErrorInfo, status: int) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    body = json.dumps({"error": {**info.to_json(), "audit_id": ""}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *_HEADERS,
    ]
    if info.retry_after_s is not None:
        headers.append((b"retry-after", str(math.ceil(info.retry_after_s)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
