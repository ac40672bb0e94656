"""One connection from a cell: its destination, and how a refusal is sent to the client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from cellwall.core.errors import CellwallError, EgressRefused
from cellwall.egress.protocols.error_replies import http_refusal
from cellwall.egress.proxy.streams import ByteStream, PeerClosed, SocketStream
from cellwall.egress.settings import EgressSettings

_REFUSAL_TIMEOUT_S = 2.0

RefusalEncoder = Callable[[CellwallError, str, int], bytes]

_TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x31"
"""Fatal alert access_denied: a TLS client ends at once instead of waiting for its timeout."""


def encode_http_refusal(error: CellwallError, host: str, port: int) -> bytes:
    """A complete HTTP response."""
    return http_refusal(error, host=host, port=port)


def encode_tls_alert(_error: CellwallError, _host: str, _port: int) -> bytes:
    """A TLS alert."""
    return _TLS_ALERT


def encode_no_refusal(_error: CellwallError, _host: str, _port: int) -> bytes:
    """No bytes: the protocol is unknown, or cannot express a refusal in this state."""
    return b""


@dataclass(slots=True, kw_only=True)
class ClientConnection:
    """Mutable: the protocol of a connection changes, such as from CONNECT to TLS to HTTP."""

    transport: SocketStream
    stream: ByteStream
    """The transport, or TLS over it once that is intercepted."""
    via: str
    """`proxy` at first, then `connect`, `socks`, `http`, `opened` or `transparent`."""
    encode_refusal: RefusalEncoder
    """Encodes a refusal in the current protocol; no bytes once a response has begun."""
    host: str = ""
    port: int = 0
    refusal: CellwallError | None = None
    """Known before the first byte; sent once the client's protocol is known."""

    def check_admitted(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def set_target(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def send(self, data: bytes, settings: EgressSettings) -> None:
        until = asyncio.get_running_loop().time() + settings.head_timeout_s
        await self.stream.send(data, until)

    async def refuse(self, error: CellwallError) -> None:
        """Send the refusal if the protocol still allows it, and end the connection."""
        answer = self.encode_refusal(error, self.host, self.port)
        if not answer or self.transport.is_closed:
            self.transport.abort()
            return
        with contextlib.suppress(PeerClosed, EgressRefused):
            await self.stream.send(answer, asyncio.get_running_loop().time() + _REFUSAL_TIMEOUT_S)
        await self.stream.close_after_answer()
