"""`/v1/sessions/{id}/ports/{port}`: servers inside a sandbox.

A link leads to a host name of its own, see `previews/hosts.py`. The path below the port is for
programs with an access token: the response lies on the origin of the service, so a browser is given
no cookie for it, and no script of it runs.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Request, Response

from cellwall.core.errors import BadInput, Denied
from cellwall.core.port_connections import ConnectPort, PortTraffic
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.sessions import PortLink, PortRequest
from cellwall.interfaces.http.callers import Caller, CurrentCaller, require
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.owned_sandbox import OwnedSandbox
from cellwall.interfaces.http.problems import raise_for_refusal
from cellwall.interfaces.http.service import CurrentService, Service, service_of
from cellwall.interfaces.port_relay import InnerConnection
from cellwall.interfaces.previews.exchange import PreviewFailed, exchange
from cellwall.interfaces.previews.revocation import hold_until_revoked

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

routes = APIRouter(route_class=CheckedRoute, tags=["ports"], responses=ERRORS)
_ONE = "/sessions/{session_id}/ports/{port}"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Port = Annotated[int, Path(ge=1, le=65_535)]


@routes.post(_ONE, status_code=201)
async def link_port(
    service: CurrentService, caller: CurrentCaller, session_id: str, port: Port, body: PortRequest
) -> PortLink:
    """A link to a server inside, which counts for this port until it expires."""
    return await new_link(service, caller, session_id, port, lifetime_s=body.lifetime)


async def new_link(
    service: Service, caller: Caller, session_id: str, port: int, *, lifetime_s: float
) -> PortLink:
    """Raises where the service has no names for servers inside."""
    require(service, caller, Permission.SANDBOX_EXECUTE)
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    settings = service.settings
    if not settings.preview_domain:
        raise BadInput(
            "this service has no names for servers inside sandboxes",
            hint="Set preview_domain in [server], or use the path below the port.",
            code="CW-NO-PREVIEW",
        )
    token, grant = service.previews.issue(caller.identity, sandbox.id, port, lifetime_s=lifetime_s)
    scheme = "https" if settings.is_https else "http"
    address = f"{scheme}://{port}-{sandbox.id}.{settings.preview_authority}/"
    return PortLink(
        url=f"{address}?cellwall_token={token}", address=address, token=token, expires=grant.ends_s
    )


@routes.api_route(_ONE + "/{path:path}", methods=_METHODS, include_in_schema=False)
async def forward(request: Request, caller: CurrentCaller, session_id: str, port: Port) -> Response:
    """One request to the server inside, for a program."""
    if caller.is_by_cookie:
        raise Denied(
            "a page of a sandbox is not opened on the origin of the dashboard",
            hint=f"POST /v1/sessions/{session_id}/ports/{port} gives a link for browsers.",
            code="CW-CSRF",
        )
    service = service_of(request)
    sandbox = await service.sandboxes.find(caller.identity, session_id)
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    target = b"/" + raw.split(f"/ports/{port}/".encode(), 1)[-1]
    query: bytes = request.scope.get("query_string", b"")
    return _Forwarded(service, sandbox, caller, port, target + (b"?" + query if query else b""))


class _Forwarded(Response):
    """Connects when it is sent: the response of the server goes to the client in pieces."""

    def __init__(
        self, service: Service, sandbox: OwnedSandbox, caller: Caller, port: int, target: bytes
    ) -> None:
        super().__init__()
        self._service, self._sandbox, self._caller = service, sandbox, caller
        self._port, self._target = port, target

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_begun = False

        async def send_on(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        async def hold(connected: socket.socket) -> PortTraffic:
            inner = InnerConnection(connected)
            target = self._target
            await exchange(scope, receive, send_on, inner, target=target, has_own_origin=False)
            return inner.traffic

        async def hold_allowed(connected: socket.socket) -> PortTraffic:
            who, holding = self._caller.identity, partial(hold, connected)
            return await hold_until_revoked(self._service, who, self._sandbox.id, holding)

        operation = ConnectPort(self._port, hold_allowed)
        try:
            with self._service.waiting.counted(self._caller.id):
                outcome = await self._sandbox.perform(self._caller.principal, operation)
        except PreviewFailed as error:
            raise BadInput(str(error), code="CW-NO-SERVER") from error
        if not is_begun:  # else the server has broken its response off, which ends early
            raise_for_refusal(outcome)
