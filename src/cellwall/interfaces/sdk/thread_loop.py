"""The event loop of each thread that calls the blocking SDK."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from cellwall.core.forks import call_in_child
from cellwall.core.one_call_loops import OneCallLoop
from cellwall.interfaces.sdk.caller_signals import CallerSignals

Result = TypeVar("Result")
_LOOK_S = 0.2
"""Between two looks for a signal."""


class _ForkSafeLoop(OneCallLoop):
    """An event loop that a forked child never closes: it shares the parent's epoll set."""

    def __init__(self) -> None:
        super().__init__()
        self._made_by = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # As a default argument: at interpreter exit the module's names are gone first.
        if self._made_by == getpid():
            super().__del__()


def _keep_signals(run: Callable[[CallerSignals], Result]) -> Result:
    """`run`, during which no handler of a signal raises; the first error of a handler reaches the
    caller afterwards."""
    signals = CallerSignals()
    try:
        try:
            signals.hold()
            return run(signals)
        finally:
            error = signals.release()
            if error is not None:
                raise error from None
    finally:
        error = None  # it refers to this frame


def _run_to_end(
    runner: asyncio.Runner,
    context: contextvars.Context,
    work: Callable[[], Coroutine[Any, Any, Result]],
) -> Result:
    """`asyncio.Runner.run`, with what handlers of signals raise: it cancels the run, and reaches
    the caller after the cleanup.

    A function, not a method: an error keeps the variables of this call alive, and with them the
    owner of a loop, which must be closed with its thread.
    """
    loop = runner.get_loop()
    if threading.current_thread() is not threading.main_thread():
        return loop.run_until_complete(loop.create_task(work(), context=context))

    def run(signals: CallerSignals) -> Result:
        # The task ends before the signals are released: Python drops what a handler raises while an
        # object ends.
        task = loop.create_task(work(), context=context)

        def cancel() -> None:
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop

        signals.cancel_with(cancel)
        return loop.run_until_complete(task)

    return _keep_signals(run)


def _run_beside(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run in a thread of its own, since the loop of this one is busy; what a handler of a signal
    raises here cancels the run there, and reaches the caller after the cleanup."""
    running: list[asyncio.Task[Any]] = []
    is_over = threading.Event()

    async def run() -> Result:
        if (task := asyncio.current_task()) is not None:
            running.append(task)
        if is_over.is_set():  # before this task was known
            raise asyncio.CancelledError
        return await work()

    def cancel() -> None:
        is_over.set()
        for task in running:
            with contextlib.suppress(RuntimeError):  # the run has ended, and its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    def run_in_thread(signals: CallerSignals) -> Result:
        # An error that a handler raised while the thread starts would leave it running.
        signals.cancel_with(cancel)
        with ThreadPoolExecutor(max_workers=1) as other:
            future = other.submit(lambda: asyncio.run(run()))
            # In intervals: a signal right before a wait sets Python's flag, and interrupts nothing.
            while not wait([future], _LOOK_S).done:
                continue
            return future.result()

    if threading.current_thread() is threading.main_thread():
        return _keep_signals(run_in_thread)
    return run_in_thread(CallerSignals())


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
            return _run_beside(work)
        return self._loop.run(work)

    def forget_parent(self) -> None:
        """After a fork: the child gets a loop of its own."""
        self._loop = _OwnLoop()


thread_loop = _ThreadLoop()
call_in_child(thread_loop.forget_parent)
