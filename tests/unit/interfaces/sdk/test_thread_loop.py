"""Blocking calls of the SDK: what a handler of a signal raises reaches the caller, and nothing
else."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from cellwall.interfaces.sdk import caller_signals
from cellwall.interfaces.sdk.execution import text_sink
from cellwall.interfaces.sdk.thread_loop import thread_loop

WAIT_S = 20


class _Alarm(TimeoutError):
    """What callers raise in a handler of SIGALRM to bound a call."""


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[..., object]], None]]:
    """Sets the handler of SIGALRM."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler) and None
    signal.signal(signal.SIGALRM, before)


def ring(*_: object) -> None:
    raise _Alarm


def knock() -> None:
    os.kill(os.getpid(), signal.SIGALRM)


class Run:
    """A call that is rung at, waits, and cleans up."""

    def __init__(self, *rings: int) -> None:
        self.seen: list[str] = []
        self._rings = rings or (signal.SIGALRM,)

    async def __call__(self) -> str:
        try:
            for number in self._rings:
                os.kill(os.getpid(), number)
            self.seen.append("went on")
            await asyncio.sleep(WAIT_S)
        except BaseException as error:
            self.seen.append(type(error).__name__)
            await asyncio.sleep(0)
            self.seen.append("cleaned up")
            raise
        return "done"


@pytest.mark.requirement("ISO-8", "ERR-2")
def test_an_error_of_a_handler_cancels_the_call_and_reaches_the_caller(handle) -> None:
    handle(ring)
    run = Run()
    with pytest.raises(_Alarm):
        thread_loop.call(run)
    assert run.seen == ["went on", "CancelledError", "cleaned up"]
    assert signal.getsignal(signal.SIGALRM) is ring
    assert thread_loop.call(later) == "later"


async def later() -> str:
    await asyncio.sleep(0)
    return "later"


def test_without_it_the_error_comes_in_the_middle_of_the_call(handle) -> None:
    """The control: the same handler in a loop of asyncio itself."""
    handle(ring)
    run = Run()
    with pytest.raises(_Alarm):
        asyncio.run(run())
    assert run.seen == ["_Alarm", "cleaned up"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_every_kind_of_error_does(handle, error: type[BaseException]) -> None:
    def fail(*_: object) -> None:
        raise error("mine")

    handle(fail)
    run = Run()
    with pytest.raises(error, match="mine"):
        thread_loop.call(run)
    assert run.seen == ["went on", "CancelledError", "cleaned up"]


def test_only_the_first_of_many_errors_counts(handle) -> None:
    handle(ring)
    run = Run(*[signal.SIGALRM] * 5)
    with pytest.raises(_Alarm):
        thread_loop.call(run)
    assert run.seen == ["went on", "CancelledError", "cleaned up"]


def test_the_second_ctrl_c_does_not_wait() -> None:
    run = Run(signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        thread_loop.call(run)
    assert run.seen[0] == "KeyboardInterrupt"


def test_a_handler_that_raises_nothing_is_called_and_the_call_goes_on(handle) -> None:
    called: list[int] = []
    handle(lambda number, _: called.append(number))

    async def run() -> str:
        knock()
        return await later()

    assert thread_loop.call(run) == "later"
    assert called == [signal.SIGALRM]


def test_a_handler_that_is_set_during_the_call_stays(handle) -> None:
    handle(ring)

    def other(*_: object) -> None: ...

    async def run() -> None:
        signal.signal(signal.SIGALRM, other)

    thread_loop.call(run)
    assert signal.getsignal(signal.SIGALRM) is other


def test_an_error_comes_into_the_caller_s_own_callback_at_once(handle) -> None:
    """The callback may hang, and nobody else could end it."""
    handle(ring)
    seen: list[str] = []

    def show(_text: str) -> None:
        knock()
        seen.append("went on")

    sink = text_sink(show, None)
    assert sink is not None

    async def run() -> None:
        with pytest.raises(_Alarm):
            sink("stdout", b"text")
        await later()

    thread_loop.call(run)
    assert seen == []


def test_a_child_that_a_callback_forks_has_its_handlers(handle) -> None:
    handle(ring)

    async def run() -> int:
        child = os.fork()
        if child == 0:
            try:
                knock()
            except _Alarm:
                os._exit(7)
            os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert thread_loop.call(run) == 7


@pytest.mark.parametrize("_time", range(20))
def test_inside_a_running_loop_the_call_in_the_other_thread_is_ended(handle, _time: int) -> None:
    """Many times: a signal right before a wait interrupts nothing."""
    handle(ring)
    seen: list[str] = []

    async def run() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            seen.append("ended")
            raise

    async def notebook() -> None:
        thread_loop.call(run)

    with pytest.raises(_Alarm):
        asyncio.run(notebook())
    assert seen == ["ended"]


def test_an_error_while_the_other_thread_starts_does_not_leave_it_running(handle) -> None:
    """`Thread.start` waits for the new thread, and an error there would make the caller forget it."""
    handle(ring)
    seen: list[str] = []
    begun = threading.Event()
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        started(thread)
        assert begun.wait(WAIT_S)
        knock()

    async def run() -> None:
        try:
            begun.set()
            await asyncio.sleep(WAIT_S)
        finally:
            seen.append("cleaned up")

    async def notebook() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            thread_loop.call(run)

    before = threading.active_count()
    with pytest.raises(_Alarm):
        asyncio.run(notebook())
    assert seen == ["cleaned up"]
    assert threading.active_count() == before


@pytest.mark.requirement("ISO-8", "ERR-2")
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_error_at_any_step_reaches_the_caller_and_leaves_its_handlers(
    handle, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """Before and after the call itself, while handlers are replaced and set again."""

    def fail(*_: object) -> None:
        raise kind("mine")

    handle(fail)
    before = {each: signal.getsignal(each) for each in signal.valid_signals()}
    steps, at = 0, 0

    def rung(work: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object) -> object:
            nonlocal steps
            steps += 1
            done = work(*arguments)
            if steps == at:
                knock()
            return done

        return step

    for name in ("get_handler", "set_handler"):
        monkeypatch.setattr(caller_signals, name, rung(getattr(caller_signals, name)))
    assert thread_loop.call(later) == "later"  # the control, which also counts the steps
    count, steps = steps, 0
    assert count > len(before)
    for number in range(1, count + 1):
        steps, at = 0, number
        with pytest.raises(kind, match="mine"):
            thread_loop.call(later)
        assert all(signal.getsignal(each) is handler for each, handler in before.items())


def test_an_error_while_the_task_ends_is_not_lost(handle) -> None:
    """Python only prints what is raised while an object ends."""
    handle(ring)
    ends: list[object] = []

    async def run() -> str:
        ends.append(weakref.ref(asyncio.current_task(), lambda _: knock()))
        return await later()

    with pytest.raises(_Alarm):
        thread_loop.call(run)
    assert signal.getsignal(signal.SIGALRM) is ring
