"""The service's sandboxes as the operator sees them: `cellwall ps`, `logs` and `kill`.

The operator is the operating system's account that runs the service. It could read the process and
the state folder anyway, so it sees the sandboxes of all users; what it ends is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cellwall.core.accounts import UsersPort
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json
from cellwall.interfaces.http.sandboxes import OwnedSandbox, OwnedSandboxes
from cellwall.interfaces.mcp.http_clients import ServedSandbox
from cellwall.runtime.wiring import App, principal

_LOG_CHARACTERS = 256 * 1024


class OperatorView:
    """Implements `HostedService`. Before the application has started there are no sandboxes."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._app: App | None = None
        self._users: UsersPort | None = None
        self._sandboxes: Callable[[], OwnedSandboxes | None] = lambda: None
        self._mcp: Callable[[], list[ServedSandbox]] = list

    def follow(
        self,
        app: App,
        users: UsersPort,
        sandboxes: Callable[[], OwnedSandboxes | None],
        mcp: Callable[[], list[ServedSandbox]],
    ) -> None:
        """Show the sandboxes of a running application, those of MCP clients included."""
        self._app, self._users, self._sandboxes, self._mcp = app, users, sandboxes, mcp

    @property
    def address(self) -> str:
        return self._address

    async def describe(self) -> list[Json]:
        names = {each.owner_id: each.owner_id for each in self._all()}
        for owner_id in names:
            user = None if self._users is None else await self._users.find_user(owner_id)
            names[owner_id] = owner_id if user is None else user.name
        now = time.monotonic()
        idle_s = 0 if self._app is None else self._app.settings.mcp.idle_s
        of_clients: list[Json] = [
            {
                "id": each.id,
                "made_s": each.made_s,
                "idle_s": round(each.idle_s, 1),
                "ends_in_s": round(max(0.0, idle_s - each.idle_s), 1),
                "is_busy": each.is_busy,
                "calls": 0,
                "owner": each.owner.name,
            }
            for each in self._mcp()
        ]
        of_the_api: list[Json] = [
            {
                "id": each.id,
                "made_s": each.made_s,
                "idle_s": round(now - each.used_at, 1),
                "ends_in_s": round(each.ends_in_s, 1),
                "is_busy": each.busy > 0,
                "calls": each.runs.count,
                "owner": names.get(each.owner_id, each.owner_id),
            }
            for each in self._all()
        ]
        return of_the_api + of_clients

    def has(self, sandbox_id: str) -> bool:
        ids = {each.id for each in self._all()} | {each.id for each in self._mcp()}
        return sandbox_id in ids

    def log(self, sandbox_id: str) -> bytes:
        found = next((each for each in self._all() if each.id == sandbox_id), None)
        text = "" if found is None else found.runs.output()
        return text[-_LOG_CHARACTERS:].encode("utf-8", "replace")

    async def kill(self, sandbox_id: str) -> None:
        sandboxes, app = self._sandboxes(), self._app
        found = next((each for each in self._all() if each.id == sandbox_id), None)
        of_client = next((each for each in self._mcp() if each.id == sandbox_id), None)
        if app is None or sandboxes is None:
            return
        if found is not None:
            await self._record(app, sandbox_id, found.owner_id)
            await sandboxes.end(found)
        elif of_client is not None:
            await self._record(app, sandbox_id, of_client.owner.user_id)
            await of_client.end()

    async def _record(self, app: App, sandbox_id: str, owner_id: str) -> None:
        who = principal("cli")
        body: dict[str, Json] = {"status": "ended by the operator", "owner": owner_id}
        event = Event(EventKind.SESSION, "", who.name, who.interface, body, sandbox_id)
        await app.audit.record(event)

    def _all(self) -> tuple[OwnedSandbox, ...]:
        sandboxes = self._sandboxes()
        return () if sandboxes is None else sandboxes.all()
