"""Other MCP servers for the users of a service: one set of processes for each sign-in (SRV-7).

A server may keep state, and it runs with secrets of the user who calls it, so no process serves two
users. Nor two credentials of one user: a server that was started with all rights of a person must
not work for a token with fewer scopes. The servers end with the last client of their sign-in.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from cellwall.core.errors import Busy
from cellwall.interfaces.mcp.default_policy import default_policy
from cellwall.runtime.offered_tools import OfferedServers
from cellwall.runtime.signed_grants import signed_grants
from cellwall.runtime.tool_servers import ToolServers

if TYPE_CHECKING:
    from cellwall.core.types import Principal
    from cellwall.runtime.app import App
    from cellwall.runtime.live_server import LiveServer

_log = logging.getLogger("cellwall.mcp")

Owner = tuple[str, str]
"""The id of a user, and that of a sign-in or service token."""


@dataclass(slots=True)
class _Held:
    """The servers of one sign-in, and how many clients use them."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    servers: ToolServers = field(init=False)
    clients: int = 0


class SignInServers:
    """The servers of all sign-ins."""

    def __init__(self, app: App, tasks: anyio.abc.TaskGroup, *, max_per_user: int) -> None:
        self._app, self._tasks = app, tasks
        self._max_per_user = max_per_user
        self._offers = OfferedServers(
            app.store.home, lambda: app.scanner, signed_grants(app.store.home, app.settings)
        )
        # A start follows from a call that the rules have allowed, and the operator has chosen the
        # command and the domains: rules of the configuration judge it where there are any.
        self._policy = default_policy(app, os.environ, cwd=None, has_domains=True)
        self._held: dict[Owner, _Held] = {}
        self._ending: list[tuple[str, ToolServers]] = []
        """Sets without a client, with the id of their user, until their sandboxes have ended."""
        self._opening = anyio.Lock()

    def of(self, owner: Owner, who: Principal) -> LentServers:
        """For one client of a sign-in."""
        return LentServers(self, owner, who)

    def all(self) -> list[tuple[str, ToolServers, LiveServer]]:
        """User id, set and server: for the operator alone, never for a request."""
        return [
            (user_id, held.servers, server)
            for (user_id, _), held in tuple(self._held.items())
            for server in held.servers.live()
        ]

    async def borrow(self, owner: Owner, who: Principal) -> ToolServers:
        async with self._opening:  # concurrent first clients share one set
            held = self._held.get(owner)
            if held is None:
                held = _Held()
                await self._tasks.start(self._run, held, owner, who)
                self._held[owner] = held
            held.clients += 1
            return held.servers

    async def give_back(self, owner: Owner, servers: ToolServers) -> None:
        held = self._held.get(owner)
        if held is None or held.servers is not servers:
            return
        held.clients -= 1
        if not held.clients:
            del self._held[owner]
            ending = owner[0], servers
            self._ending.append(ending)
            try:
                with anyio.CancelScope(shield=True):
                    await servers.close()
            finally:
                self._ending.remove(ending)
                held.scope.cancel()

    async def _run(
        self,
        held: _Held,
        owner: Owner,
        who: Principal,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """The tasks of the servers of one sign-in; their failure ends no others."""
        try:
            with held.scope:
                async with anyio.create_task_group() as tasks:
                    held.servers = ToolServers(
                        self._app,
                        tasks,
                        starter=who,
                        policy=self._policy,
                        offers=self._offers,
                        admit=lambda: self._admit(owner[0]),
                    )
                    task_status.started()
                    await anyio.sleep_forever()
        except Exception:  # noqa: BLE001  # the servers of other users go on
            _log.exception("the servers of a user did not end cleanly")

    def _admit(self, user_id: str) -> None:
        used = [(owner[0], held.servers) for owner, held in self._held.items()]
        live = sum(each.count for user, each in (*used, *self._ending) if user == user_id)
        if live >= self._max_per_user:
            raise Busy(
                f"{self._max_per_user} MCP servers of this user are running",
                hint="End other sessions: their servers end with them.",
                code="CW-TOO-MANY-SESSIONS",
            )


class LentServers:
    """Implements `ServerLender` for one client of a sign-in."""

    def __init__(self, lender: SignInServers, owner: Owner, who: Principal) -> None:
        self._lender, self._owner, self._who = lender, owner, who

    async def borrow(self, tasks: anyio.abc.TaskGroup) -> ToolServers:  # noqa: ARG002  # shared servers outlive a client
        return await self._lender.borrow(self._owner, self._who)

    async def give_back(self, servers: ToolServers) -> None:
        await self._lender.give_back(self._owner, servers)
