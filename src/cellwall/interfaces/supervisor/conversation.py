"""Carries out one operation of a client while the client stays connected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

import anyio

from cellwall.core.outcomes import Outcome
from cellwall.core.types import OutputSink

if TYPE_CHECKING:
    from cellwall.interfaces.supervisor.server import Conversation


async def followed(
    talk: Conversation, work: Callable[[OutputSink], Awaitable[Outcome]]
) -> Outcome | None:
    """The outcome, or None if the client wanted it to stop or is gone.

    `work` is given a sink whose output goes to the client as it comes.
    """
    found: list[Outcome] = []
    problem: list[Exception] = []
    send, receive = anyio.create_memory_object_stream[tuple[str, bytes]](float("inf"))

    def sink(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        send.send_nowait((name, chunk))  # bounded by the run's output limit

    async def relay() -> None:
        async for name, chunk in receive:
            await talk.send({"out": name}, chunk)

    with send, receive:
        async with anyio.create_task_group() as relays:
            relays.start_soon(relay)
            async with anyio.create_task_group() as tasks:

                async def listen() -> None:
                    await talk.read()  # whatever it says now means "stop"; silence's end does, too
                    tasks.cancel_scope.cancel()

                tasks.start_soon(listen)
                try:
                    found.append(await work(sink))
                except Exception as error:  # noqa: BLE001  # raised below, not as a group
                    problem.append(error)
                tasks.cancel_scope.cancel()
            send.close()
    if problem:
        raise problem[0]
    return found[0] if found else None
