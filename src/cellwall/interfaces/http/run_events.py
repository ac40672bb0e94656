"""The server-sent events of one run: bounded in number, encoded once, read by many.

One event is one piece of output of one stream, as the supervisor read it and the guard released it;
then each result, and the outcome or the error. An event never changes, and its number is its place,
so a reader that comes back with `Last-Event-ID` continues exactly where it was.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import AsyncIterator
from typing import Literal

import anyio

from cellwall.core.types import Json

MAX_SMALL_EVENTS = 50_000
"""Of one run. Then output is gathered to larger pieces: 4 MiB of output in single bytes would be
four million events, which take a hundred times the memory of their text."""
GATHERED_CHARACTERS = 4096
_GATHERED_S = 1.0
"""Gathered output leaves after this time, however little there is."""
_PING_S = 15.0
_BATCH_EVENTS = 256
"""Sent at once; the connection can then say that its reader is slow."""
_PAUSE_S = 0.002
"""Between two batches, so that a burst of events costs one system call and not thousands. The
first event after a silence leaves at once."""

StreamName = Literal["stdout", "stderr"]
EventName = Literal["stdout", "stderr", "result", "outcome", "error"]

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""JSON in one line."""
_quote = json.encoder.encode_basestring
_TEXT = 'data: {"text":'


class RunEvents:
    """The events so far. All methods are for the event loop's thread."""

    def __init__(self) -> None:
        self.characters = 0
        """Of the output."""
        self._end = anyio.Event()
        self._events: list[bytes] = []
        self._changed: anyio.Event | None = None
        """Made by a reader that waits."""
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }
        self._gathered: dict[StreamName, list[str]] = {"stdout": [], "stderr": []}
        self._gathered_characters = 0
        self._gathered_until = 0.0

    @property
    def is_closed(self) -> bool:
        return self._end.is_set()

    @property
    def count(self) -> int:
        return len(self._events)

    def write(self, name: StreamName, chunk: bytes) -> None:
        """Implements `OutputSink`."""
        if text := self._decoders[name].decode(chunk):
            self._add_text(name, text)

    def end_output(self) -> None:
        """No more output follows: what was gathered and incomplete characters leave now."""
        for name in self._gathered:
            if text := self._decoders[name].decode(b"", final=True):
                self._add_text(name, text)
        self._release_gathered()

    def add(self, name: EventName, data: Json) -> None:
        """Add an event that is no output."""
        self.add_encoded(name, encode(data))

    def add_encoded(self, name: EventName, text: str) -> None:
        """Add an event that is no output, by the JSON of `encode`, which has no line break."""
        self._append(name, f"data: {text}")

    def close(self) -> None:
        """No more events follow."""
        self._end.set()
        self._wake()

    def _add_text(self, name: StreamName, text: str) -> None:
        self.characters += len(text)
        if len(self._events) < MAX_SMALL_EVENTS:
            self._append(name, f"{_TEXT}{_quote(text)}}}")
            return
        if not self._gathered_characters:
            self._gathered_until = time.monotonic() + _GATHERED_S
            self._wake()  # readers wait no longer than that
        self._gathered[name].append(text)
        self._gathered_characters += len(text)
        if self._gathered_characters >= GATHERED_CHARACTERS or self._is_gathered_long:
            self._release_gathered()

    @property
    def _is_gathered_long(self) -> bool:
        return self._gathered_characters > 0 and time.monotonic() >= self._gathered_until

    def _release_gathered(self) -> None:
        self._gathered_characters = 0
        for name, texts in self._gathered.items():
            if texts:
                self._append(name, f"{_TEXT}{_quote(''.join(texts))}}}")
                texts.clear()

    def _append(self, name: EventName, data_line: str) -> None:
        text = f"id: {len(self._events) + 1}\nevent: {name}\n{data_line}\n\n"
        self._events.append(text.encode("utf-8", "replace"))
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def changed(self) -> None:
        """Until the next change."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def output(self) -> str:
        """The text written so far."""
        texts = [text for event in self._events if (text := _text_of(event)) is not None]
        return "".join([*texts, *(each for part in self._gathered.values() for each in part)])

    async def stream(self, after: int = 0) -> AsyncIterator[bytes]:
        """The events behind this number, then those to come, in batches; pings in times of
        silence."""
        at = max(after, 0)
        while True:
            if self._is_gathered_long:
                self._release_gathered()
            while at < len(self._events):
                batch = self._events[at : at + _BATCH_EVENTS]
                yield b"".join(batch)
                at += len(batch)
                if at == len(self._events) and not self.is_closed:
                    with anyio.move_on_after(_PAUSE_S):
                        await self._end.wait()
            if self.is_closed:
                return
            with anyio.move_on_after(_GATHERED_S if self._gathered_characters else _PING_S) as idle:
                await self.changed()
            if idle.cancelled_caught and not self._gathered_characters:
                yield b": ping\n\n"


def _text_of(event: bytes) -> str | None:
    """The text of an event of output; None for another."""
    _id, name, data = event.decode("utf-8", "replace").split("\n", 2)
    if name not in {"event: stdout", "event: stderr"}:
        return None
    return str(json.loads(data.removeprefix("data: "))["text"])
