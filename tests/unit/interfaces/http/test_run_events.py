"""Events of a run: exact resumption, batches, bounds."""

from __future__ import annotations

import json

import anyio
import pytest

from cellwall.interfaces.http import run_events, runs
from cellwall.interfaces.http.run_events import GATHERED_CHARACTERS, RunEvents
from cellwall.interfaces.http.runs import Run


def parse(data: bytes) -> list[tuple[int, str, object]]:
    """Id, name and data of each event; comments are no events."""
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        number, name, text = block.split("\n")
        found.append(
            (
                int(number.removeprefix("id: ")),
                name.removeprefix("event: "),
                json.loads(text.removeprefix("data: ")),
            )
        )
    return found


async def read(events: RunEvents, after: int = 0) -> list[tuple[int, str, object]]:
    return parse(b"".join([batch async for batch in events.stream(after)]))


def text_of(events: list[tuple[int, str, object]], name: str) -> str:
    return "".join(data["text"] for _, each, data in events if each == name)  # type: ignore[index]  # of output


def test_readers_that_come_back_during_a_burst_miss_and_repeat_nothing():
    async def main() -> None:
        events = RunEvents()
        seen: list[tuple[int, str, object]] = []
        finished = anyio.Event()

        async def write() -> None:
            for number in range(3000):
                events.write("stdout" if number % 3 else "stderr", f"{number}\n".encode())
                if number % 50 == 0:
                    await anyio.lowlevel.checkpoint()
            events.end_output()
            events.add("outcome", {})
            events.close()
            finished.set()

        async def come_back() -> None:
            """Loses its connection after each batch."""
            while not seen or seen[-1][1] != "outcome":
                async for batch in events.stream(after=seen[-1][0] if seen else 0):
                    seen.extend(parse(batch))
                    break

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            tasks.start_soon(come_back)
        assert finished.is_set()
        assert seen == await read(events)
        assert [number for number, *_ in seen] == list(range(1, 3002))
        assert [data["text"] for *_, data in seen[:-1]] == [f"{n}\n" for n in range(3000)]

    anyio.run(main)


def test_a_slow_reader_gets_all_and_does_not_delay_a_fast_one():
    async def main() -> None:
        events = RunEvents()
        slow = events.stream()
        events.write("stdout", b"first")
        assert parse(await anext(slow)) == [(1, "stdout", {"text": "first"})]
        for number in range(1000):
            events.write("stdout", b"%d," % number)
        events.close()
        fast = await read(events)  # while the slow one has taken one event
        rest = parse(b"".join([batch async for batch in slow]))
        assert len(fast) == 1001
        assert rest == fast[1:]

    anyio.run(main)


def test_a_cancelled_reader_leaves_the_events_to_others():
    async def main() -> None:
        events = RunEvents()
        events.write("stdout", b"a")

        async def follow() -> None:
            async for _ in events.stream():
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        events.write("stdout", b"b")
        events.close()
        assert await read(events) == [
            (1, "stdout", {"text": "a"}),
            (2, "stdout", {"text": "b"}),
        ]

    anyio.run(main)


def test_many_events_leave_together():
    async def main() -> None:
        events = RunEvents()
        for _ in range(100):
            events.write("stdout", b"x")
        events.close()
        assert len([batch async for batch in events.stream()]) == 1

    anyio.run(main)


@pytest.mark.requirement("LIM-2")
def test_output_in_single_bytes_does_not_make_an_event_of_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_events, "MAX_SMALL_EVENTS", 100)
    written = 100 + 3 * GATHERED_CHARACTERS + 7

    async def main() -> None:
        events = RunEvents()
        for number in range(written):
            events.write("stdout" if number % 2 else "stderr", b"%d" % (number % 10))
        assert events.count <= 100 + 2 * 3
        assert len(events.output()) == written  # what waits belongs to it
        events.end_output()
        events.close()
        found = await read(events)
        assert len(found) <= 100 + 2 * 4
        both = [str(number % 10) for number in range(written)]
        assert text_of(found, "stderr") == "".join(both[::2])
        assert text_of(found, "stdout") == "".join(both[1::2])
        assert [number for number, *_ in found] == list(range(1, len(found) + 1))

    anyio.run(main)


def test_gathered_output_reaches_a_reader_while_the_program_is_silent(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(run_events, "MAX_SMALL_EVENTS", 1)
    monkeypatch.setattr(run_events, "_GATHERED_S", 0.01)

    async def main() -> None:
        events = RunEvents()
        reader = events.stream()
        events.write("stdout", b"one")
        assert parse(await anext(reader)) == [(1, "stdout", {"text": "one"})]
        events.write("stdout", b"name? ")  # and then it waits for an answer
        with anyio.fail_after(30):
            assert parse(await anext(reader)) == [(2, "stdout", {"text": "name? "})]
        await reader.aclose()

    anyio.run(main)


def test_a_character_split_over_chunks_is_one_character():
    async def main() -> None:
        events = RunEvents()
        for byte in "é\n€".encode():
            events.write("stdout", bytes([byte]))
        events.write("stdout", b"\xe2\x82")  # the program ended within a character
        events.end_output()
        events.close()
        assert text_of(await read(events), "stdout") == "é\n€\N{REPLACEMENT CHARACTER}"

    anyio.run(main)


@pytest.mark.parametrize(
    "text", ['"\\', "\r\n\t\x00\x1b[0m", "\u2028\x85", "id: 9\n\ndata: x\n\n", "\ud800"]
)
def test_no_output_forges_an_event(text: str):
    async def main() -> None:
        events = RunEvents()
        events.write("stdout", text.encode("utf-8", "surrogatepass"))
        events.close()
        ((number, name, data),) = await read(events)
        expected = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        assert (number, name, data) == (1, "stdout", {"text": expected})

    anyio.run(main)


@pytest.mark.requirement("LIM-2")
def test_ended_runs_with_many_events_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs, "MAX_KEPT_EVENTS", 25)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            kept = runs.Runs(tasks)

            async def work(sink: object) -> object:
                for _ in range(10):
                    sink("stdout", b"x")  # type: ignore[operator]  # an `OutputSink`
                raise ValueError  # no outcome is needed

            begun: list[Run] = []
            for _ in range(4):
                begun.append(kept.begin(work, key=None, request=b""))  # type: ignore[arg-type]  # as above
                with pytest.raises(ValueError):  # the error of `work`
                    await begun[-1].wait()
            for run in begun[:2]:
                with pytest.raises(Exception, match="no such run"):
                    kept.find(run.id)
            # Two of 11 events each fit, and are still there.
            assert [kept.find(run.id) for run in begun[2:]] == begun[2:]

    anyio.run(main)
