"""One connection from inside a cell: where it wants to go, and how it is told a no."""

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
"""Fatal, access denied: a TLS client ends at once instead of waiting for its time-out."""


def encode_http_refusal(error: CellwallError, host: str, port: int) -> bytes:
    """A whole answer."""
    return http_refusal(error, host=host, port=port)


def encode_tls_alert(_error: CellwallError, _host: str, _port: int) -> bytes:
    """An alert."""
    return _TLS_ALERT


def encode_no_refusal(_error: CellwallError, _host: str, _port: int) -> bytes:
    """The protocol has no words for it now, or is not known."""
    return b""


@dataclass(slots=True, kw_only=True)
class ClientConnection:
    """Changes as the connection goes on: what it speaks at first is not what it speaks later."""

    transport: SocketStream
    stream: ByteStream
    """The wire, or TLS over it once that is opened."""
    via: str
    """`proxy` until more is known, then `connect`, `socks`, `http`, `opened` or `transparent`."""
    encode_refusal: RefusalEncoder
    """The words of the protocol that the client expects next; nothing once an answer has begun."""
    host: str = ""
    port: int = 0
    refusal: CellwallError | None = None
    """Known before the first byte; told in the client's own words once these are known."""

    def check_admitted(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def set_target(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def send(self, data: bytes, settings: EgressSettings) -> None:
        until = asyncio.get_running_loop().time() + settings.head_timeout_s
        await self.stream.send(data, until)

    async def refuse(self, error: CellwallError) -> None:
        """Tell the client, if it can still be told, and end the connection either way."""
        answer = self.encode_refusal(error, self.host, self.port)
        if not answer or self.transport.is_closed:
            self.transport.abort()
            return
        with contextlib.suppress(PeerClosed, EgressRefused):
            await self.stream.send(answer, asyncio.get_running_loop().time() + _REFUSAL_TIMEOUT_S)
        await self.stream.close_after_answer()
