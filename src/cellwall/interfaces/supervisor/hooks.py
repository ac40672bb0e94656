"""`cellwall hook`, answered by the supervisor: the client passes bytes on and reads none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from cellwall.interfaces.hooks.answer import HookOptions, reply_to
from cellwall.interfaces.supervisor.runtime_cache import Houses
from cellwall.runtime.agent_processes import mark_agent
from cellwall.runtime.wiring import House

if TYPE_CHECKING:
    from cellwall.interfaces.supervisor.server import Conversation


async def answer_hook(
    talk: Conversation, houses: Houses, message: Mapping[str, Any], question: bytes
) -> None:
    """The frame holds exit code, length of the output, output and errors, ready to be written."""
    mark_agent(talk.pid)  # before the answer: all that the agent starts after it is marked
    shaping = {str(name): str(value) for name, value in message["shaping"].items()}

    @asynccontextmanager
    async def taken(options: HookOptions) -> AsyncIterator[House]:
        house = await anyio.to_thread.run_sync(
            houses.take, options.config, options.profile, shaping
        )
        try:
            yield house
        finally:
            houses.give_back(house)

    reply = await reply_to(question, HookOptions.of(message["options"], shaping), taken)
    size = len(reply.stdout).to_bytes(4, "big")
    await talk.send({"hook": True}, bytes([reply.exit_code]) + size + reply.stdout + reply.stderr)
