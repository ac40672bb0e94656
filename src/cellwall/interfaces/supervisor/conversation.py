"""One client's connection to the supervisor, and the requests of `cellwall hook`. An operation ends
when its client leaves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

import anyio
import anyio.abc

from cellwall.core.frames import BadFrame, FrameReader, encode
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json, OutputSink
from cellwall.interfaces.hooks.answer import HookOptions, reply_to
from cellwall.interfaces.supervisor.runtime_cache import RuntimeCache
from cellwall.runtime.agent_processes import mark_agent
from cellwall.runtime.app import App

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


async def hook_request(
    client: Conversation, cache: RuntimeCache, message: Mapping[str, Any], question: bytes
) -> None:
    """Answer `cellwall hook`. The client does not parse: the frame holds the exit code, the length
    of the output, the output and the errors, ready to be written."""
    mark_agent(client.pid)  # before the answer: every process that the agent starts later is marked

    used: list[App] = []

    @asynccontextmanager
    async def lease(options: HookOptions) -> AsyncIterator[App]:
        async with cache.lease(options.config, options.profile, message["shaping"]) as app:
            used.append(app)
            yield app

    shaping = {str(name): str(value) for name, value in message["shaping"].items()}
    reply = await reply_to(question, HookOptions.of(message["options"], shaping), lease)
    size = len(reply.stdout).to_bytes(4, "big")
    await client.send({"hook": True}, bytes([reply.exit_code]) + size + reply.stdout + reply.stderr)
    for app in used:
        note_latency(app, "hook", message)


_MAX_LATENCY_NS = 3600 * 10**9


def note_latency(app: App, kind: str, message: Mapping[str, Any]) -> None:
    """The time since the client's process began, by the clock that all processes of a host share.

    A short process cannot be scraped, so the supervisor measures for it. Another time namespace has
    another clock: such a value is dropped.
    """
    began_ns = message.get("began_ns")
    if type(began_ns) is int and 0 <= time.monotonic_ns() - began_ns <= _MAX_LATENCY_NS:
        app.telemetry.note_request(kind, (time.monotonic_ns() - began_ns) / 1e9)
