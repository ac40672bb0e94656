"""Tools when the code does not play by the rules, or does several things at once."""

from __future__ import annotations

import threading

import anyio
import pytest

import cellwall
from cellwall import Sandbox, Status
from conftest import audit_records

pytestmark = [pytest.mark.usefixtures("path"), pytest.mark.requirement("LANG-3")]
_BY_HAND = """
import json, os, struct
def say(message):
    text = json.dumps(message).encode()
    os.write(3, struct.pack(">II", len(text), 0) + text)
def heard():
    head = b""
    while len(head) < 8: head += os.read(4, 8 - len(head))
    size, text = int.from_bytes(head[:4], "big"), b""
    while len(text) < size: text += os.read(4, size - len(text))
    return json.loads(text)
def ask(**message):
    say(message)
    return heard()
"""


class Host:
    def __init__(self) -> None:
        self.called: list[object] = []

    def offered(self, n: int = 0) -> int:
        self.called.append(n)
        return n + 1

    def hidden(self) -> None:
        self.called.append("hidden")


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ({"name": "offered", "args": [1], "kwargs": {}}, {"value": 2}),
        ({"name": "offered", "args": ["x"], "kwargs": {}}, "CW-TOOL-ARGUMENTS"),
        ({"name": "offered", "args": [], "kwargs": {"self": 1}}, "CW-TOOL-ARGUMENTS"),
        ({"name": "hidden", "args": [], "kwargs": {}}, "the host offers no such tool"),
        ({"name": "__init__", "args": [], "kwargs": {}}, "the host offers no such tool"),
        ({"name": "offered.__self__.hidden", "args": [], "kwargs": {}}, "no such tool"),
        ({"name": ["offered"], "args": [], "kwargs": {}}, "malformed tool call"),
        ({"name": "offered", "args": {"n": 1}, "kwargs": {}}, "malformed tool call"),
        ({"name": "offered", "args": [], "kwargs": []}, "malformed tool call"),
        ({"name": "offered"}, "malformed tool call"),
        ({}, "malformed tool call"),
    ],
)
def test_a_forged_call_is_judged_as_any_other(once, message, answer):
    host = Host()
    code = f"{_BY_HAND}\nask(call=77, **{message!r})"
    if once:
        done = cellwall.run_code(code, tools={"offered": host.offered})
    else:
        with Sandbox.create(tools={"offered": host.offered}) as sbx:
            done = sbx.run_code(code)
            assert sbx.run_code("tools.offered(5)").value == 6
            host.called.remove(5)
    if isinstance(answer, dict):
        assert (done.value, host.called) == ({"answer": 77, **answer}, [1])
    else:
        assert (done.value["answer"], host.called) == (77, [])
        assert answer in done.value["error"]


def test_code_without_tools_reaches_none_however_it_asks():
    host = Host()
    with Sandbox.create() as plain, Sandbox.create(tools={"offered": host.offered}) as other:
        assert other.run_code("tools.offered()").value == 1
        code = f"{_BY_HAND}\nask(call=1, name='offered', args=[], kwargs={{}})"
        done = plain.run_code(code, timeout=0.5)  # nobody answers
        assert (done.status, done.limit) == (Status.LIMIT, "wall")
        assert plain.run_code("'tools' in dir()").value is False
    assert host.called == [0]


def test_tools_of_one_sandbox_are_not_another_s():
    one, two = Host(), Host()
    with (
        Sandbox.create(tools={"offered": one.offered}) as first,
        Sandbox.create(tools={"offered": two.offered, "hidden": two.hidden}) as second,
    ):
        second.run_code("tools.hidden()")
        asked = f"{_BY_HAND}\nask(call=1, name='hidden', args=[], kwargs={{}})['error']"
        assert first.run_code(asked).value == "the host offers no such tool"
        first.run_code("tools.offered(1)")
    assert (one.called, two.called) == ([1], ["hidden"])


def test_a_tool_that_is_not_offered_is_told_by_name():
    done = cellwall.run_code("tools.nothing()", tools={"offered": Host().offered})
    assert (done.error["type"], "offered" in done.error["message"]) == ("AttributeError", True)


@pytest.mark.parametrize(
    "number",
    ["None", "'1'", "[1]", "{'a': 1}", "2**70", "-1"],
    ids=["none", "text", "list", "dict", "big", "minus"],
)
def test_the_number_of_a_call_is_only_repeated(number):
    code = f"{_BY_HAND}\nask(call={number}, name='offered', args=[], kwargs={{}})['value']"
    assert cellwall.run_code(code, tools={"offered": Host().offered}).value == 1


def test_a_call_whose_answer_nobody_waits_for_harms_nothing():
    host = Host()
    with Sandbox.create(tools={"offered": host.offered}) as sbx:
        code = f"{_BY_HAND}\nfor n in range(20): say(dict(call=n, name='offered', args=[n], kwargs={{}}))"
        assert sbx.run_code(code).status is Status.OK
        assert [sbx.run_code(f"tools.offered({n})").value for n in (7, 8)] == [8, 9]


def test_threads_of_the_code_call_tools_at_once():
    host = Host()
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(8) as threads: found = list(threads.map(tools.offered, range(100)))\n"
        "found == list(range(1, 101))"
    )
    with Sandbox.create(tools={"offered": host.offered}) as sbx:
        assert sbx.run_code(code).value is True
        assert sorted(host.called) == list(range(100))


def test_two_sandboxes_call_the_same_tool_at_once():
    async def main() -> list[object]:
        both = anyio.Event()
        waiting = 0

        async def meet() -> int:
            nonlocal waiting
            waiting += 1
            if waiting == 2:
                both.set()
            await both.wait()
            return waiting

        found: list[object] = []

        async def one() -> None:
            async with cellwall.AsyncSandbox.create(tools={"meet": meet}) as sbx:
                found.append((await sbx.run_code("tools.meet()")).value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)
        return found

    assert anyio.run(main) == [2, 2]


@pytest.mark.parametrize("how", ["time", "kill"])
def test_a_call_under_way_ends_with_its_code(how):
    begun, ended = threading.Event(), threading.Event()

    async def slow() -> None:
        begun.set()
        try:
            await anyio.sleep(60)
        finally:
            ended.set()

    sbx = Sandbox.create(tools={"slow": slow, "quick": lambda: 1})
    if how == "time":
        assert sbx.run_code("tools.quick()").value == 1  # the interpreter is there
        done = sbx.run_code("tools.slow()", timeout=2)
        assert (done.limit, done.state) == ("wall", "kept")
        assert sbx.run_code("tools.quick()").value == 1
    else:
        calling = threading.Thread(target=lambda: sbx.run_code("tools.slow()"))
        calling.start()
        assert begun.wait(20)
        sbx.kill()
        calling.join(20)
    assert ended.wait(20)
    sbx.kill()
    statuses = [r["body"].get("status") for r in audit_records() if r["kind"] == "outcome"]
    assert "interrupted" in statuses


def test_a_thread_that_still_waits_for_a_tool_does_not_take_the_next_request():
    # runner.py: its read of the channel swallows the next "code" frame; the call times out, state lost.
    async def slow() -> None:
        await anyio.sleep(60)

    with Sandbox.create(tools={"slow": slow}) as sbx:
        left = "import threading, time\nthreading.Thread(target=tools.slow, daemon=True).start()\ntime.sleep(0.2)"
        assert sbx.run_code(left).status is Status.OK
        assert sbx.run_code("1", timeout=60).value == 1
