"""Answers a hook without a supervisor, and has one started for the questions to come."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from cellwall.core.errors import CellwallError
from cellwall.interfaces.hooks.answer import HookOptions, reply_to
from cellwall.runtime.agent_processes import mark_agent
from cellwall.runtime.home import start_supervisor
from cellwall.runtime.wiring import House, open_house


def answer_alone(
    told: Mapping[str, Any], question: bytes, *, starts_supervisor: bool
) -> tuple[int, bytes, bytes]:
    """Exit code, standard output, standard error."""
    mark_agent(os.getpid())
    if starts_supervisor:
        with suppress(OSError, CellwallError):
            start_supervisor(os.environ, wait=False)
    reply = anyio.run(reply_to, question, HookOptions.of(told, os.environ), _own_house)
    return reply.exit_code, reply.stdout, reply.stderr


@asynccontextmanager
async def _own_house(options: HookOptions) -> AsyncIterator[House]:
    house = open_house(config=options.config, profile=options.profile)
    try:
        yield house
    finally:
        house.close()
