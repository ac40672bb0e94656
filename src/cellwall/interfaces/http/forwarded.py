"""The address of a client behind a reverse proxy.

All clients of a proxy come from its address, so limits by address would hold for all of them
together: a few forged tokens of one client would keep everybody from signing in. A proxy that the
settings name is believed about one thing, the address that it appends to `X-Forwarded-For`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_FIELD = b"x-forwarded-for"


class ForwardedClients:
    """ASGI middleware: puts the address of the client in the place of its proxy's."""

    def __init__(self, app: ASGIApp, *, proxies: Iterable[str]) -> None:
        self._app = app
        self._proxies = frozenset(_canonical(each) for each in proxies) - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if peer and _canonical(peer[0]) in self._proxies:
            found = self._client_of(value for name, value in scope["headers"] if name == _FIELD)
            scope = {**scope, "client": (found or peer[0], peer[1])}
        await self._app(scope, receive, send)

    def _client_of(self, values: Iterable[bytes]) -> str | None:
        """The last address that is not one of the proxies'. Those before it are the client's own
        words. None: nothing is there, or it is no address."""
        text = b",".join(values).decode("latin-1")
        for each in reversed(text.split(",")):
            address = _canonical(each.strip())
            if address not in self._proxies:
                return address or None
        return None


def _canonical(text: str) -> str:
    """One spelling of an address; empty for what is none."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
