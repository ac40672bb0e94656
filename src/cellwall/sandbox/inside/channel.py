"""The only connection of an interpreter to the supervisor: frames over descriptors 3 and 4.

A frame is two lengths, a JSON object and raw bytes. The supervisor reads frames of a cell as
bounded, plain data.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than most code takes to run
if TYPE_CHECKING:
    from typing import Any

REPORTS = 3
REQUESTS = 4


class _Plain:
    """Settings for the C scanner of `json`; the module itself costs milliseconds to import."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, None


def decode_json(text: str) -> Any:
    """Decode JSON that the supervisor wrote."""
    if "json" in sys.modules:
        import json  # waits for a thread that is importing it now

        return json.loads(text)
    from _json import make_scanner

    return make_scanner(_Plain())(text, 0)[0]  # type: ignore[arg-type]  # as `json` itself calls it


def encode_json(message: dict[str, Any]) -> str:
    """Encode as JSON; most reports are a few numbers and need no encoder."""
    if all(type(value) is int or value == [] for value in message.values()):
        return "{" + ",".join(f'"{name}":{value}' for name, value in message.items()) + "}"
    import json

    return json.dumps(message)


class Channel:
    """Two pipes, since a socket could carry descriptors.

    Several threads of the code may use it at once, for tools.
    """

    def __init__(self) -> None:
        from _thread import allocate_lock

        self._buffer = bytearray()
        self._new_lock = allocate_lock
        self._guard = allocate_lock()  # held for moments only, never while reading
        self._has_reader = False
        self._waiting: list[Any] = []
        self._for_others: list[tuple[dict[str, Any], bytes]] = []

    def wait(self, key: str, value: object = None) -> tuple[dict[str, Any], bytes] | None:
        """The next frame with this key (and value); frames for other threads are kept for them.

        One of the waiting threads reads. After each read all others check again: for their frame,
        or whether they become the reader.
        """
        while True:
            woken = self._new_lock()
            woken.acquire()
            with self._guard:
                for place, frame in enumerate(self._for_others):
                    if key in frame[0] and value in (None, frame[0][key]):
                        return self._for_others.pop(place)
                is_reader = not self._has_reader
                if is_reader:
                    self._has_reader = True
                else:
                    self._waiting.append(woken)
            if not is_reader:
                woken.acquire()
                continue
            try:
                frame_read = self.read()
                if frame_read is None or (
                    key in frame_read[0] and value in (None, frame_read[0][key])
                ):
                    return frame_read
                if len(self._for_others) < 64:
                    self._for_others.append(frame_read)
            finally:
                with self._guard:
                    self._has_reader = False
                    waiting, self._waiting = self._waiting, []
                for each in waiting:
                    each.release()

    def read(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame, or None when the supervisor has closed the pipe."""
        if not self._has(8):
            return None
        text_end = 8 + int.from_bytes(self._buffer[:4], "big")
        end = text_end + int.from_bytes(self._buffer[4:8], "big")
        if not self._has(end):
            return None
        text, blob = bytes(self._buffer[8:text_end]), bytes(self._buffer[text_end:end])
        del self._buffer[:end]
        return decode_json(text.decode("ascii")), blob

    def _has(self, count: int) -> bool:
        """Nothing is consumed before all bytes are there: an interrupt may come in between."""
        while len(self._buffer) < count:
            chunk = os.read(REQUESTS, 1 << 20)
            if not chunk:
                return False
            self._buffer += chunk
        return True

    def write(self, message: dict[str, Any]) -> None:
        """Send one frame; code that closed the descriptor gets no answer."""
        text = encode_json(message).encode("ascii")
        data = memoryview(len(text).to_bytes(4, "big") + bytes(4) + text)
        try:
            while data:
                data = data[os.write(REPORTS, data) :]
        except OSError:
            pass


def protect_channel() -> None:
    """Programs that the code starts do not inherit the pipes."""
    os.set_inheritable(REPORTS, False)
    os.set_inheritable(REQUESTS, False)
