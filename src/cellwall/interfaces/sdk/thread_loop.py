"""The event loop of each thread that calls the blocking SDK."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, TypeVar

from cellwall.core.fast_signals import INTERRUPT, get_handler, set_handler
from cellwall.core.forks import call_in_child
from cellwall.core.one_call_loops import OneCallLoop

Result = TypeVar("Result")


class _ForkSafeLoop(OneCallLoop):
    """An event loop that a forked child never closes: it shares the parent's epoll set."""

    def __init__(self) -> None:
        super().__init__()
        self._made_by = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # As a default argument: at interpreter exit the module's names are gone first.
        if self._made_by == getpid():
            super().__del__()


def _run_to_end(
    runner: asyncio.Runner, context: contextvars.Context, work: Coroutine[Any, Any, Result]
) -> Result:
    """`asyncio.Runner.run` with a cheaper handler of Ctrl-C, see `fast_signals`.

    A function, not a method: an error keeps the variables of this call alive, and with them the
    owner of a loop, which must be closed with its thread.
    """
    loop = runner.get_loop()
    task = loop.create_task(work, context=context)
    interrupts = 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        """The first Ctrl-C ends the run and waits for its cleanup, the second does not."""
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1 or task.done():
            raise KeyboardInterrupt
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes the loop

    is_main = threading.current_thread() is threading.main_thread()
    is_ours = is_main and get_handler(INTERRUPT) is signal.default_int_handler
    if is_ours:
        try:
            set_handler(INTERRUPT, interrupt)
        except ValueError:  # an embedded interpreter without signals
            is_ours = False
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if interrupts and task.uncancel() == 0:
            raise KeyboardInterrupt from None
        raise
    finally:
        if is_ours and get_handler(INTERRUPT) is interrupt:
            set_handler(INTERRUPT, signal.default_int_handler)


class _OwnLoop:
    """An event loop that is closed with its thread."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=_ForkSafeLoop)
        self._made_by = os.getpid()
        self.run = functools.partial(_run_to_end, self._runner, contextvars.copy_context())

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self._made_by == getpid():
            self._runner.close()


class _ThreadLoop(threading.local):
    """One event loop for each calling thread, created by its first call.

    No other thread is involved, so a call is cheap, and Ctrl-C ends the run and cleans up before
    the caller gets the exception.
    """

    def __init__(self) -> None:
        self._loop = _OwnLoop()

    def call(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            # A notebook, or a coroutine that calls the facade: the thread's loop is busy.
            with ThreadPoolExecutor(max_workers=1) as other:
                return other.submit(asyncio.run, work()).result()
        return self._loop.run(work())

    def forget_parent(self) -> None:
        """After a fork: the child gets a loop of its own."""
        self._loop = _OwnLoop()


thread_loop = _ThreadLoop()
call_in_child(thread_loop.forget_parent)
