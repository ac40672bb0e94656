"""Connections to servers that run inside a sandbox."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class PortTraffic:
    """What went through a connection."""

    sent_bytes: int = 0
    """To the server inside."""
    received_bytes: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ConnectPort:
    """Connect to a server inside a live sandbox, for as long as `hold` takes (INT-2).

    Not egress: the caller of the sandbox connects to it, and nothing inside can connect out.
    """

    port: int
    hold: Callable[[socket.socket], Awaitable[PortTraffic]] = field(repr=False, compare=False)
    """Called with the connection, which does not block; its bytes are untrusted."""
