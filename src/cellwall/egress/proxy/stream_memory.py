"""The memory that the open HTTP/2 streams of one session take in this process (NET-2, LIM-6).

Windows bound the bytes of bodies that wait, but nothing in HTTP/2 bounds heads: 256 connections
with 100 streams each, and a server that answers none of them, would keep 25,600 heads of 32 KB.
"""

from __future__ import annotations

from cellwall.egress.protocols.http1_framing import Headers

_MAX_BYTES = 16 * 1024 * 1024
"""About 1,800 usual streams at once, or 5 connections full of streams with the largest heads."""
_FIELD_BYTES = 32
"""Overhead of a field, as in RFC 9113, 6.5.2."""
STREAM_BYTES = 8 * 1024
"""Tasks and objects of a stream without its heads."""


def head_bytes(headers: Headers) -> int:
    """The size of a head in memory."""
    return sum(len(name) + len(value) + _FIELD_BYTES for name, value in headers)


class StreamMemory:
    """Counts what streams hold, until they are removed."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def take(self, count: int) -> bool:
        """Count bytes that a stream holds from now on; False if the session holds too many."""
        if self.held_bytes + count > _MAX_BYTES:
            return False
        self.held_bytes += count
        return True

    def release(self, count: int) -> None:
        self.held_bytes -= count
