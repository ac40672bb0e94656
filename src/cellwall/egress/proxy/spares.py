"""Connections to servers that one request has left over and the next may use, within a session."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from cellwall.egress.proxy.resources import Crowd

if TYPE_CHECKING:
    from cellwall.egress.proxy.connections import ServerEnd

_MOST = 32
_KEPT_S = 10.0

Key = tuple[str, int, bool, str]
"""Host, port, whether it is with TLS, and the action: only the very same is the same."""


class Spares:
    """Few, and not for long: servers close what they do not hear from."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._kept: dict[Key, deque[tuple[ServerEnd, asyncio.TimerHandle]]] = {}
        self._count = 0

    def take(self, key: Key) -> ServerEnd | None:
        """The one that was used last, if the server has not closed it meanwhile."""
        while ends := self._kept.get(key):
            server, timer = ends.pop()
            timer.cancel()
            self._leave()
            if server.is_quiet():
                return server
            server.drop()
        return None

    def put(self, key: Key, server: ServerEnd) -> None:
        """Keep it if one more request could go by it, else end it."""
        is_full = self._count >= _MOST or not server.next_cycle()
        if is_full or not self._crowd.enter(_MOST):
            server.drop()
            return
        timer = asyncio.get_running_loop().call_later(_KEPT_S, self._expire, key)
        self._kept.setdefault(key, deque()).append((server, timer))
        self._count += 1

    def _expire(self, key: Key) -> None:
        server, _ = self._kept[key].popleft()  # the oldest is the first whose time is over
        self._leave()
        server.drop()

    def _leave(self) -> None:
        self._count -= 1
        self._crowd.leave()

    def close(self) -> None:
        for ends in self._kept.values():
            for server, timer in ends:
                timer.cancel()
                self._leave()
                server.drop()
        self._kept.clear()
