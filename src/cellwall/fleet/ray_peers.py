"""How a host asks another host, by Ray: bytes there and bytes back."""

# ruff: noqa: PLC0415  # a late import: the process of a host has loaded Ray, others have not

from __future__ import annotations

import asyncio
from typing import Any

from cellwall.core.errors import Busy

NAMESPACE = "cellwall"
_ANSWERS_WITHIN_S = 10.0


def actor_name(host_id: str, incarnation: str) -> str:
    """The name of the actor of one host."""
    return f"{host_id}/{incarnation}"


class RayPeers:
    """Implements `HostPeers`, within the process of a host."""

    async def ask(self, host_id: str, incarnation: str, question: bytes) -> bytes:
        # In a thread: the event loop of the service is not one of Ray's.
        return await asyncio.to_thread(_ask, actor_name(host_id, incarnation), question)


def _ask(name: str, question: bytes) -> bytes:
    import ray
    from ray.exceptions import RayError

    try:
        actor: Any = ray.get_actor(name, namespace=NAMESPACE)
        return bytes(ray.get(actor.hear.remote(question), timeout=_ANSWERS_WITHIN_S))
    except (RayError, ValueError):  # ValueError: there is no such actor
        # Never with the cause: an exception of Ray carries the arguments of the call.
        raise Busy(
            "another host of the fleet does not answer",
            hint="Try again in a moment; `cellwall fleet status` shows the hosts.",
            code="CW-HOST-UNREACHABLE",
        ) from None
