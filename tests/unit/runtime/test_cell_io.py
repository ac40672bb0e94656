"""Output reaches the caller's sink cleaned and in order, and nobody waits for the guard (GRD-11)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import pytest

from cellwall.guard.service import GuardService, RedactedSink
from cellwall.runtime import cell_io
from cellwall.runtime.cell_io import CleanedOutput

pytestmark = pytest.mark.requirement("GRD-11")

GUARD = GuardService()
TOKEN = b"ghp_" + b"a1B2" * 9
SLOW = b"LS0tLS1CRUdJTi/" * 4000


def run(
    work: Callable[[CleanedOutput], Awaitable[None]], sink: Callable[..., None] | None = None
) -> list[tuple[str, bytes]]:
    got: list[tuple[str, bytes]] = []

    async def main() -> None:
        output = CleanedOutput(GUARD, sink or (lambda name, chunk: got.append((name, chunk))))
        await output.beside(functools.partial(work, output))
        await output.end()

    anyio.run(main)
    return got


def test_long_and_short_pieces_arrive_in_order_and_clean():
    async def work(output: CleanedOutput) -> None:
        for number in range(60):
            output("stdout", b"<%d>" % number * (2000 if number % 3 == 0 else 1) + b"\n")
            output("stderr", b"e%d\n" % number)
            if number % 7 == 0:
                await anyio.sleep(0)
        output("stdout", b"x " + TOKEN[:20])
        output("stdout", TOKEN[20:] + b" y" + b" " * 5000)

    got = run(work)
    wanted = b"".join(b"<%d>" % n * (2000 if n % 3 == 0 else 1) + b"\n" for n in range(60))
    stdout = b"".join(chunk for name, chunk in got if name == "stdout")
    assert stdout.startswith(wanted)
    assert stdout[len(wanted) :].strip() == b"x ghp_[redacted:github-token] y"
    stderr = b"".join(chunk for name, chunk in got if name == "stderr")
    assert stderr == b"".join(b"e%d\n" % n for n in range(60))


@pytest.mark.slow
def test_the_loop_goes_on_while_a_hostile_text_is_cleaned():
    ticks: list[int] = []

    async def work(output: CleanedOutput) -> None:
        output("stdout", SLOW)
        async with anyio.create_task_group() as tasks:

            async def tick() -> None:
                while True:
                    ticks.append(1)
                    await anyio.sleep(0.001)

            tasks.start_soon(tick)
            await output._work_off()
            tasks.cancel_scope.cancel()

    run(work)
    assert len(ticks) > 3  # cleaned on the loop, it would be none


def test_small_pieces_that_cost_too_much_leave_the_loop(monkeypatch):
    threads: set[int] = set()
    feed = RedactedSink.__call__

    def noted(self: RedactedSink, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        threads.add(threading.get_ident())
        feed(self, name, chunk)

    monkeypatch.setattr(RedactedSink, "__call__", noted)
    monkeypatch.setattr(cell_io, "_AT_ONCE_S", -1.0)
    monkeypatch.setattr(cell_io, "_AT_ONCE_S_PER_BYTE", 0.0)

    async def work(output: CleanedOutput) -> None:
        for number in range(20):
            output("stdout", b"%d " % number)
            await anyio.sleep(0)

    assert b"".join(chunk for _, chunk in run(work)) == b"".join(b"%d " % n for n in range(20))
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(("size", "is_on_loop"), [(10, True), (cell_io._SMALL_BYTES + 1, False)])
def test_what_was_held_back_of_little_output_is_passed_on_without_a_thread(
    size, is_on_loop, monkeypatch
):
    threads: list[int] = []
    end = RedactedSink.end

    def noted(self: RedactedSink) -> None:
        threads.append(threading.get_ident())
        end(self)

    monkeypatch.setattr(RedactedSink, "end", noted)

    async def work(output: CleanedOutput) -> None:
        output("stdout", b"x" * size + b" " + TOKEN[:20])
        output("stdout", TOKEN[20:])  # held back until the end: it might go on

    got = b"".join(chunk for _, chunk in run(work))
    assert got == b"x" * size + b" ghp_[redacted:github-token]"
    assert (threads == [threading.get_ident()]) is is_on_loop


@pytest.mark.parametrize("chunk", [b"short\n", b"long\n" * 5000])
def test_an_error_of_the_sink_ends_the_work(chunk):
    def sink(_name: str, _chunk: bytes) -> None:
        raise BrokenPipeError

    async def work(output: CleanedOutput) -> None:
        output("stdout", chunk)
        await anyio.sleep_forever()

    with pytest.raises(BrokenPipeError):
        run(work, sink)


def test_an_error_of_the_work_comes_back_as_it_is():
    async def work(_output: CleanedOutput) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        run(work)


def test_pieces_that_wait_are_joined_however_the_two_streams_take_turns(monkeypatch):
    fed: list[tuple[str, int]] = []
    feed = RedactedSink.__call__

    def count(self: RedactedSink, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        fed.append((name, len(chunk)))
        feed(self, name, chunk)

    monkeypatch.setattr(RedactedSink, "__call__", count)
    monkeypatch.setattr(cell_io, "_AT_ONCE_S", -1.0)

    async def work(output: CleanedOutput, turns: int) -> None:
        for _ in range(turns):
            output("stdout", b"k")
            output("stderr", b"e")

    got = run(functools.partial(work, turns=2000))
    assert fed == [("stdout", 2000), ("stderr", 2000)]
    assert [(name, len(chunk)) for name, chunk in got] == [("stdout", 2000), ("stderr", 2000)]
    fed.clear()
    run(functools.partial(work, turns=10))
    assert fed == [("stdout", 1), ("stderr", 1)] * 10, "a few keep their order"
