"""One WebSocket between a client and a server inside a sandbox."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from cellwall.core.port_connections import PortTraffic
from cellwall.interfaces.previews.exchange import PreviewFailed, request_headers

if TYPE_CHECKING:
    import socket

    from starlette.types import Receive, Scope, Send

_MAX_MESSAGE_BYTES = 1024 * 1024
_OPEN_WITHIN_S = 10.0
# Of the handshake, which the client library writes itself.
_HANDSHAKE = ("host", "sec-websocket-", "origin", "user-agent")


async def bridge(
    scope: Scope, receive: Receive, send: Send, connected: socket.socket, *, target: str
) -> PortTraffic:
    """Pass messages on until one side closes; raises `PreviewFailed` before the client's handshake
    was answered. The frames are parsed on both sides: neither sees a malformed one."""
    own = dict(scope["headers"])
    host = own.get(b"host", b"localhost").decode("latin-1")
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in request_headers(scope["headers"], keeps_authorization=True)
        if not name.decode("latin-1").startswith(_HANDSHAKE)
    ]
    wanted = [Subprotocol(each) for each in scope.get("subprotocols", ())]
    try:
        server = await connect(
            f"ws://{host}{target}",
            sock=connected.dup(),
            origin=own[b"origin"].decode("latin-1") if b"origin" in own else None,
            additional_headers=headers,
            subprotocols=wanted or None,
            compression=None,
            max_size=_MAX_MESSAGE_BYTES,
            open_timeout=_OPEN_WITHIN_S,
            proxy=None,
        )
    except (
        WebSocketException,
        OSError,
        TimeoutError,
        ValueError,
    ) as error:  # of a redirect
        raise PreviewFailed("the server refused the WebSocket") from error
    sent_bytes = received_bytes = 0
    async with server, anyio.create_task_group() as tasks:
        await send({"type": "websocket.accept", "subprotocol": server.subprotocol})

        async def inwards() -> None:
            nonlocal sent_bytes
            with suppress(ConnectionClosed):
                while (message := await receive())["type"] == "websocket.receive":
                    data = message.get("bytes") or message.get("text") or ""
                    sent_bytes += len(data)
                    await server.send(data)
            tasks.cancel_scope.cancel()

        tasks.start_soon(inwards)
        with suppress(ConnectionClosed):
            async for data in server:
                received_bytes += len(data)
                kind = "text" if isinstance(data, str) else "bytes"
                await send({"type": "websocket.send", kind: data})
        with suppress(RuntimeError):  # closed by the client meanwhile
            await send({"type": "websocket.close", "code": server.close_code or 1000})
        tasks.cancel_scope.cancel()
    return PortTraffic(sent_bytes, received_bytes)
