"""Serves the descriptors of a run from the event loop, without a task switch for each chunk.

A program that writes line by line makes thousands of chunks each second. To wake the monitor's task
for each, `anyio.wait_readable` and a deadline take 45 us; a callback of the loop takes 6 us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from cellwall.core.one_call_loops import HELD_UP_S, may_hold_up
from cellwall.sandbox.linux.channels import ready_to_read
from cellwall.sandbox.linux.run_io import RunIO


async def wait_readable_soon(descriptor: int) -> None:
    """Return when the descriptor is readable, which is expected at once."""
    if not (may_hold_up() and ready_to_read(descriptor, timeout_s=HELD_UP_S)):
        await anyio.wait_readable(descriptor)


async def wait_readable_for(descriptor: int, time_s: float) -> None:
    """Return when the descriptor is readable, or after this time."""
    if time_s <= HELD_UP_S and may_hold_up():
        ready_to_read(descriptor, timeout_s=time_s)
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # not asyncio (trio)
        with anyio.move_on_after(time_s):
            await anyio.wait_readable(descriptor)
        return
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    timer = loop.call_later(time_s, finish)
    loop.add_reader(descriptor, finish)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
        timer.cancel()


async def serve_for(run_io: RunIO, time_s: float, *, until: Callable[[], bool]) -> None:
    """Serve for so long, or until `until`, or until the run has news for its monitor."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # not asyncio (trio)
        with anyio.move_on_after(time_s):
            await anyio.wait_readable(run_io)
        run_io.serve()
        return
    # Registered only while this call waits: the callback must not run while the monitor does
    # something else, and a descriptor that is ready and not read keeps the loop busy.
    done = loop.create_future()

    def serve() -> None:
        if done.done():
            return
        try:
            run_io.serve()
            if run_io.has_news or until():
                done.set_result(None)
        except BaseException as error:  # noqa: BLE001  # raised to the monitor
            done.set_exception(error)

    def expire() -> None:
        if not done.done():
            done.set_result(None)

    timer = loop.call_later(time_s, expire)
    loop.add_reader(run_io, serve)
    try:
        await done
    finally:
        loop.remove_reader(run_io)
        timer.cancel()
