"""This machine's part in a fleet on Ray: its connection, its node and its host."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cellwall.core.errors import CellwallError
from cellwall.fleet.ray_host import RayHost
from cellwall.fleet.ray_peers import NAMESPACE, actor_name
from cellwall.fleet.ray_questions import node_of

_log = logging.getLogger("cellwall.fleet")
_CALLS = 8192
"""That one host handles at once; each open stream is one."""
_STARTS_WITHIN_S = 180.0
_STOPS_WITHIN_S = 60.0


def connect(address: str, *, node_ip: str) -> None:
    """Connect this process to the node of Ray on this machine."""
    ray.init(
        address=address,
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address=node_ip,
    )
    # Ray prints the errors of its processes, with lines of their logs, on the standard output of
    # this one, where programs read our JSON. Ray has no option that ends that.
    ray._private.worker.print_to_stdstream = _note_error_of_ray  # noqa: SLF001  # not public


def _note_error_of_ray(*_: object, **__: object) -> None:
    _log.warning("Ray reports an error; the logs of its session have its text")


def disconnect() -> None:
    """End the connection; detached hosts go on."""
    ray.shutdown()


async def start_host(
    host_id: str,
    incarnation: str,
    *,
    opening: str,
    options: Mapping[str, Any],
    is_pinned: bool,
) -> Any:  # noqa: ANN401  # Ray's handle has no type
    """Start the host of this machine; it lives until `stop_host`, also without this process.
    `is_pinned`: to the node that was started for it; else to the node of this process."""
    node = ray.get_runtime_context().get_node_id()
    if is_pinned:
        node = await asyncio.to_thread(node_of, host_id, within_s=_STARTS_WITHIN_S)
    made = ray.remote(RayHost).options(
        name=actor_name(host_id, incarnation),
        lifetime="detached",
        num_cpus=0,
        max_concurrency=_CALLS,
        max_restarts=0,  # a process that starts again is another incarnation
        max_task_retries=0,  # nothing is executed twice
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    actor = made.remote(opening, dict(options))
    async with asyncio.timeout(_STARTS_WITHIN_S):
        told = await actor.start.remote()
    if "error" in told:
        ray.kill(actor)
        code, message, hint = told["error"]
        raise CellwallError(message, hint=hint, code=code)
    return actor


async def wait_for_host(actor: Any) -> None:  # noqa: ANN401  # Ray's handle has no type
    """Returns when a host has ended, by itself or with its process."""
    with suppress(RayActorError):
        await actor.closed.remote()


async def wait_for_node() -> None:
    """Returns when the node of Ray on this machine has ended: its end closes the connection. Ray
    itself tells nothing to a program without an actor there."""
    path = ray._private.worker.global_worker.node.raylet_socket_name  # noqa: SLF001  # not public
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except (ConnectionError, FileNotFoundError):
        return
    try:
        with suppress(ConnectionError):
            await reader.read(1)
    finally:
        writer.close()


async def stop_host(actor: Any) -> None:  # noqa: ANN401  # Ray's handle has no type
    """End a host with its sessions."""
    try:
        async with asyncio.timeout(_STOPS_WITHIN_S):
            await actor.stop.remote()
    except (RayActorError, TimeoutError):
        _log.warning("a host did not end cleanly")
    finally:
        with suppress(RayError):
            ray.kill(actor)
