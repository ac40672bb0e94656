"""Calls of one server's tools that are under way, matched with their answers by id.

The SDK's session dumps, validates and copies each message several times, and passes the answer
through a queue. Calls are nearly all messages of a server, and have one form: the request is
written here, and its answer is validated once, by the SDK's model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress

import anyio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    JSONRPCResponse,
    RequestId,
)

from cellwall.core.text import plain
from cellwall.core.types import Json
from cellwall.parsing.message_streams import MessageWriter

_FIRST_ID = 1 << 30
"""The SDK numbers its own requests from 1, and sends one for the handshake and each list."""
_CANCEL_WITHIN_S = 5.0
_encode = json.JSONEncoder(separators=(",", ":")).encode
_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")


class _PendingCall:
    """A request without an answer yet."""

    __slots__ = ("answer", "came")

    def __init__(self) -> None:
        # Not `anyio.Event`, which looks for the event loop anew with each use.
        self.came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer: Mapping[str, Json] | ErrorData = _CLOSED

    def end(self, answer: Mapping[str, Json] | ErrorData) -> None:
        if not self.came.done():  # answered already, or cancelled
            self.answer = answer
            self.came.set_result(None)


class ToolCalls:
    """The calls of one connection."""

    def __init__(self, outgoing: MessageWriter) -> None:
        self._outgoing = outgoing
        self._pending: dict[RequestId, _PendingCall] = {}
        self._next_id = _FIRST_ID
        self._is_closed = False

    async def call(
        self, tool: str, arguments: Mapping[str, Json], meta: Mapping[str, Json]
    ) -> CallToolResult:
        """The answer of the server; raises `MCPError` for an error and at the end of the server,
        `ValueError` for an answer that is no result. A cancelled call is cancelled at the server.
        """
        call_id, self._next_id = self._next_id, self._next_id + 1
        params: dict[str, Json] = {"name": tool, "arguments": plain(dict(arguments))}
        if meta:
            params["_meta"] = dict(meta)
        pending = self._pending[call_id] = _PendingCall()
        try:
            await self._send(
                {"jsonrpc": "2.0", "id": call_id, "method": "tools/call", "params": params}
            )
            await pending.came
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # still `_CLOSED`
        except anyio.get_cancelled_exc_class():
            await self._tell_cancelled(call_id)
            raise
        finally:
            del self._pending[call_id]  # a late answer is dropped
        if isinstance(pending.answer, ErrorData):
            raise MCPError.from_error_data(pending.answer)
        return CallToolResult.model_validate(pending.answer, by_name=False)

    def take(self, message: SessionMessage) -> bool:
        """Whether the message answers a call; the call then goes on."""
        body = message.message
        if not isinstance(body, JSONRPCResponse | JSONRPCError) or body.id is None:
            return False
        pending = self._pending.get(coerce_request_id(body.id))
        if pending is None:
            return False
        pending.end(body.result if isinstance(body, JSONRPCResponse) else body.error)
        return True

    def close(self) -> None:
        """No answer can come any more."""
        self._is_closed = True
        for pending in self._pending.values():
            pending.end(_CLOSED)

    async def _send(self, message: Mapping[str, object]) -> None:
        if self._is_closed:
            raise anyio.ClosedResourceError
        await self._outgoing.send_line(_encode(message).encode("ascii") + b"\n")

    async def _tell_cancelled(self, call_id: int) -> None:
        params = {"requestId": call_id, "reason": "the caller has cancelled the call"}
        with (
            suppress(anyio.BrokenResourceError, anyio.ClosedResourceError),
            anyio.move_on_after(_CANCEL_WITHIN_S, shield=True),
        ):
            await self._send(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            )
