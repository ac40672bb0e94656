"""One host in a process of Ray: a detached actor that owns the runtime of its machine.

Only texts, bytes, numbers, lists and dicts cross. The application comes by the name of a function,
since it stands above this part: it opens the service of a state folder without a socket.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from cellwall.core.errors import CellwallError
from cellwall.fleet.bounded_messages import MAX_MESSAGES
from cellwall.fleet.engine import Application
from cellwall.fleet.exchanges import HostExchange, Plain
from cellwall.fleet.ray_peers import RayPeers

Result = TypeVar("Result")
_MAX_SEEN = 100_000
"""Ids of calls that a host remembers."""
_MAX_EARLY = 1000
"""Calls of which something came before the request."""


class OpenedHost(Protocol):
    """A service without a socket."""

    @property
    def application(self) -> Application: ...

    async def first_owner_code(self) -> str:
        """Of the sign-in link of the first owner; empty once there is a user."""

    async def hear(self, question: bytes) -> bytes:
        """The answer to another host."""

    async def closed(self) -> None:
        """Returns when the service has ended, by `close` or by itself."""

    async def close(self) -> None: ...


class RayHost:
    """The actor. The service has a thread and an event loop of its own: Ray blocks the loop of an
    actor while the process that called it is gone, and a host must keep its lease then."""

    def __init__(self, opening: str, options: Mapping[str, Any]) -> None:
        self._opening, self._options = opening, options
        self._loop = asyncio.new_event_loop()
        self._host: OpenedHost | None = None
        self._exchanges: dict[str, HostExchange] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._early: OrderedDict[str, list[Plain]] = OrderedDict()
        self._watcher: asyncio.Future[None] | None = None
        self._is_stopping = False

    async def start(self) -> Plain:
        """Open the service; `{"error": …}` where it refuses, since an exception would cross as an
        object."""
        threading.Thread(target=self._run, name="cellwall-host", daemon=True).start()
        return await self._in_service(self._open())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _in_service(self, work: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _open(self) -> Plain:
        module, _, name = self._opening.partition(":")
        try:
            self._host = await getattr(importlib.import_module(module), name)(
                self._options, RayPeers()
            )
        except CellwallError as error:
            return {"error": [error.code, error.message, error.hint]}
        self._watcher = asyncio.ensure_future(self._end_with(self._host))
        return {"pid": os.getpid()}

    async def _end_with(self, host: OpenedHost) -> None:
        """A host that was removed or has failed leaves no process behind."""
        await host.closed()
        if not self._is_stopping:
            os._exit(0)

    async def closed(self) -> None:
        """Until the service has ended; the call fails when the process or its machine is gone."""
        await self._in_service(self._opened().closed())

    async def owner_code(self) -> str:
        return await self._in_service(self._opened().first_owner_code())

    async def hear(self, question: bytes) -> bytes:
        """What another host asks this one."""
        return await self._in_service(self._opened().hear(question))

    async def answer(self, call_id: str, scope: Plain, body: bytes) -> Plain:
        """The first messages of an answer, which are all of most answers; `more` has the others. A
        call that comes twice is refused: whatever carries it, a request is executed once."""
        if call_id in self._seen:
            raise RuntimeError("a call came twice")
        self._see(call_id)
        application, forget = self._opened().application, partial(self._forget, call_id)
        exchange = HostExchange(application, scope, body, forget)
        for message in self._early.pop(call_id, ()):
            exchange.feed_now(message)
        self._exchanges[call_id] = exchange
        return await self.more(call_id, 0)

    def _see(self, call_id: str) -> None:
        self._seen[call_id] = None
        if len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    async def more(self, call_id: str, number: int) -> Plain:
        """The next messages of an answer. Not a stream of Ray: that costs twice the time and
        processor of a call, and keeps in the front what its client has not taken."""
        return await self._in_service(self._exchanges[call_id].next_part(number))

    def _forget(self, call_id: str) -> None:
        self._exchanges.pop(call_id, None)

    async def feed(self, call_id: str, message: Plain) -> None:
        """A later message of the client: a frame of a WebSocket, or the end of the connection. Ray
        keeps no order among calls: a message may come before its request."""
        exchange = self._exchanges.get(call_id)
        if exchange is not None:
            await self._in_service(exchange.feed(message))
        elif call_id not in self._seen:
            early = self._early.setdefault(call_id, [])
            early.append(message)
            if len(early) > MAX_MESSAGES:  # the request is refused when it comes
                del self._early[call_id]
                self._see(call_id)
            elif len(self._early) > _MAX_EARLY:
                self._early.popitem(last=False)

    async def leave(self, call_id: str) -> None:
        """The front takes no more of an answer; a request that comes afterwards is refused."""
        exchange = self._exchanges.get(call_id)
        if exchange is not None:
            self._loop.call_soon_threadsafe(exchange.abandon)
        elif call_id not in self._seen:
            self._see(call_id)

    async def stop(self) -> None:
        """End the service with its sessions."""
        self._is_stopping = True
        if self._host is not None:
            await self._in_service(self._host.close())
            self._host = None

    def _opened(self) -> OpenedHost:
        if self._host is None:
            raise RuntimeError("the host has not started")
        return self._host
