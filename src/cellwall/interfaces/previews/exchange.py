"""One HTTP request to a server inside a sandbox, and its response, in pieces.

The server is untrusted: h11 parses its response, and headers that would act beyond the response are
left out. Bodies are passed on as they are. Code inside has placeholders and no secrets (SEC-5), and
a filter in the middle of a stream would break it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import h11

from cellwall.interfaces.http_heads import without_token
from cellwall.interfaces.port_relay import InnerConnection
from cellwall.interfaces.previews.credentials import is_own_credential

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Header = tuple[bytes, bytes]
UNTRUSTED = (b"cellwall-content", b"untrusted")
"""A header of every response that code has written."""
_MAX_HEAD_BYTES = 256 * 1024
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
     b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect")
)  # fmt: skip
_OWN = frozenset((b"x-cellwall-token", b"e2b-traffic-access-token", b"x-access-token"))
_MAY_BE_OWN = frozenset((b"authorization", b"x-api-key"))
# They speak for other hosts, or for the host beyond this response.
_REFUSED = frozenset(
    (
        b"alt-svc",
        b"clear-site-data",
        b"strict-transport-security",
        b"public-key-pins",
        b"nel",
        b"report-to",
    )
)
# A program would follow them on the origin of the service, with its method and its credentials.
_ELSEWHERE = frozenset((b"location", b"refresh"))
_DOMAIN = re.compile(rb";\s*domain\s*=[^;]*", re.IGNORECASE)


class PreviewFailed(Exception):
    """The server inside gave no valid response."""


def request_headers(headers: Iterable[Header], *, keeps_authorization: bool) -> list[Header]:
    """The headers for the server inside: nothing that authenticates the client to Cellwall."""
    kept = []
    for name, value in headers:
        if name in _HOP_BY_HOP or name in _OWN:
            continue
        if name == b"authorization" and not keeps_authorization:
            continue
        if name in _MAY_BE_OWN and is_own_credential(value):
            continue
        if name == b"cookie":
            cookie = without_token(value.decode("latin-1")).encode("latin-1")
            if cookie and keeps_authorization:
                kept.append((name, cookie))
            continue
        kept.append((name, value))
    return kept


def response_headers(headers: Iterable[Header], *, has_own_origin: bool) -> list[Header]:
    """The headers for the client. On the origin of the service nothing of the page may act."""
    kept = []
    for name, value in headers:
        if name in _HOP_BY_HOP or name in _REFUSED:
            continue
        if name == b"set-cookie":
            # A cookie of the parent domain would be sent to the service as well.
            if has_own_origin:
                kept.append((name, _DOMAIN.sub(b"", value)))
            continue
        if not has_own_origin and name.startswith((b"access-control-", b"content-security-policy")):
            continue
        if not has_own_origin and name in _ELSEWHERE:
            kept.append((b"cellwall-" + name, value))
            continue
        kept.append((name, value))
    if not has_own_origin:
        kept += [
            (b"content-security-policy", b"sandbox; default-src 'none'"),
            (b"x-content-type-options", b"nosniff"),
        ]
    return [*kept, UNTRUSTED]


async def exchange(
    scope: Scope,
    receive: Receive,
    send: Send,
    inner: InnerConnection,
    *,
    target: bytes,
    has_own_origin: bool,
) -> None:
    """Raises `PreviewFailed` before anything was sent to the client."""
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
    headers = request_headers(scope["headers"], keeps_authorization=has_own_origin)
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" in names and b"content-length" not in names:
        headers.append((b"transfer-encoding", b"chunked"))
    headers.append((b"connection", b"close"))
    failure: Exception | None = None

    async def inwards() -> None:
        # A server may answer before it has read all; if it does not, `_respond` tells of it.
        with suppress(h11.LocalProtocolError, OSError):
            request = h11.Request(method=scope["method"], target=target, headers=headers)
            await inner.send(connection.send(request) or b"")
            async for piece in _body(receive):
                await inner.send(connection.send(h11.Data(piece)) or b"")
            await inner.send(connection.send(h11.EndOfMessage()) or b"")
        # Without a client nobody ends a response that has no end, nor waits for one that never
        # comes: the connection would keep its place, and the sandbox in use.
        while (await receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inwards)
        try:
            await _respond(connection, inner, send, has_own_origin=has_own_origin)
        except (PreviewFailed, ConnectionError) as error:
            failure = error  # by itself, not in a group
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _respond(
    connection: h11.Connection, inner: InnerConnection, send: Send, *, has_own_origin: bool
) -> None:
    is_begun = False
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await inner.receive())
            elif isinstance(event, h11.Response):
                is_begun = True
                kept = response_headers(event.headers, has_own_origin=has_own_origin)
                await send(
                    {"type": "http.response.start", "status": event.status_code, "headers": kept}
                )
            elif isinstance(event, h11.Data):
                body = bytes(event.data)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await send({"type": "http.response.body", "body": b""})
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise PreviewFailed("the server closed the connection without a response")
    except h11.RemoteProtocolError as error:
        if is_begun:
            raise ConnectionError("the server broke its response off") from error
        raise PreviewFailed("the server answered with something that is no HTTP") from error


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionResetError("the client is gone")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            return
