"""One MCP server of a client, with the sandbox that it runs in (SRV-7)."""

# ruff: noqa: PLC0415  # late imports: the SDK loads slowly, and a list of servers does not need it

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from cellwall.runtime.server_entries import ServerSettings

if TYPE_CHECKING:
    from cellwall.mcp_servers.connection import ServerConnection

_START_TIMEOUT_S = 60.0
_END_WITHIN_S = 30.0


@dataclass(eq=False, slots=True)
class LiveServer:
    """A server with its sandbox; the process in it may have ended."""

    settings: ServerSettings
    session: AbstractContextManager[str]
    session_id: str
    lock: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True))
    connection: ServerConnection | None = None
    stop: anyio.Event = field(default_factory=anyio.Event)
    finished: anyio.Event = field(default_factory=anyio.Event)
    usable: frozenset[str] | None = None
    """None: not compared since the server announced other tools."""
    sha256: str = ""
    """The digest of the set that was compared last."""
    starts_s: list[float] = field(default_factory=list)
    is_comparing: bool = False
    compared_s: float = -1e9
    made_s: float = field(default_factory=time.time)
    errors: bytes = b""
    """The end of its standard error, for the person who reviews it."""

    def may_use(self, tool: str) -> bool:
        """Not to be refused yet: before a comparison the call itself compares."""
        return self.usable is None or tool in self.usable

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_up(self) -> bool:
        return self.connection is not None and not self.connection.ended.is_set()


async def end_servers(servers: Sequence[LiveServer], ending: list[LiveServer]) -> None:
    """End servers and their sandboxes, also if one fails. They are in `ending` until then:
    processes that are ending must not add up to more than a user may have."""
    ending += servers
    failed: Exception | None = None
    for each in servers:
        each.stop.set()
    for each in servers:
        try:
            with anyio.CancelScope(shield=True):
                await _end_server(each)
        except Exception as error:  # noqa: BLE001  # raised below; the others must end as well
            failed = error
        finally:
            ending.remove(each)
    if failed is not None:
        raise failed


async def _end_server(live: LiveServer) -> None:
    if live.connection is not None:
        with anyio.move_on_after(_END_WITHIN_S):
            await live.finished.wait()
    leave = partial(live.session.__exit__, None, None, None)
    await anyio.to_thread.run_sync(leave)


def new_connection(settings: ServerSettings) -> ServerConnection:
    """A connection that is not started yet."""
    from cellwall import __version__
    from cellwall.mcp_servers.connection import ConnectionSettings, ServerConnection

    bounds = ConnectionSettings(
        start_timeout_s=_START_TIMEOUT_S,
        call_timeout_s=settings.timeout_s,
        may_elicit=settings.may_elicit,
        version=__version__,
    )
    return ServerConnection(settings.name, bounds)
