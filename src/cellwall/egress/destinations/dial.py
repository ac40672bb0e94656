"""Connects to one of several checked addresses (RFC 8305, "happy eyeballs").

No task and no thread is used, only the loop's own watch on each socket: so whatever ends the wait,
an answer, the deadline or a cancellation, every other socket is closed before anything else runs.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Iterable
from itertools import zip_longest

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.addresses import Address

ATTEMPT_DELAY_S = 0.25
"""How long an address may take before the next one is tried beside it (RFC 8305, section 8)."""
_MAX_ATTEMPTS = 2
"""At a time. Each is a descriptor, and whoever answers for a name chooses how many stay silent."""


async def dial(addresses: Iterable[Address], port: int, *, timeout_s: float) -> socket.socket:
    """A connected, non-blocking socket to one of exactly these addresses."""
    if not 0 < port < 65536:
        raise _unreachable("no such port")
    race = _Race(port)
    try:
        async with asyncio.timeout(timeout_s):
            await race.run(_interleaved(addresses))
        winner = race.take_winner()
    except TimeoutError:
        raise _unreachable(", ".join([*race.failures, "late"])) from None
    finally:
        race.close()
    if winner is None:
        raise _unreachable(", ".join(race.failures) or "no address")
    return winner


def _unreachable(detail: str) -> EgressRefused:
    return EgressRefused(
        "the host cannot be reached",
        hint="Look whether it is up and listens on this port.",
        code="CW-UNREACHABLE",
        detail=detail,
    )


class _Race:
    """The attempts of one call. Every socket is in `_open` until it is closed or taken."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._winner: socket.socket | None = None
        self._changed = asyncio.Event()
        self.failures: list[str] = []

    async def run(self, waiting: deque[Address]) -> None:
        """Until one is connected or all have failed."""
        while self._winner is None and (waiting or self._open):
            self._changed.clear()
            if waiting:
                if len(self._open) >= _MAX_ATTEMPTS:
                    self._drop(next(iter(self._open)))
                self._start(waiting.popleft())
            try:
                async with asyncio.timeout(ATTEMPT_DELAY_S if waiting else None):
                    await self._changed.wait()
            except TimeoutError:
                continue  # the next one beside those that still try

    def take_winner(self) -> socket.socket | None:
        """The connected socket, which is the caller's from here on."""
        if self._winner is not None:
            self._open.pop(self._winner, None)
        return self._winner

    def close(self) -> None:
        for sock in tuple(self._open):
            self._drop(sock)

    def _start(self, address: Address) -> None:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no IPv6 here, or no descriptor left
            self._failed(address, error.errno)
            return
        self._open[sock] = None
        sock.setblocking(False)
        code = sock.connect_ex((str(address), self._port))
        if code == errno.EINPROGRESS:
            self._loop.add_writer(sock, self._settle, sock, address)
        else:
            self._settle(sock, address, code)

    def _settle(self, sock: socket.socket, address: Address, code: int | None = None) -> None:
        self._loop.remove_writer(sock)
        if code is None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and self._winner is None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._winner = sock
            self._changed.set()
        elif code != 0:
            self._drop(sock)
            self._failed(address, code)

    def _failed(self, address: Address, code: int | None) -> None:
        self.failures.append(f"{address}: {os.strerror(code or 0)}")
        self._changed.set()

    def _drop(self, sock: socket.socket) -> None:
        self._open.pop(sock, None)
        self._loop.remove_writer(sock)
        sock.close()


def _interleaved(addresses: Iterable[Address]) -> deque[Address]:
    """IPv6 and IPv4 by turns, so that a broken one costs one delay; the first stays first."""
    listed = tuple(dict.fromkeys(addresses))
    first = [found for found in listed if found.version == listed[0].version]
    other = [found for found in listed if found.version != listed[0].version]
    pairs = zip_longest(first, other)
    return deque(found for pair in pairs for found in pair if found is not None)
