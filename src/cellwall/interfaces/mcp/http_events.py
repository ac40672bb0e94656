"""The events of one session that a client can ask for again after a lost connection.

Each session has a log of its own, so that an event id of another session finds nothing. The log is
bounded in events and bytes; the oldest go first, and a client that comes back too late gets none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

_MAX_EVENTS = 512
_MAX_BYTES = 4 * 1024 * 1024
_OVERHEAD_BYTES = 128


@dataclass(frozen=True, slots=True)
class _StoredEvent:
    number: int
    stream: str
    message: JSONRPCMessage | None
    """None: the event only tells the client its position."""
    size: int


class EventLog(EventStore):
    """Implements the SDK's `EventStore` in memory."""

    def __init__(self, *, max_events: int = _MAX_EVENTS, max_bytes: int = _MAX_BYTES) -> None:
        self._max_events, self._max_bytes = max_events, max_bytes
        self._events: deque[_StoredEvent] = deque()
        self._bytes = 0
        self._next = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = _OVERHEAD_BYTES
        if message is not None:
            size += len(message.model_dump_json(by_alias=True, exclude_unset=True))
        self._next += 1
        self._events.append(_StoredEvent(self._next, stream_id, message, size))
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._events) > self._max_events:
            self._bytes -= self._events.popleft().size
        return str(self._next)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send again what followed in the same stream; None for an id that is not stored."""
        last = next((each for each in self._events if str(each.number) == last_event_id), None)
        if last is None:
            return None
        # A copy: others are stored while a slow client receives these.
        for event in [each for each in self._events if each.number > last.number]:
            if event.stream == last.stream and event.message is not None:
                await send_callback(EventMessage(event.message, str(event.number)))
        return last.stream
