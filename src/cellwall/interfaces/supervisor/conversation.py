"""One client's connection to the supervisor, and operations that end when the client leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import anyio
import anyio.abc

from cellwall.core.frames import BadFrame, FrameReader, encode
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json, OutputSink

_MAX_FRAME_BYTES = 128 * 1024 * 1024
_DISCONNECTED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Conversation:
    """One connection: a client's request and the frames that answer it."""

    def __init__(self, stream: anyio.abc.ByteStream, pid: int = 0) -> None:
        self._stream = stream
        self.pid = pid
        """The client's process id, from SO_PEERCRED."""
        self._reader = FrameReader(max_frame_bytes=_MAX_FRAME_BYTES)
        self._frames: list[tuple[Mapping[str, Any], bytes]] = []
        self._sending = anyio.Lock()

    async def read(self) -> tuple[Mapping[str, Any], bytes] | None:
        """The next frame; None when the client has disconnected or sent a malformed frame."""
        while not self._frames:
            try:
                chunk = await self._stream.receive(1 << 18)
                self._frames += [(frame.message, frame.blob) for frame in self._reader.feed(chunk)]
            except (*_DISCONNECTED, BadFrame):
                return None
        return self._frames.pop(0)

    async def send(self, message: Mapping[str, Json], blob: bytes = b"") -> None:
        with suppress(*_DISCONNECTED):
            async with self._sending:
                await self._stream.send(encode(message, blob))


async def perform_while_connected(
    client: Conversation, work: Callable[[OutputSink], Awaitable[Outcome]]
) -> Outcome | None:
    """The outcome, or None if the client asked to stop or disconnected.

    The sink that `work` gets sends output to the client as it comes.
    """
    outcomes: list[Outcome] = []
    errors: list[Exception] = []
    send, receive = anyio.create_memory_object_stream[tuple[str, bytes]](float("inf"))

    def sink(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        send.send_nowait((name, chunk))  # bounded by the run's output limit

    async def relay() -> None:
        async for name, chunk in receive:
            await client.send({"out": name}, chunk)

    with send, receive:
        async with anyio.create_task_group() as relays:
            relays.start_soon(relay)
            async with anyio.create_task_group() as tasks:

                async def listen() -> None:
                    await client.read()  # any frame means "stop", and so does a disconnect
                    tasks.cancel_scope.cancel()

                tasks.start_soon(listen)
                try:
                    outcomes.append(await work(sink))
                except Exception as error:  # noqa: BLE001  # raised below, not as a group
                    errors.append(error)
                tasks.cancel_scope.cancel()
            send.close()
    if errors:
        raise errors[0]
    return outcomes[0] if outcomes else None
