"""Frames between a cell and its supervisor, and between a supervisor and its clients. Pure.

A frame is two lengths (32 bits each, big endian), a JSON object and raw bytes. The other end is
untrusted code: a malformed frame ends the connection, and nothing is ever unpickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cellwall.core.text import plain
from cellwall.core.types import Json

_HEAD = struct.Struct(">II")
_MAX_VALUES = 200_000
MAX_STRINGS = 20_000
"""Strings in one frame of a cell, keys included; the runner stays below it (inside/show.py)."""
_FEW = 1000


class BadFrame(Exception):
    """Malformed bytes; the text gives the reason."""


class FrameTooLong(BadFrame):
    """A frame above the reader's bound."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    message: Mapping[str, Json]
    blob: bytes = b""


def encode(message: Mapping[str, Json], blob: bytes = b"") -> bytes:
    """Serialise one frame."""
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    return _HEAD.pack(len(text), len(blob)) + text + blob


@dataclass(slots=True)
class ValueBudget:
    """Bounds the values in all frames of one run, and the strings in each frame.

    A report is parsed, redacted and shown value by value: 40,000 short strings are few bytes and
    cost as much as megabytes of output (GRD-11).
    """

    values: int = 4 * _MAX_VALUES

    def spend(self, text: bytes) -> None:
        """Count values in the JSON text, before it is parsed."""
        strings, values = text.count(b'"') // 2, _marks(text)
        if strings > _FEW or values > _FEW:  # or quotes and commas within strings
            strings, values = _counts(text)
        if strings > MAX_STRINGS or values > _MAX_VALUES:
            raise BadFrame("more values than any report has")
        self.values -= values
        if self.values < 0:
            raise FrameTooLong("more values than any run has")


class FrameReader:
    """Parses chunks into frames; never buffers more than one frame's bound."""

    budget: ValueBudget | None = None
    """The budget of the current run; None between our own programs, which bound each frame."""

    def __init__(self, *, max_frame_bytes: int, has_blobs: bool = True) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._has_blobs = has_blobs
        self._buffer = bytearray()

    @property
    def is_between_frames(self) -> bool:
        """False: the peer stopped in the middle of a frame."""
        return not self._buffer

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that the chunk completes."""
        self._buffer += chunk
        while len(self._buffer) >= _HEAD.size:
            text_bytes, blob_bytes = _HEAD.unpack_from(self._buffer)
            end = _HEAD.size + text_bytes + blob_bytes
            if blob_bytes and not self._has_blobs:
                raise BadFrame("raw bytes where none are sent")
            if end > self.max_frame_bytes:
                raise FrameTooLong(f"a frame of {end} bytes")
            if len(self._buffer) < end:
                return
            text = bytes(self._buffer[_HEAD.size : _HEAD.size + text_bytes])
            blob = bytes(self._buffer[_HEAD.size + text_bytes : end])
            del self._buffer[:end]
            if self.budget is not None:
                self.budget.spend(text)
            yield Frame(_parse(text), blob)


def _marks(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def _counts(text: bytes) -> tuple[int, int]:
    """Strings, and separators outside of them. Without escapes each quote begins or ends a string;
    a regex for whole strings would restart at each quote of an unterminated one."""
    parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    return len(parts) // 2, sum(map(_marks, parts[::2]))


def _parse(text: bytes) -> Mapping[str, Json]:
    # A few bytes of JSON can take a hundred in memory: `{},{},{},…`.
    if _marks(text) > _MAX_VALUES and _counts(text)[1] > _MAX_VALUES:
        raise BadFrame("more values than any report has")
    try:
        message = plain(json.loads(text))
    except (ValueError, RecursionError):
        raise BadFrame("no JSON") from None
    if not isinstance(message, dict):
        raise BadFrame("no object")
    return message
