"""One framework's call beside the same call of the SDK, in turn; in the framework's environment."""

# ruff: noqa: PLC0415, SLF001  # one framework is installed at a time; the same sandbox is called without it

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from cellwall import AsyncSandbox, Sandbox

Call = Callable[[], Awaitable[Any]]
BlockingCall = Callable[[], Any]


async def _inspect() -> tuple[Call, Call]:
    from cellwall.integrations.inspect import CellwallSandboxEnvironment

    made = await CellwallSandboxEnvironment.sample_init("bench", None, {})
    environment: Any = made["default"]
    run = environment.sandbox.commands.run
    return lambda: environment.exec(["true"]), lambda: run(["true"], stdin=b"")


async def _pydantic_ai() -> tuple[Call, Call]:
    from cellwall.integrations.pydantic_ai import CellwallWorkspace

    workspace = CellwallWorkspace(keep_alive=60.0)
    await workspace.working_dir()
    sandbox = await AsyncSandbox.connect(workspace.ref.id)
    return lambda: workspace.run(["true"]), lambda: sandbox.commands.run(["true"], stdin=b"")


async def _openai_agents() -> tuple[Call, Call]:
    from cellwall.integrations.openai_agents import CellwallSandboxClient

    session: Any = await CellwallSandboxClient().create()
    await session.start()
    sandbox = await AsyncSandbox.connect(session.state.sandbox_id)
    return lambda: session.exec("true"), lambda: sandbox.commands.run("true")


async def _autogen() -> tuple[Call, Call]:
    from autogen_core import CancellationToken
    from autogen_core.code_executor import CodeBlock

    from cellwall.integrations.autogen import CellwallCodeExecutor

    executor: Any = CellwallCodeExecutor()
    await executor.start()
    blocks, token = [CodeBlock(code="1", language="python")], CancellationToken()
    run = executor._sandbox.run_code
    return lambda: executor.execute_code_blocks(blocks, token), lambda: run("1")


def _deepagents() -> tuple[BlockingCall, BlockingCall]:
    from cellwall.integrations.deepagents import CellwallBackend

    sandbox = Sandbox.create()
    backend = CellwallBackend(sandbox)
    return lambda: backend.execute("true"), lambda: sandbox.commands.run("true")


def _smolagents() -> tuple[BlockingCall, BlockingCall]:
    from cellwall.integrations.smolagents import CellwallExecutor

    executor = CellwallExecutor()
    return lambda: executor("1"), lambda: executor.sandbox.run_code("1")


def _adk() -> tuple[BlockingCall, BlockingCall]:
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput

    from cellwall.integrations.adk import CellwallCodeExecutor

    executor: Any = CellwallCodeExecutor(stateful=True)
    request = CodeExecutionInput(code="1", execution_id="bench")
    executor.execute_code(None, request)
    sandbox = executor._sessions["bench"]
    return lambda: executor.execute_code(None, request), lambda: sandbox.run_code("1")


def _crewai() -> tuple[BlockingCall, BlockingCall]:
    from cellwall.integrations.crewai import CellwallCodeTool

    tool: Any = CellwallCodeTool()
    tool._run("1")
    return lambda: tool._run("1"), lambda: tool._live.run_code("1")


ASYNC = {
    "autogen": _autogen,
    "inspect": _inspect,
    "openai-agents": _openai_agents,
    "pydantic-ai": _pydantic_ai,
}
BLOCKING = {
    "adk": _adk,
    "crewai": _crewai,
    "deepagents": _deepagents,
    "smolagents": _smolagents,
}


async def _time(call: Call) -> float:
    begun = time.perf_counter()
    await call()
    return (time.perf_counter() - begun) * 1000


async def _measure(name: str, rounds: int) -> dict[str, float]:
    ours, sdk = await ASYNC[name]()
    pairs = [(await _time(ours), await _time(sdk)) for _ in range(rounds + 5)][5:]
    return _figures(pairs)


def _measure_blocking(name: str, rounds: int) -> dict[str, float]:
    """Without a running event loop, which the blocking facade would have to leave."""
    ours, sdk = BLOCKING[name]()

    def once(call: BlockingCall) -> float:
        begun = time.perf_counter()
        call()
        return (time.perf_counter() - begun) * 1000

    return _figures([(once(ours), once(sdk)) for _ in range(rounds + 5)][5:])


def _figures(pairs: list[tuple[float, float]]) -> dict[str, float]:
    ours, sdk = zip(*pairs, strict=True)
    return {
        "call_p50_ms": round(statistics.median(ours), 3),
        "sdk_p50_ms": round(statistics.median(sdk), 3),
        "over_sdk_p50_ms": round(statistics.median(a - b for a, b in pairs), 3),
        "ratio": round(statistics.median(ours) / statistics.median(sdk), 3),
    }


if __name__ == "__main__":
    framework, count = sys.argv[1], int(sys.argv[2])
    if framework in ASYNC:
        found = asyncio.run(_measure(framework, count))
    else:
        found = _measure_blocking(framework, count)
    print(json.dumps(found))
