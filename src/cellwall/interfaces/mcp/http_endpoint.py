"""MCP over streamable HTTP: the ASGI application at `/mcp`, an OAuth resource server (RFC 9728).

A request goes:
  (1) headers that decide come at most once;
  (2) the bearer token is for this address and counts now; nothing is read before;
  (3) the body is bounded, read within a time, and parsed; then the token must still count;
  (4) the client is found by the sign-in and the session id together, or created within bounds;
  (5) the SDK's transport answers, for as long as the credential counts.
Host and Origin are checked before, for the whole service (SRV-3).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import anyio
from mcp.server.streamable_http import LAST_EVENT_ID_HEADER, MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, JSONRPCError, JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from cellwall.core.errors import Busy, CellwallError, SignInRefused
from cellwall.interfaces.mcp.client_session import silence_sdk
from cellwall.interfaces.mcp.http_client import Credential, HttpClient
from cellwall.interfaces.mcp.http_clients import CredentialChecks, HttpClients
from cellwall.interfaces.mcp.http_responses import NO_SESSION, Response, refuse
from cellwall.interfaces.mcp.messages import max_message_bytes
from cellwall.interfaces.mcp.protected_resource import ProtectedResource
from cellwall.interfaces.mcp.sessions import SandboxRecords
from cellwall.parsing.jsonrpc import error_of, parse_message

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from cellwall.accounts.identity import Identity
    from cellwall.runtime.app import App
    from cellwall.runtime.live_server import LiveServer
    from cellwall.runtime.tool_servers import ToolServers

_BODY_WITHIN_S = 60.0
_LAST_EVENT = LAST_EVENT_ID_HEADER.encode("ascii")
_SINGLE = frozenset(
    name.encode("ascii")
    for name in (
        "authorization",
        MCP_SESSION_ID_HEADER,
        MCP_PROTOCOL_VERSION_HEADER,
        LAST_EVENT_ID_HEADER,
    )
)


class McpAccounts(CredentialChecks, Protocol):
    """The accounts, as far as this interface needs them."""

    async def authenticate(self, token: str, *, audience: str, address: str) -> Identity:
        """The identity of a bearer token; raises `SignInRefused`."""


class _Refused(Exception):
    """The request ends with this response."""

    def __init__(self, status: int, error: JSONRPCError, **headers: str) -> None:
        super().__init__(error.error.message)
        self.status, self.error, self.headers = status, error, headers


@dataclass(slots=True)
class McpEndpoint:
    """The ASGI application; serves within `running`."""

    app: App
    accounts: McpAccounts
    resource: ProtectedResource
    records_of: Callable[[Identity], SandboxRecords]
    _clients: HttpClients | None = None
    _is_draining: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For the life of the service; all clients and their sandboxes end with the block."""
        silence_sdk()
        async with anyio.create_task_group() as tasks:
            clients = HttpClients(self.app, self.accounts, tasks, records_of=self.records_of)
            self._clients = clients
            async with anyio.create_task_group() as watching:
                watching.start_soon(clients.watch)
                try:
                    yield
                finally:
                    self._clients = None
                    watching.cancel_scope.cancel()
                    clients.end_all()

    def all_clients(self) -> tuple[HttpClient, ...]:
        """Of all users: for the operator of the service alone, never for a request."""
        return () if self._clients is None else self._clients.all()

    def all_servers(self) -> list[tuple[str, ToolServers, LiveServer]]:
        """Of all users: user id, set and server; for the operator alone."""
        return [] if self._clients is None else self._clients.all_servers()

    def drain(self) -> None:
        """The service stops: calls under way go on, streams that wait for events end."""
        self._is_draining = True
        if self._clients is not None:
            self._clients.end_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # Spaces around a value are no part of it (RFC 9110, 5.5); not each parser removes them.
            scope = {**scope, "headers": [(k, v.strip(b" \t")) for k, v in scope["headers"]]}
            headers = _single(scope)  # (1)
            await self._serve(scope, receive, send, headers)
        except _Refused as refused:
            await refuse(scope, receive, send, refused.status, refused.error, refused.headers)
        except Busy as busy:
            error = error_of(INTERNAL_ERROR, f"{busy.message} [{busy.code}] {busy.hint}", None)
            await refuse(scope, receive, send, 503, error, {"retry-after": "2"})

    async def _authenticate(self, scope: Scope, headers: dict[bytes, bytes]) -> Credential:
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        address = scope["client"][0] if scope.get("client") else ""
        if scheme.lower() != "bearer" or not token.strip():
            raise self._challenged(401, "this request bears no access token", "")
        try:
            revision = await self.accounts.revision()
            identity = await self.accounts.authenticate(
                token.strip(), audience=self.resource.url, address=address
            )
        except CellwallError as error:
            # One answer for every cause, except that guesses are slowed down.
            if (wait_s := getattr(error, "retry_after_s", None)) is not None:
                slow = error_of(INVALID_REQUEST, f"{error.message} [{error.code}]", None)
                raise _Refused(429, slow, **{"retry-after": str(wait_s)}) from None
            if not isinstance(error, SignInRefused):
                raise
            raise self._challenged(401, error.message, "invalid_token") from None
        if identity.scopes is not None and not identity.scopes & self.resource.tool_scopes:
            raise self._challenged(403, "the token has no scope of a tool", "insufficient_scope")
        return Credential(identity, revision)

    def _challenged(
        self, status: int, message: str, error: Literal["", "invalid_token", "insufficient_scope"]
    ) -> _Refused:
        headers = {"www-authenticate": self.resource.challenge(error)}
        return _Refused(status, error_of(INVALID_REQUEST, message, None), **headers)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[bytes, bytes],
    ) -> None:
        credential = await self._authenticate(scope, headers)  # (2)
        clients = self._clients
        if clients is None or self._is_draining:
            raise Busy("the service is stopping", hint="Try again in a moment.", code="CW-STOPPING")
        message, again = None, receive
        if scope["method"] == "POST":
            body = await self._read(receive)  # (3)
            message, again = _parse(body), _replay(body, receive)
            # A revocation that came with the body counts for this request already.
            credential = await self._authenticate(scope, headers)
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER.encode(), b"").decode("latin-1")
        session_id = headers.get(MCP_SESSION_ID_HEADER.encode())
        is_new = False
        if version and version not in HANDSHAKE_PROTOCOL_VERSIONS:  # (4)
            client = await clients.of_sign_in(credential)
        elif session_id is not None:
            found = clients.find(credential.identity, session_id.decode("latin-1"))
            if found is None:
                raise _Refused(*NO_SESSION)
            client = found
        elif isinstance(message, JSONRPCRequest) and message.method == "initialize":
            client, is_new = await clients.open(credential), True
        else:
            raise _Refused(400, error_of(INVALID_REQUEST, "Missing session ID", None))
        if scope["method"] == "GET" and client.has_stream and _LAST_EVENT not in headers:
            # The SDK looks for another stream too late: of two that come at once it keeps both.
            raise _Refused(409, error_of(INVALID_REQUEST, "a stream is open already", None))
        is_over = is_new

        def follow(response: Response) -> None:
            nonlocal is_over
            if is_new and response.status < 400 and response.session_id:
                clients.register(client, response.session_id)
                is_over = False
            if scope["method"] == "DELETE" and response.status < 300:
                clients.forget(client)
                is_over = True

        try:
            response = Response(scope, again, send, follow)
            await client.handle(scope, again, response, credential)  # (5)
        finally:
            if is_over:  # deleted, or no session came of it
                clients.end(client)

    async def _read(self, receive: Receive) -> bytes:
        max_bytes = max_message_bytes(self.app.settings.sandbox.max_code_bytes)
        parts: list[bytes] = []
        size = 0
        with anyio.move_on_after(_BODY_WITHIN_S):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise _Refused(400, error_of(INVALID_REQUEST, "the body is not whole", None))
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > max_bytes:
                    problem = f"the message is longer than the {max_bytes} bytes allowed"
                    # Without a close, the server would go on reading what is left of the body.
                    raise _Refused(
                        413, error_of(INVALID_REQUEST, problem, None), connection="close"
                    )
                if not message.get("more_body", False):
                    return b"".join(parts)
        slow = error_of(INVALID_REQUEST, "the body came too slowly", None)
        raise _Refused(408, slow, connection="close")


def _single(scope: Scope) -> dict[bytes, bytes]:
    """Headers by name. Readers of a header that came twice would disagree about its value."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _SINGLE and name in found:
            text = f"{name.decode('ascii')} header appears more than once"
            raise _Refused(400, error_of(HEADER_MISMATCH, text, None))
        found[name] = value
    return found


def _parse(body: bytes) -> object:
    """The message of a body; raises for one that the transport must not see."""
    parsed = parse_message(body)
    if parsed is None:
        raise _Refused(400, error_of(INVALID_REQUEST, "the body is empty", None))
    if isinstance(parsed, JSONRPCError):
        raise _Refused(400, parsed)
    return parsed.message


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what follows: the disconnect."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again
