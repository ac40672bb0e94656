"""Bytes both ways between two streams after a switch of protocols, each piece looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from cellwall.core.errors import EgressRefused
from cellwall.egress.proxy.streams import Stream

Look = Callable[[bytes], None]
"""Raises `EgressRefused` for what must not pass."""


async def relay_watched(
    client: Stream,
    server: Stream,
    *,
    idle_timeout_s: float,
    first_up: bytes,
    first_down: bytes,
    turn: Callable[[], Awaitable[None]],
    look_up: Look | None = None,
    look_down: Look | None = None,
) -> None:
    """Until one of them ends: TLS and WebSocket know no half-closed connection.

    `turn` is awaited before each piece.
    """
    loop = asyncio.get_running_loop()
    moved_at_s = loop.time()

    async def one_way(source: Stream, target: Stream, first: bytes, look: Look | None) -> None:
        nonlocal moved_at_s
        data = first
        while True:
            if data:
                moved_at_s = loop.time()
                await turn()
                if look is not None:
                    look(data)
                await target.send(data, loop.time() + idle_timeout_s)
            try:
                data = await source.recv(moved_at_s + idle_timeout_s)
            except EgressRefused:
                # A stream that only ever goes the other way is not idle.
                if loop.time() < moved_at_s + idle_timeout_s:
                    data = b""
                    continue
                raise
            if not data:
                return

    tasks = (
        asyncio.create_task(one_way(client, server, first_up, look_up)),
        asyncio.create_task(one_way(server, client, first_down, look_down)),
    )
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
