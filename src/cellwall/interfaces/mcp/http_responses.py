"""Responses of the HTTP endpoint: what went out of one, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import starlette.responses
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp_types import INVALID_REQUEST, JSONRPCError

from cellwall.parsing.jsonrpc import error_of

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_SESSION = MCP_SESSION_ID_HEADER.encode("ascii")


class Response:
    """The ASGI `send` of one request, which knows how far the response has come."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, on_start: Callable[[Response], None]
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._on_start = on_start
        self._has_begun = False
        self._is_complete = False
        self.status = 0
        self.session_id = ""
        """The id that the transport has given to a new session."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            found = (value for name, value in message["headers"] if name.lower() == _SESSION)
            self.session_id = next(found, b"").decode("latin-1")
            # Before the client can see the id: its next request may come at once.
            self._on_start(self)
        elif message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
        await self._send(message)
        self._has_begun = True

    async def end_early(self) -> None:
        """The client of the request has ended: finish a stream, or answer as for no session."""
        if self._is_complete:
            return
        if self._has_begun:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await refuse(self._scope, self._receive, self._send, *NO_SESSION)


NO_SESSION = (404, error_of(INVALID_REQUEST, "Session not found", None))
"""For an unknown, ended or foreign id alike (RBAC-3)."""


async def refuse(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    error: JSONRPCError,
    headers: dict[str, str] | None = None,
) -> None:
    """Send an error of the protocol."""
    body = error.model_dump_json(by_alias=True, exclude_unset=True)
    await starlette.responses.Response(
        body, status_code=status, media_type="application/json", headers=headers
    )(scope, receive, send)
