"""A call of `run_code` over MCP against the same call of the SDK, interleaved in one run."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from typing import Any

import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

import cellwall

_PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
_CODE = "1 + 1"
_UNTIMED = 10


def measure(rounds: int = 200) -> dict[str, Any]:
    """Milliseconds, and what the protocol, the marking and the other process add to them.

    The overhead is the median of the differences of neighbours, so that a noisy moment of the
    machine is in both.
    """
    return anyio.run(_measure, rounds)


async def _measure(rounds: int) -> dict[str, Any]:
    # A state folder of its own: two writers of one record would wait for each other.
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-mcp-") as home:
        return await _compared(rounds, home)


async def _compared(rounds: int, home: str) -> dict[str, Any]:
    environ = {**os.environ, "CELLWALL_HOME": home}
    server = StdioServerParameters(command=_PROGRAM, args=["mcp"], env=environ)
    sdk_s: list[float] = []
    mcp_s: list[float] = []
    async with cellwall.AsyncSandbox.create() as sandbox, Client(server) as client:
        for number in range(_UNTIMED + rounds):
            begun = time.perf_counter()
            ran = await sandbox.run_code(_CODE)
            between = time.perf_counter()
            called = await client.call_tool("run_code", {"code": _CODE})
            ended = time.perf_counter()
            if ran.value != 2 or called.is_error:
                raise SystemExit(f"a run failed: {ran.status} {called.structured_content}")
            if number >= _UNTIMED:
                sdk_s.append(between - begun)
                mcp_s.append(ended - between)
    over_s = [theirs - ours for ours, theirs in zip(sdk_s, mcp_s, strict=True)]
    return {
        "mcp_sdk_call_p50_ms": _ms(sdk_s),
        "mcp_call_p50_ms": _ms(mcp_s),
        "mcp_overhead_p50_ms": _ms(over_s),
        "mcp_call_p95_ms": round(sorted(mcp_s)[int(rounds * 0.95)] * 1e3, 3),
    }


def _ms(times_s: list[float]) -> float:
    return round(statistics.median(times_s) * 1e3, 3)
