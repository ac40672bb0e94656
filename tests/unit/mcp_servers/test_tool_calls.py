"""Calls of a server's tools: each answer reaches its own call, in any order, and no call waits on."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent

from cellwall.mcp_servers.tool_calls import ToolCalls
from cellwall.parsing.jsonrpc import parse_message
from cellwall.parsing.message_streams import MessageWriter

pytestmark = pytest.mark.requirement("SRV-7")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Server:
    """The other end: keeps what it is sent, and answers when told to."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.calls = ToolCalls(MessageWriter(self._receive, self._never, lambda _: None))

    def _receive(self, data: bytes) -> int:
        self.sent += [json.loads(line) for line in data.splitlines()]
        return len(data)

    async def _never(self, data: bytes) -> None:
        raise AssertionError(data)

    def answer(self, number: int, text: str, *, as_text: bool = False) -> bool:
        call_id = self.sent[number]["id"]
        result = {"content": [{"type": "text", "text": text}]}
        return self.take(id=str(call_id) if as_text else call_id, result=result)

    def take(self, **fields: object) -> bool:
        message = parse_message(json.dumps({"jsonrpc": "2.0", **fields}).encode())
        assert isinstance(message, SessionMessage)
        return self.calls.take(message)


async def _begin(
    server: Server, tasks: anyio.abc.TaskGroup, *tools: str
) -> dict[str, CallToolResult | MCPError]:
    ended: dict[str, CallToolResult | MCPError] = {}

    async def call(tool: str) -> None:
        try:
            ended[tool] = await server.calls.call(tool, {"text": tool}, {})
        except MCPError as error:
            ended[tool] = error

    for tool in tools:
        tasks.start_soon(call, tool)
    while len(server.sent) < len(tools):
        await anyio.lowlevel.checkpoint()
    return ended


def _text(result: CallToolResult | MCPError) -> str:
    assert isinstance(result, CallToolResult)
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.mark.anyio
async def test_answers_reach_their_own_calls_in_any_order() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        ended = await _begin(server, tasks, "first", "second")
        assert server.answer(1, "for the second", as_text=True)
        assert server.answer(0, "for the first")
    assert {name: _text(each) for name, each in ended.items()} == {
        "first": "for the first",
        "second": "for the second",
    }
    assert [each["params"] for each in server.sent] == [
        {"name": name, "arguments": {"text": name}} for name in ("first", "second")
    ]
    assert not server.answer(0, "once more"), "an answer to no call is not taken"


@pytest.mark.anyio
async def test_arguments_without_a_form_in_json_reach_the_server_as_valid_json() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        odd = {"number": float("nan"), "text": "\ud800 é"}
        tasks.start_soon(server.calls.call, "tool", odd, {"key": 1})
        while not server.sent:
            await anyio.lowlevel.checkpoint()
        assert server.answer(0, "taken")
    params = server.sent[0]["params"]
    assert (params["arguments"]["number"], params["_meta"]) == (None, {"key": 1})
    assert params["arguments"]["text"].endswith(" é")


@pytest.mark.anyio
async def test_messages_that_answer_no_call_are_left_to_the_session() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        await _begin(server, tasks, "tool")
        assert not server.take(id=1, result={})
        assert not server.take(method="notifications/tools/list_changed")
        assert not server.take(id=server.sent[0]["id"], method="elicitation/create", params={})
        assert server.answer(0, "the answer")


@pytest.mark.anyio
async def test_error_of_the_server_ends_its_call_alone() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        ended = await _begin(server, tasks, "bad", "good")
        assert server.take(id=server.sent[0]["id"], error={"code": -32000, "message": "no"})
        assert server.answer(1, "well")
    assert isinstance(ended["bad"], MCPError)
    assert (ended["bad"].code, ended["bad"].message) == (-32000, "no")
    assert _text(ended["good"]) == "well"


@pytest.mark.anyio
async def test_end_of_the_server_ends_all_calls_and_refuses_new_ones() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        ended = await _begin(server, tasks, "first", "second")
        server.calls.close()
    assert {each.code if isinstance(each, MCPError) else each for each in ended.values()} == {
        CONNECTION_CLOSED
    }
    with pytest.raises(MCPError, match="Connection closed"):
        await server.calls.call("third", {}, {})


@pytest.mark.anyio
async def test_cancelled_call_is_cancelled_at_the_server() -> None:
    server = Server()
    async with anyio.create_task_group() as tasks:
        await _begin(server, tasks, "slow")
        tasks.cancel_scope.cancel()
    call, cancelled = server.sent
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == call["id"]
    assert not server.answer(0, "too late")


@pytest.mark.anyio
async def test_answer_that_is_no_result_of_a_tool_is_refused() -> None:
    server = Server()

    async def answer() -> None:
        while not server.sent:
            await anyio.lowlevel.checkpoint()
        assert server.take(id=server.sent[0]["id"], result={"content": "no list"})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        with pytest.raises(ValueError, match="content"):
            await server.calls.call("tool", {}, {})
