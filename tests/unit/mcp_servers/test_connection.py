"""The protocol with a server: what it sends takes bounded memory."""

from __future__ import annotations

import gc
import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from cellwall.mcp_servers import connection as connections
from cellwall.mcp_servers.connection import ConnectionSettings, ServerConnection

pytestmark = pytest.mark.requirement("SRV-7")
SETTINGS = ConnectionSettings(start_timeout_s=30, call_timeout_s=30)
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "asking", "version": "1"},
}
REQUESTS = 60


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class AskingServer:
    """Implements `ServerPipe`: a server that sends requests, and may not read the answers."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self._output = list[bytes]()
        self._came = anyio.Event()
        self.answered = 0

    def say(self, **fields: object) -> None:
        self._output.append(json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n")
        self._came.set()

    def send_now(self, data: bytes) -> int:
        message: dict[str, Any] = json.loads(data)
        match message.get("method"):
            case "initialize":
                self.say(id=message["id"], result=HELLO)
            case "tools/list":
                self.say(id=message["id"], result={"tools": []})
            case None:
                self.answered += 1
                return len(data) if self._reads else 0
        return len(data)

    async def send(self, data: bytes) -> None:
        del data
        await anyio.sleep_forever()

    async def receive(self) -> bytes:
        while not self._output:
            self._came = anyio.Event()
            await self._came.wait()
        await anyio.lowlevel.checkpoint()  # as each chunk of a pipe does
        return self._output.pop(0)

    def errors(self) -> bytes:
        return b""


async def kept_requests(*, reads: bool) -> int:
    """How many requests of the server are in memory after all of them were read."""
    server, connection = AskingServer(reads=reads), ServerConnection("asking", SETTINGS)
    kept = 0

    async def work() -> None:
        nonlocal kept
        await connection.start()
        for number in range(REQUESTS):
            server.say(id=number, method="sampling/createMessage", params={"canary": [[]]})
        server.say(method="notifications/tools/list_changed")
        connection.is_stale = False
        while not connection.is_stale:
            await anyio.lowlevel.checkpoint()
        gc.collect()  # of an earlier connection
        found = (each for each in gc.get_objects() if type(each) is dict)
        kept = sum(each.get("canary") == [[]] for each in found)

    await connection.serve(server, work)
    assert server.answered
    return kept


@pytest.mark.slow
@pytest.mark.anyio
async def test_requests_of_a_server_that_reads_no_answers_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await kept_requests(reads=True) == 0
    # Those for which no answer was made yet, when the limit was reached, count as well.
    assert 0 < await kept_requests(reads=False) < 2 * connections._MAX_UNREAD
    monkeypatch.setattr(connections, "_MAX_UNREAD", 10**9)
    assert await kept_requests(reads=False) == REQUESTS  # the control
