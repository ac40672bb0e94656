"""Requests to services of this process: counted and recorded as a connection, without a socket.

The client connections of one action share one `ServiceConnection` to each host and port. A package
manager opens many connections at a time, and each would have two records that say the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cellwall.core.network import AnswerRequest
from cellwall.egress.limits import ConnectionPool, Direction, PoolKey, SessionBudget
from cellwall.egress.proxy.audit_events import ConnectionRecord


class ServiceConnection:
    """Implements `IdleConnection`. Its bytes count as those of a connection to a server."""

    def __init__(
        self, answer: AnswerRequest, connection_record: ConnectionRecord, budget: SessionBudget
    ) -> None:
        self.answer = answer
        self.connection_record = connection_record
        self._budget = budget
        self._bytes: dict[Direction, int] = {"up": 0, "down": 0}

    def room(self, direction: Direction) -> int:
        """How many bytes may pass; refuses where the limit of the session is reached."""
        self._budget.check(direction)
        return self._budget.room(direction)

    async def spend(self, direction: Direction, count: int) -> None:
        """Count bytes, and wait where the bandwidth limit says so."""
        self._bytes[direction] += count
        if pause := self._budget.spend(direction, count):
            await asyncio.sleep(pause)

    def next_cycle(self) -> bool:
        return True

    def is_quiet(self) -> bool:
        return True

    def drop(self) -> None:
        self.connection_record.write_closed(
            up_bytes=self._bytes["up"], down_bytes=self._bytes["down"]
        )


@dataclass(slots=True)
class _SharedConnection:
    opening: asyncio.Task[ServiceConnection]
    users: int = 0


class ServiceConnections:
    """The open ones of a session, by host, port and action; idle ones are in the pool."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._shared: dict[PoolKey, _SharedConnection] = {}
        self._opening: set[asyncio.Task[ServiceConnection]] = set()

    async def enter(
        self, key: PoolKey, connect: Callable[[], Awaitable[ServiceConnection]]
    ) -> ServiceConnection:
        """The connection of this key; `connect` opens one. `leave` must follow."""
        shared = self._shared.get(key)
        if shared is None:
            opening = asyncio.get_running_loop().create_task(self._open(key, connect))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
            shared = self._shared[key] = _SharedConnection(opening)
        shared.users += 1
        try:
            # A client that leaves must not end the work that others wait for.
            return await asyncio.shield(shared.opening)
        except BaseException:
            self.leave(key)
            raise

    async def _open(
        self, key: PoolKey, connect: Callable[[], Awaitable[ServiceConnection]]
    ) -> ServiceConnection:
        idle = self._pool.take(key)
        return idle if isinstance(idle, ServiceConnection) else await connect()

    def leave(self, key: PoolKey) -> None:
        """End the use by one client connection; the last one releases the connection."""
        shared = self._shared[key]
        shared.users -= 1
        if shared.users:
            return
        del self._shared[key]
        opening = shared.opening
        if not opening.done():
            opening.cancel()  # no client waits for the connection any more
        elif not opening.cancelled() and opening.exception() is None:
            self._pool.put(key, opening.result())

    async def end(self) -> None:
        """Wait until nothing is being opened: no record may follow the end of the session."""
        for opening in self._opening:
            opening.cancel()
        if self._opening:
            await asyncio.wait(tuple(self._opening))
