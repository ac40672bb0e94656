"""`8000-sbx_….localhost:8750`: a server inside a sandbox under a host name of its own.

Another host is another origin: a page that code has written shares no cookie, storage or script
with the dashboard, and no route of the service exists under these names. Who connects shows a
token for this port: in `X-Cellwall-Token`, in the cookie that a link with `?cellwall_token=` sets
once, or in the header that E2B's SDK names. Each request and each WebSocket is an action of the
token's account: judged, counted and recorded.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, State
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from cellwall.admin.accounts import Identity
from cellwall.core.errors import CellwallError, LimitExceeded, SignInRefused
from cellwall.core.port_connections import ConnectPort, PortTraffic
from cellwall.interfaces.http.callers import INTERFACE
from cellwall.interfaces.http.service import Service
from cellwall.interfaces.http_heads import TOKEN_COOKIE, RequestHead, cookies_of
from cellwall.interfaces.port_relay import InnerConnection
from cellwall.interfaces.previews.exchange import PreviewFailed, exchange
from cellwall.interfaces.previews.grants import PreviewGrant
from cellwall.interfaces.previews.revocation import hold_until_revoked
from cellwall.interfaces.previews.websockets import bridge

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NAME = re.compile(r"(?P<port>[1-9][0-9]{0,4})-(?P<session>[a-z]{1,4}_[0-9a-hjkmnp-tv-z]{20,32})")
_POLICY_VIOLATION = 1008
_E2B_TOKEN = "e2b-traffic-access-token"  # noqa: S105  # a name

IdentityOf = Callable[[State, str, str], Awaitable[tuple[Identity, str]]]
"""The account and the session behind a token of another interface for a named sandbox, by the state
of the application."""


@dataclass(frozen=True, slots=True)
class _PortAddress:
    session_id: str
    port: int


class PreviewHosts:
    """ASGI middleware; `domain` is the name above those of the sandboxes, without a port."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        domain: str,
        is_https: bool,
        count_request: Callable[[str], Awaitable[None]],
        identity_of: IdentityOf,
    ) -> None:
        self._app = app
        self._suffix = f".{domain}"
        self._is_https = is_https
        self._count_request = count_request
        self._identity_of = identity_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        place = self._place(scope) if scope["type"] in {"http", "websocket"} else None
        if place is None:
            await self._app(scope, receive, send)
            return
        refused: Response | None
        is_begun = False

        async def send_on(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            refused = await self._serve(place, scope, receive, send_on)
        except LimitExceeded as error:
            refused = _refusal(429, error)
        except SignInRefused as error:
            refused = _refusal(401, error)
        except CellwallError as error:
            refused = _refusal(502, error)
        except PreviewFailed as error:
            refused = PlainTextResponse(f"Cellwall: {error}\n", 502)
        if refused is None or is_begun:
            return  # a response that the server broke off ends early: uvicorn closes the connection
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            await refused(scope, receive, send)

    def _place(self, scope: Scope) -> _PortAddress | None:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return None
        host = hosts[0].decode("latin-1").lower().partition(":")[0]
        match = _NAME.fullmatch(host.removesuffix(self._suffix))
        if match is None or not host.endswith(self._suffix) or int(match["port"]) > 65_535:
            return None
        return _PortAddress(match["session"], int(match["port"]))

    async def _serve(
        self, place: _PortAddress, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        peer = scope.get("client")
        await self._count_request(peer[0] if peer else "")
        state: State = scope["app"].state
        service: Service = state.service
        raw = scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        target = (raw + (b"?" + query if query else b"")).decode("latin-1")
        head = RequestHead(scope.get("method", "GET"), target, (), b"")
        who, session_id, ends_s = await self._who(state, place, head, Headers(scope=scope))
        if head.token_in_address and scope["type"] == "http":
            return self._keep(head)
        sandbox = await service.sandboxes.find(who, session_id)

        async def hold(connected: socket.socket) -> PortTraffic:
            if scope["type"] == "websocket":
                return await bridge(scope, receive, send, connected, target=head.bare_target)
            inner = InnerConnection(connected)
            path = head.bare_target.encode("latin-1")
            await exchange(scope, receive, send, inner, target=path, has_own_origin=True)
            return inner.traffic

        async def hold_allowed(connected: socket.socket) -> PortTraffic:
            holding = partial(hold, connected)
            return await hold_until_revoked(service, who, session_id, holding, ends_s=ends_s)

        if scope["type"] == "websocket":
            await receive()  # websocket.connect
        with service.waiting.counted(who.user_id):
            outcome = await sandbox.perform(
                who.principal(INTERFACE), ConnectPort(place.port, hold_allowed)
            )
        if outcome.error is not None:
            raise outcome.error.to_exception()
        return None

    async def _who(
        self, state: State, place: _PortAddress, head: RequestHead, headers: Headers
    ) -> tuple[Identity, str, float]:
        service: Service = state.service
        shown = [headers.get("x-cellwall-token", ""), head.token_in_address]
        if not _is_foreign(headers):
            pairs = cookies_of(headers.get("cookie", ""))
            shown += [value for name, value in pairs if name == TOKEN_COOKIE]
        for token in filter(None, shown):
            grant = service.previews.find(token, place.session_id, place.port)
            if grant is not None:
                return await _renew(service, grant), place.session_id, grant.ends_s
        traffic = headers.get(_E2B_TOKEN, "")
        if traffic:
            return *await self._identity_of(state, traffic, place.session_id), math.inf
        raise SignInRefused(
            "this request bears no token for the port",
            hint="Open the link that POST /v1/sessions/ID/ports/PORT gives, or send its token in "
            "X-Cellwall-Token.",
            code="CW-SIGN-IN-MISSING",
        )

    def _keep(self, head: RequestHead) -> Response:
        """The token becomes a cookie of this host alone, and leaves the address."""
        answer = RedirectResponse(head.redirect_target, 303)
        answer.set_cookie(
            TOKEN_COOKIE,
            head.token_in_address,
            httponly=True,
            secure=self._is_https,
            samesite="lax",
        )
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["Cache-Control"] = "no-store"
        return answer


async def _renew(service: Service, grant: PreviewGrant) -> Identity:
    """The account of now: a revoked credential ends its links."""
    revision = await service.accounts.revision()
    who: Identity | None = grant.identity
    if revision != grant.revision:
        who = await service.accounts.renewed(grant.identity)
    if who is None:
        raise SignInRefused(
            "the sign-in behind this link does not count any more",
            hint="Ask for a new link.",
            code="CW-SIGN-IN-TOKEN",
        )
    grant.identity, grant.revision = who, revision
    return who


def _is_foreign(headers: Headers) -> bool:
    """Whether a page of another origin has made the browser send the request, which brings the
    cookie along: a page of one sandbox must not use the server of another."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2] != headers.get("host")
    is_link = headers.get("sec-fetch-mode") == "navigate"
    return not is_link and headers.get("sec-fetch-site") in {"same-site", "cross-site"}


def _refusal(status: int, error: CellwallError) -> Response:
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'"}
    hint = f" {error.hint}" if error.hint else ""
    text = f"Cellwall: {error.message} [{error.code}].{hint}\n"
    return PlainTextResponse(text, status, headers=headers)
