"""Questions to Ray's control store: which actors and nodes there are.

The store is one process, which can hang while it tries to reach a machine that is cut off, and is
away while the first host starts again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import ray

from cellwall.core.errors import CellwallError
from cellwall.fleet.ray_node import COORDINATOR_LABEL, LABEL

Result = TypeVar("Result")
_LOOK_EVERY_S = 0.25


def ask_ray(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Ask in a thread that the end of this process does not wait for: an answer may take as long as
    hosts wait for the first host to start again."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Result] = loop.create_future()

    def tell(result: Result | None, error: Exception | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(result)  # type: ignore[arg-type]  # without an error there is one
        else:
            found.set_exception(error)

    def ask() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001  # for whoever waits
            error = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=ask, name="ask-ray", daemon=True).start()
    return found


def named_actors() -> frozenset[str]:
    """The names of the hosts whose processes live."""
    return frozenset(ray.util.list_named_actors())


def node_of(host_id: str, *, within_s: float) -> str:
    """The node of Ray that was started for this host; Ray may take a moment to know the node."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for node in ray.nodes():
            if node["Alive"] and node["Labels"].get(LABEL) == host_id:
                return str(node["NodeID"])
        time.sleep(_LOOK_EVERY_S)
    raise CellwallError(
        "Ray does not know the node of this machine", code="CW-FLEET-NODE", hint="See its log."
    )


def coordinator_id() -> str:
    """The id of the first host of this cluster; empty where Ray was started by another program."""
    named = [node["Labels"].get(COORDINATOR_LABEL) for node in ray.nodes()]
    return next((str(name) for name in named if name), "")
