"""WebSocket connections that cannot flood the service.

uvicorn answers each ping at once, also to a client that reads nothing, and keeps every fragment of
a message without an end. Both need no account: the first message has ten seconds to come.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

_BURST_FRAMES, _FRAMES_PER_S = 4000, 400
"""Of all kinds. A key of a terminal is a frame, and so is a pasted text."""
_MAX_UNREAD_BYTES = 256 * 1024
"""Of answers to pings."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One connection; a client that exceeds a bound is disconnected."""

    _left_frames = float(_BURST_FRAMES)
    _at_s = 0.0

    def handle_cont(self, event: Frame) -> None:
        if self._admits_frame():
            super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        if self._admits_frame():
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if self._admits_frame():
            super().handle_bytes(event)

    def handle_ping(self) -> None:
        if self._admits_frame():
            super().handle_ping()
            if self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
                self.transport.abort()

    def handle_pong(self, event: Frame) -> None:
        if self._admits_frame():
            super().handle_pong(event)

    def _admits_frame(self) -> bool:
        """Whether the frame is within the rate; a token bucket."""
        if self.transport.is_closing():
            return False  # the rest of the same data
        now_s = self.loop.time()
        gained = (now_s - self._at_s) * _FRAMES_PER_S
        self._left_frames = min(self._left_frames + gained, _BURST_FRAMES) - 1
        self._at_s = now_s
        if self._left_frames < 0:
            self.transport.abort()
        return self._left_frames >= 0
