"""Blocking work of a run: it has ended before the folder of the run is removed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


async def in_thread(work: Callable[[], _Result], *, stop: threading.Event | None = None) -> _Result:
    """What `work` returns. A signal that ends the event loop sets `stop`, and the thread is waited
    for: it must not write to a folder, or start a process, after the run has cleaned up."""
    with ThreadPoolExecutor(1, "cellwall-redteam") as pool:
        try:
            return await asyncio.wrap_future(pool.submit(work))
        except BaseException:
            if stop is not None:
                stop.set()
            raise
