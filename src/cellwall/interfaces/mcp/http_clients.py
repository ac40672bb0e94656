"""All clients over HTTP: found by owner and session id together, bounded, and ended in time.

A client ends when it is deleted, when it was idle for too long, and when its credential counts no
more. All its sandboxes end with it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.abc

from cellwall.core.errors import Busy, CellwallError
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.interfaces.mcp.default_policy import default_policy
from cellwall.interfaces.mcp.http_client import INTERFACE, Credential, HttpClient
from cellwall.interfaces.mcp.messages import max_message_bytes
from cellwall.interfaces.mcp.other_servers import OtherServers
from cellwall.interfaces.mcp.sessions import ClientSandboxes, SandboxRecords
from cellwall.interfaces.mcp.sign_in_servers import Owner, SignInServers

if TYPE_CHECKING:
    from cellwall.accounts.identity import Identity
    from cellwall.runtime.app import App
    from cellwall.runtime.live_server import LiveServer
    from cellwall.runtime.tool_servers import ToolServers

_LOOK_EVERY_S = 0.5
"""So long a request that is being answered can outlast its credential."""
_NO_SESSION_ID = ""
"""Of the one client that a sign-in has under protocols without sessions."""
_log = logging.getLogger("cellwall.mcp")


class CredentialChecks(Protocol):
    """The accounts, as far as running requests need them."""

    async def revision(self) -> int:
        """Another number after every change of users and tokens."""

    async def renewed(self, identity: Identity) -> Identity | None:
        """The identity with the role of now; None if its credential was revoked. An access token
        may have expired."""


def owner_of(identity: Identity) -> Owner:
    """The sign-in, or the service token: what it created is found with its credentials alone."""
    return identity.user_id, identity.family_id or identity.credential


class HttpClients:
    """Creates, finds and ends clients."""

    def __init__(
        self,
        app: App,
        checks: CredentialChecks,
        tasks: anyio.abc.TaskGroup,
        *,
        records_of: Callable[[Identity], SandboxRecords],
    ) -> None:
        self._app, self._checks, self._tasks = app, checks, tasks
        self._records_of = records_of
        self._bounds = app.settings.mcp
        self._policy = default_policy(app, os.environ, cwd=None)
        most = self._bounds.max_servers_per_user
        self._servers = SignInServers(app, tasks, max_per_user=most)
        self._live: dict[tuple[Owner, str], HttpClient] = {}
        self._opening: dict[HttpClient, str] = {}
        """Clients that have no session id yet, with the id of their user."""
        self._starting = anyio.Lock()

    def find(self, identity: Identity, session_id: str) -> HttpClient | None:
        """One look-up for an unknown, ended and foreign id: nothing tells them apart (RBAC-3)."""
        client = self._live.get((owner_of(identity), session_id)) if session_id else None
        return None if client is None or client.is_ended else client

    async def of_sign_in(self, credential: Credential) -> HttpClient:
        """The client of a protocol without sessions."""
        async with self._starting:  # concurrent first requests share one client
            key = owner_of(credential.identity), _NO_SESSION_ID
            client = self._live.get(key)
            if client is None or client.is_ended:
                client = await self.open(credential)
                self.register(client, _NO_SESSION_ID)
        return client

    async def open(self, credential: Credential) -> HttpClient:
        """A client that is not registered yet; raises `Busy`."""
        identity = credential.identity
        self._make_room(identity)
        sandboxes = ClientSandboxes(
            self._app,
            self._pattern(identity.principal(INTERFACE)),
            records=self._records_of(identity),
        )
        max_bytes = max_message_bytes(self._app.settings.sandbox.max_code_bytes)
        client = HttpClient(
            sandboxes, credential, self._others(sandboxes, identity), max_body_bytes=max_bytes
        )
        self._opening[client] = identity.user_id
        try:
            await self._tasks.start(client.run)
        except BaseException:
            del self._opening[client]
            raise
        return client

    def _others(self, sandboxes: ClientSandboxes, identity: Identity) -> OtherServers | None:
        """The servers of the gateway, as far as the operator offers them to users."""
        if self._bounds.gateway == "off":
            return None
        who = identity.principal(INTERFACE)
        return OtherServers(
            self._app,
            self._servers.of(owner_of(identity), who),
            who=lambda: sandboxes.principal,
            policy=self._policy,
            context=sandboxes.context,
        )

    def _pattern(self, principal: Principal) -> Action:
        """The upper bound of every call: the service's limits and rules, and no host directory."""
        return Action(
            principal=principal,
            operation=RunCommand(("true",)),  # replaced by the operation of a call
            limits=self._app.limits,
            policy=self._policy,
            audience="model",
        )

    def register(self, client: HttpClient, session_id: str) -> None:
        """From now on the client is found by this id."""
        if self._opening.pop(client, None) is not None:
            client.session_id = session_id
            self._live[owner_of(client.identity), session_id] = client

    def forget(self, client: HttpClient) -> None:
        """From now on the client is not found."""
        self._opening.pop(client, None)
        key = owner_of(client.identity), client.session_id
        if self._live.get(key) is client:
            del self._live[key]

    def end(self, client: HttpClient) -> None:
        """End a client; its sandboxes end in the background."""
        self.forget(client)
        client.end()

    def end_streams(self) -> None:
        for client in [*self._live.values(), *self._opening]:
            client.end_streams()

    def end_all(self) -> None:
        for client in [*self._live.values(), *self._opening]:
            self.end(client)

    def all(self) -> tuple[HttpClient, ...]:
        """Of all users: for the operator of the service alone, never for a request."""
        return (*self._live.values(), *self._opening)

    def all_servers(self) -> list[tuple[str, ToolServers, LiveServer]]:
        """The same for servers of the gateway."""
        return self._servers.all()

    @property
    def count(self) -> int:
        return len(self._live) + len(self._opening)

    def _make_room(self, identity: Identity) -> None:
        """Clients of the user without sandboxes and requests make room, the oldest use first."""
        own = [each for (owner, _), each in self._live.items() if owner[0] == identity.user_id]
        opening = sum(1 for user_id in self._opening.values() if user_id == identity.user_id)
        if len(own) + opening >= self._bounds.max_sessions_per_user:
            spare = [each for each in own if each.is_empty]
            if not spare:
                raise _too_many("this user has too many open sessions")
            self.end(min(spare, key=lambda each: each.used_at))
        if self.count >= self._bounds.max_sessions:
            raise _too_many("the service has too many open sessions")

    async def watch(self) -> None:
        """End idle clients, and what came with a credential that counts no more."""
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            self._end_idle()
            try:
                await self._check_credentials()
            except CellwallError as error:  # checked again the next time; new requests are refused
                _log.warning("credentials could not be checked: %s", error.code)

    def _end_idle(self) -> None:
        now = anyio.current_time()
        for client in list(self._live.values()):
            if now - client.used_at > self._bounds.idle_s:
                self.end(client)

    async def _check_credentials(self) -> None:
        revision = await self._checks.revision()
        for client in [*self._live.values(), *self._opening]:
            for credential in client.credentials():
                if not await self._counts(credential, revision):
                    client.drop(credential)
                    if client.is_ended:
                        self.end(client)
            if not client.is_ended:
                client.take_role()

    async def _counts(self, credential: Credential, revision: int) -> bool:
        identity = credential.identity
        # A call may take longer than an access token lives, which is short.
        if not identity.family_id and identity.expires_s <= time.time():
            return False
        if credential.revision != revision:
            renewed = await self._checks.renewed(identity)
            if renewed is None:
                return False
            credential.identity, credential.revision = renewed, revision
        return True


def _too_many(message: str) -> Busy:
    return Busy(
        message,
        hint="End a session with DELETE, or wait for one to end.",
        code="CW-TOO-MANY-SESSIONS",
    )
