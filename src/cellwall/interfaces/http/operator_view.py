"""The service's sandboxes as the operator sees them: `cellwall ps`, `logs` and `kill`.

The operator is the operating system's account that runs the service. It could read the process and
the state folder anyway, so it sees the sandboxes of all users, of the API and of MCP; what it ends
is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio

from cellwall.core.account_ports import UsersPort
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.sandbox_ports import LiveUsage
from cellwall.core.types import Json
from cellwall.runtime.app import App
from cellwall.runtime.home import local_principal

if TYPE_CHECKING:
    from fastapi import FastAPI

    from cellwall.interfaces.http.service import Service
    from cellwall.interfaces.mcp.http_endpoint import McpEndpoint

_LOG_CHARACTERS = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operated:
    """One live sandbox of a user, wherever it was created."""

    id: str
    owner_id: str
    made_s: float
    idle_s: float
    ends_in_s: float
    is_busy: bool
    calls: int
    log: Callable[[], str]
    end: Callable[[], Awaitable[None]]


class OperatorView:
    """Implements `HostedService`. Before the application has started there are no sandboxes."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._app: App | None = None
        self._users: UsersPort | None = None
        self._api: FastAPI | None = None

    def follow(self, app: App, users: UsersPort, api: FastAPI) -> None:
        """Show the sandboxes of an application."""
        self._app, self._users, self._api = app, users, api

    @property
    def address(self) -> str:
        return self._address

    async def describe(self) -> list[Json]:
        found = list(self._all())
        names: dict[str, str] = {}
        for owner_id in {each.owner_id for each in found}:
            user = None if self._users is None else await self._users.find_user(owner_id)
            names[owner_id] = owner_id if user is None else user.name
        usages = {
            each.id: LiveUsage()
            if self._app is None
            else self._app.runtime.sandbox.live_usage(each.id)
            for each in found
        }
        return [
            {
                "id": each.id,
                "made_s": each.made_s,
                "idle_s": round(each.idle_s, 1),
                "ends_in_s": round(each.ends_in_s, 1),
                "is_busy": each.is_busy,
                "calls": each.calls,
                "cpu_s": round(usages[each.id].cpu_s, 3),
                "memory_bytes": usages[each.id].memory_bytes,
                "owner": names[each.owner_id],
            }
            for each in found
        ]

    def has(self, sandbox_id: str) -> bool:
        return self._find(sandbox_id) is not None

    def log(self, sandbox_id: str) -> bytes:
        found = self._find(sandbox_id)
        text = "" if found is None else found.log()
        return text[-_LOG_CHARACTERS:].encode("utf-8", "replace")

    async def kill(self, sandbox_id: str) -> None:
        found = self._find(sandbox_id)
        if found is None or self._app is None:
            return  # it ended meanwhile
        who = local_principal("cli")
        body: dict[str, Json] = {"status": "ended by the operator", "owner": found.owner_id}
        event = Event(EventKind.SESSION, "", who.name, who.interface, body, sandbox_id)
        await self._app.audit.record(event)
        await found.end()

    def _find(self, sandbox_id: str) -> _Operated | None:
        return next((each for each in self._all() if each.id == sandbox_id), None)

    def _all(self) -> Iterator[_Operated]:
        service = None if self._api is None else getattr(self._api.state, "service", None)
        if self._api is not None and service is not None:
            yield from _of_api(service)
            yield from _of_mcp(self._api.state.mcp, service.app.settings.mcp.idle_s)
            yield from _of_gateway(self._api.state.mcp)


def _of_api(service: Service) -> Iterator[_Operated]:
    now = time.monotonic()
    for each in service.sandboxes.all():
        yield _Operated(
            id=each.id,
            owner_id=each.owner_id,
            made_s=each.made_s,
            idle_s=now - each.used_at,
            ends_in_s=each.ends_in_s,
            is_busy=each.busy > 0,
            calls=each.runs.count,
            log=each.runs.output,
            end=partial(service.sandboxes.end, each),
        )


def _of_mcp(endpoint: McpEndpoint, idle_limit_s: float) -> Iterator[_Operated]:
    """Output of calls goes to the client alone: there is no log."""
    for client in endpoint.all_clients():
        idle_s = anyio.current_time() - client.used_at
        for each in client.sandboxes.all():
            yield _Operated(
                id=each.id,
                owner_id=client.identity.user_id,
                made_s=each.made_s,
                idle_s=idle_s,
                ends_in_s=idle_limit_s - idle_s,
                is_busy=each.calls.count > 0,
                calls=each.calls.count,
                log=str,
                end=partial(client.sandboxes.end, each),
            )


def _of_gateway(endpoint: McpEndpoint) -> Iterator[_Operated]:
    """Servers of the gateway live as long as the clients of their sign-in."""
    for owner_id, servers, each in endpoint.all_servers():
        yield _Operated(
            id=each.session_id,
            owner_id=owner_id,
            made_s=each.made_s,
            idle_s=0.0,
            ends_in_s=0.0,
            is_busy=each.is_up,
            calls=0,
            log=str,
            end=partial(servers.end, each),
        )
