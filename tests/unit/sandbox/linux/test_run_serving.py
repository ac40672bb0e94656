"""The descriptors of a run are served while its monitor waits, and not afterwards."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine

import anyio
import pytest

from cellwall.core.one_call_loops import HELD_UP_S, OneCallLoop
from cellwall.sandbox.linux.run_serving import serve_for, wait_readable_for, wait_readable_soon

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class PipeIO:
    """Reads a pipe as `RunIO` does."""

    def __init__(self) -> None:
        self._source, self.sink = os.pipe()
        self.chunks: list[bytes] = []
        self.has_news = False
        self.failure: Exception | None = None

    def fileno(self) -> int:
        return self._source

    def serve(self) -> int:
        if self.failure is not None:
            raise self.failure
        self.chunks.append(os.read(self._source, 100))
        return 1


async def wait(run_io: PipeIO, time_s: float, **more) -> None:
    await serve_for(run_io, time_s, until=lambda: more.get("until", False))  # type: ignore[arg-type]  # a part of RunIO


def test_chunks_are_read_without_ending_the_wait():
    async def main() -> None:
        run_io = PipeIO()

        async def write() -> None:
            for number in range(5):
                os.write(run_io.sink, b"%d" % number)
                while len(run_io.chunks) <= number:
                    await anyio.sleep(0)
            run_io.has_news = True
            os.write(run_io.sink, b"end")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            with anyio.fail_after(30):
                await wait(run_io, 3600)
        assert run_io.chunks == [b"0", b"1", b"2", b"3", b"4", b"end"]

    anyio.run(main)


def test_the_end_of_the_run_and_of_the_time_end_the_wait():
    async def main() -> None:
        run_io = PipeIO()
        begun = time.monotonic()
        await wait(run_io, 0.01)
        assert (run_io.chunks, time.monotonic() - begun >= 0.01) == ([], True)
        os.write(run_io.sink, b"x")
        with anyio.fail_after(30):
            await wait(run_io, 3600, until=True)
        assert run_io.chunks == [b"x"]

    anyio.run(main)


def test_a_failure_reaches_the_monitor_and_a_cancellation_leaves_nothing_registered():
    async def main() -> None:
        run_io = PipeIO()
        with anyio.move_on_after(0.01) as scope:
            await wait(run_io, 3600)
        assert scope.cancelled_caught
        assert not asyncio.get_running_loop().remove_reader(run_io)  # type: ignore[arg-type]  # has a `fileno`
        run_io.failure = ValueError("x")
        os.write(run_io.sink, b"x")
        with pytest.raises(ValueError, match="x"):
            await wait(run_io, 3600)

    anyio.run(main)


def run_on(factory: LoopFactory, work: Callable[[], Coroutine[object, object, None]]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())


def test_only_a_loop_of_one_call_is_held_up_by_a_short_wait():
    async def steps_beside(time_s: float) -> int:
        """How often another task of the loop runs during a wait that nothing ends."""
        steps = 0

        async def count() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(count())
        begun = time.monotonic()
        await wait_readable_for(PipeIO().fileno(), time_s)
        assert time.monotonic() - begun >= time_s
        other.cancel()
        return steps

    async def is_held_up() -> None:
        assert await steps_beside(HELD_UP_S) == 0
        assert await steps_beside(2 * HELD_UP_S) > 0  # positive control: a longer wait is not

    async def goes_on() -> None:
        assert await steps_beside(HELD_UP_S) > 0

    run_on(OneCallLoop, is_held_up)
    run_on(asyncio.SelectorEventLoop, goes_on)


@pytest.mark.parametrize("factory", [OneCallLoop, asyncio.SelectorEventLoop])
def test_a_wait_ends_when_the_descriptor_is_readable(factory: LoopFactory):
    async def main() -> None:
        run_io = PipeIO()
        later = threading.Timer(3 * HELD_UP_S, os.write, (run_io.sink, b"x"))
        later.start()
        with anyio.fail_after(30):
            await wait_readable_soon(run_io.fileno())  # longer than a loop may be held up
            assert os.read(run_io.fileno(), 9) == b"x"
            os.write(run_io.sink, b"y")
            begun = time.monotonic()
            await wait_readable_for(run_io.fileno(), HELD_UP_S)
            await wait_readable_for(run_io.fileno(), 3600)
            await wait_readable_soon(run_io.fileno())
        assert time.monotonic() - begun < 30
        assert os.read(run_io.fileno(), 9) == b"y"

    run_on(factory, main)
