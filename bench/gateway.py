"""A call of a stdio MCP server through the gateway against the same call of the server alone.

Both clients are the SDK's own, and the calls are interleaved in one run. The gateway's call has two
more processes' hops, is judged, recorded durably twice, scanned and marked. The time of the two
flushes of the audit log depends on the disk, so it is reported beside.
"""

from __future__ import annotations

import os
import statistics
import sys
import sysconfig
import time
from functools import partial
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from cellwall.admin.tool_servers import ServerSettings, ToolServerAdmin
from cellwall.runtime.home import local_principal
from cellwall.runtime.wiring import open_app

_PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
_PACKAGES = sysconfig.get_path("purelib")
_SERVER = """
from mcp.server import MCPServer
server = MCPServer("bench", version="1")
@server.tool()
async def echo(text: str) -> str:
    '''Return the text.'''
    return text
server.run("stdio")
"""
_UNTIMED = 10


def measure(rounds: int, *, quiet: bool = False) -> dict[str, Any]:  # noqa: ARG001  # as the others
    """Milliseconds; the added time is the median of the differences of neighbours."""
    home = os.environ["CELLWALL_HOME"]
    _prepare(home)
    return anyio.run(_compare, rounds, home)


def _prepare(home: str) -> None:
    """A home with one server, accepted."""
    os.environ["CELLWALL_CONFIG"] = os.path.join(home, "config.toml")
    with open(os.environ["CELLWALL_CONFIG"], "w", encoding="utf-8") as file:
        file.write(f'[sandbox]\nextra_read_only_paths = ["{_PACKAGES}"]\n')
    with open(os.path.join(home, "policy.toml"), "w", encoding="utf-8") as file:
        file.write('[permissions]\nallow = ["mcp__bench"]\n')
    app = open_app()
    try:
        admin, who = ToolServerAdmin(app), local_principal("cli")
        argv = ("python3", "-c", _SERVER)
        admin.add(ServerSettings(name="bench", argv=argv, env={"PYTHONPATH": _PACKAGES}), who=who)
        anyio.run(partial(admin.look, "bench", who=who, ask=None))
        admin.accept(admin.review("bench"), who=who)
    finally:
        app.close()


async def _compare(rounds: int, home: str) -> dict[str, Any]:
    direct = StdioServerParameters(command=sys.executable, args=["-c", _SERVER])
    options = ["mcp", "--gateway", "--policy", os.path.join(home, "policy.toml")]
    through = StdioServerParameters(command=_PROGRAM, args=options, env=dict(os.environ))
    direct_s: list[float] = []
    gateway_s: list[float] = []
    flush_s: list[float] = []
    async with (
        Client(direct, mode="legacy") as near,
        Client(through, mode="legacy") as far,
    ):
        for number in range(_UNTIMED + rounds):
            begun = time.perf_counter()
            plain = await near.call_tool("echo", {"text": "hello"})
            between = time.perf_counter()
            called = await far.call_tool("bench-echo", {"text": "hello"})
            ended = time.perf_counter()
            if plain.is_error or called.is_error:
                raise SystemExit(f"a call failed: {called.structured_content}")
            if number >= _UNTIMED:
                direct_s.append(between - begun)
                gateway_s.append(ended - between)
                flush_s.append(_flush(home))
    added_s = [more - less for less, more in zip(direct_s, gateway_s, strict=True)]
    flushes_ms = 2 * _ms(flush_s)
    return {
        "gateway_direct_call_p50_ms": _ms(direct_s),
        "gateway_call_p50_ms": _ms(gateway_s),
        "gateway_added_p50_ms": _ms(added_s),
        "gateway_two_flushes_p50_ms": round(flushes_ms, 3),
        "gateway_added_without_flushes_p50_ms": round(_ms(added_s) - flushes_ms, 3),
        "gateway_ratio": round(_ms(gateway_s) / _ms(direct_s), 2),
    }


def _flush(home: str) -> float:
    """One small append to a file in the same folder, flushed as the audit log does."""
    descriptor = os.open(os.path.join(home, "flush"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        begun = time.perf_counter()
        os.write(descriptor, b"x" * 800)
        os.fdatasync(descriptor)
        return time.perf_counter() - begun
    finally:
        os.close(descriptor)


def _ms(times_s: list[float]) -> float:
    return round(statistics.median(times_s) * 1e3, 3)
