"""The lines that a server sends: each as a message, and no more than a gateway can serve."""

from __future__ import annotations

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest

from cellwall.parsing.jsonrpc import parse_message

_MAX_VALUES = 100_000
_BURST_MESSAGES, _MESSAGES_PER_S = 1000, 200
_BURST_BYTES, _BYTES_PER_S = 64 * 1024 * 1024, 16 * 1024 * 1024
_UNREAD_METHOD = "unread"


def message_of(line: bytes | JSONRPCError) -> SessionMessage | None:
    """None for what is not a message. Servers print banners, so that is no reason to end one; but
    where it would have been an answer, the call that waits for it fails now."""
    found = parse_message(line, max_values=_MAX_VALUES) if isinstance(line, bytes) else line
    if isinstance(found, JSONRPCError):
        return None if found.id is None else SessionMessage(found)
    return found


def without_content(message: SessionMessage) -> SessionMessage:
    """A request that the session refuses at once; any other message is not kept, and stays."""
    if not isinstance(message.message, JSONRPCRequest):
        return message
    request_id = message.message.id
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=request_id, method=_UNREAD_METHOD))


class OutputMeter:
    """Token buckets for the messages and bytes of a server."""

    def __init__(self) -> None:
        self._messages, self._bytes = float(_BURST_MESSAGES), float(_BURST_BYTES)
        self._at_s = anyio.current_time()

    def has_room(self, size: int, messages: int) -> bool:
        """Count a chunk and its messages; whether both are within the bounds."""
        now_s = anyio.current_time()
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._messages = min(self._messages + passed_s * _MESSAGES_PER_S, _BURST_MESSAGES)
        self._messages -= messages
        self._bytes = min(self._bytes + passed_s * _BYTES_PER_S, _BURST_BYTES) - size
        return self._messages >= 0 and self._bytes >= 0
