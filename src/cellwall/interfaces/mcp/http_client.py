"""One client over streamable HTTP: the SDK's transport around a client session.

A client of a protocol before 2026-07-28 is one session with an id, which the transport creates.
Later protocols have no sessions, and a client is a sign-in. Either way a client is one object with
sandboxes, calls and events of its own: nothing of one client is in reach of another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from cellwall.core.errors import Busy
from cellwall.interfaces.mcp.client_session import ClientSession
from cellwall.interfaces.mcp.http_events import EventLog
from cellwall.interfaces.mcp.http_responses import Response
from cellwall.interfaces.mcp.sessions import ClientSandboxes

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from cellwall.accounts.identity import Identity
    from cellwall.interfaces.mcp.other_servers import OtherServers

INTERFACE = "mcp-http"
MAX_REQUESTS = 64
"""In flight for one client; streams that wait for events count."""
_RETRY_MS = 1000
"""How long a client waits before it asks for lost events."""
_log = logging.getLogger("cellwall.mcp")


@dataclass(eq=False, slots=True)
class Credential:
    """The identity of a request, and when it was last found to count."""

    identity: Identity
    revision: int
    """Of the accounts. A later one may have revoked the credential."""


@dataclass(eq=False, slots=True)
class _InFlight:
    """A request that is being answered."""

    credential: Credential
    method: str
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class HttpClient:
    """One client, live until it is ended, idle for too long, or without valid credentials."""

    def __init__(
        self,
        sandboxes: ClientSandboxes,
        credential: Credential,
        others: OtherServers | None = None,
        *,
        max_body_bytes: int,
    ) -> None:
        self.credential = credential
        """Of the newest request: the same user and sign-in as all before."""
        self.session_id = ""
        self._max_body_bytes = max_body_bytes
        self._session = ClientSession(sandboxes, others)
        self._manager: StreamableHTTPSessionManager
        self._requests: set[_InFlight] = set()
        self._scope = anyio.CancelScope()
        self._is_over = False
        self._used_at = anyio.current_time()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Serve until `end`; then the requests, calls and sandboxes of the client end."""
        try:
            with self._scope:
                async with self._session.opened() as server:
                    self._manager = self._make_manager(server)
                    async with self._manager.run():
                        task_status.started()
                        await anyio.sleep_forever()
        except Exception:  # noqa: BLE001  # the other clients go on
            _log.exception("a client did not end cleanly")
        finally:
            self._is_over = True
            self.end()

    def _make_manager(self, server: Server[Any]) -> StreamableHTTPSessionManager:
        return StreamableHTTPSessionManager(
            server,
            event_store=EventLog(),
            security_settings=None,  # Host and Origin are checked for the whole service
            session_idle_timeout=None,  # known here, with the calls that still run
            max_request_body_size=self._max_body_bytes,
            retry_interval=_RETRY_MS,
            max_sessions=1,
        )

    def end(self) -> None:
        """End the client; `run` cleans up."""
        self._scope.cancel()
        for request in self._requests:
            request.scope.cancel()

    @property
    def is_ended(self) -> bool:
        return self._is_over or self._scope.cancel_called

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost when the client ends now."""
        return not self._requests and not self._session.is_busy and self._session.sandboxes.is_empty

    @property
    def has_stream(self) -> bool:
        """Whether a stream for events of the server is open."""
        return any(each.method == "GET" for each in self._requests)

    @property
    def used_at(self) -> float:
        """When the last call ended; now, while one runs. A stream that waits is no use."""
        is_used = self._session.is_busy or any(each.method == "POST" for each in self._requests)
        return anyio.current_time() if is_used else self._used_at

    @property
    def sandboxes(self) -> ClientSandboxes:
        return self._session.sandboxes

    @property
    def identity(self) -> Identity:
        return self.credential.identity

    def credentials(self) -> list[Credential]:
        """Those that must count for the client and its requests to go on."""
        return [self.credential, *(each.credential for each in self._requests)]

    def drop(self, credential: Credential) -> None:
        """End all that came with a credential that counts no more."""
        name = credential.identity.credential
        if self.identity.credential == name:
            self.end()
        for request in self._requests:
            if request.credential.identity.credential == name:
                request.scope.cancel()

    def take_role(self) -> None:
        """The same user; a role that has changed counts from now on (RBAC-2)."""
        self._session.act_as(self.identity.principal(INTERFACE))

    def end_streams(self) -> None:
        """End the streams that wait for events; calls go on."""
        for request in self._requests:
            if request.method == "GET":
                request.scope.cancel()

    async def handle(
        self, scope: Scope, receive: Receive, response: Response, credential: Credential
    ) -> None:
        """Answer one request; the response is ended early with the client or the credential."""
        if self.is_ended:  # the transport is gone
            await response.end_early()
            return
        self.credential = credential
        self.take_role()
        with self._entered(credential, scope["method"]) as request:
            await self._manager.handle_request(scope, receive, response)
        if request.scope.cancelled_caught:
            await response.end_early()

    @contextmanager
    def _entered(self, credential: Credential, method: str) -> Iterator[_InFlight]:
        if len(self._requests) >= MAX_REQUESTS:
            raise Busy(
                f"{MAX_REQUESTS} requests of this client are being answered",
                hint="Wait for some of them to end.",
                code="CW-BUSY",
            )
        request = _InFlight(credential, method)
        self._requests.add(request)
        try:
            with request.scope:
                yield request
        finally:
            self._requests.discard(request)
            if method == "POST":
                self._used_at = anyio.current_time()
