"""AutoGen has no conformance suite: a CodeExecutorAgent with a scripted model, and the contract of
`CodeExecutor`."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from cellwall.integrations.autogen import CellwallCodeExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def run(executor, *blocks):
    code = [CodeBlock(code=text, language=language) for language, text in blocks]
    return await executor.execute_code_blocks(code, CancellationToken())


async def test_the_example_of_the_guide_works_in_a_sandbox(run_example, primes):
    made = run_example("AutoGen", code=f"```python\n{primes}\n```")
    assert "25" in (await made["main"]()).to_text()


async def test_an_agent_runs_the_blocks_of_a_message():
    async with CellwallCodeExecutor() as executor:
        agent = CodeExecutorAgent("coder", code_executor=executor)
        text = "```sh\necho 41 > n\n```\n```python\nint(open('n').read()) + 1\n```"
        message = TextMessage(content=text, source="user")
        reply = await agent.on_messages([message], CancellationToken())
        assert "42" in reply.chat_message.content


async def test_variables_stay_until_a_restart():
    async with CellwallCodeExecutor() as executor:
        assert (await run(executor, ("python", "x = 20"))).exit_code == 0
        assert await run(executor, ("python", "x + 1")) == pytest.approx(
            await run(executor, ("python", "21"))
        )
        await executor.restart()
        assert "NameError" in (await run(executor, ("python", "x"))).output


async def test_the_first_block_that_fails_ends_the_run():
    async with CellwallCodeExecutor() as executor:
        done = await run(executor, ("sh", "echo one; exit 3"), ("sh", "echo two"))
        assert (done.exit_code, done.output) == (3, "one")


async def test_a_denied_command_has_the_reason(policy):
    async with CellwallCodeExecutor(policy=policy) as executor:
        assert (await run(executor, ("sh", "echo allowed"))).output == "allowed"
        done = await run(executor, ("sh", "curl https://example.com"))
        assert done.exit_code == 125
        assert "CW-DENIED" in done.output


async def test_a_time_limit_is_a_timeout_and_cancellation_ends_the_program():
    async with CellwallCodeExecutor(timeout=1) as executor:
        with pytest.raises(asyncio.TimeoutError):
            await run(executor, ("sh", "sleep 60"))
    async with CellwallCodeExecutor() as executor:
        token = CancellationToken()
        block = CodeBlock(code="echo $$ > pid; exec sleep 60", language="sh")
        task = asyncio.ensure_future(executor.execute_code_blocks([block], token))
        while "0" not in (await run(executor, ("sh", "test -s pid; echo $?"))).output:
            await asyncio.sleep(0.05)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await run(executor, ("sh", "kill -0 $(cat pid)"))).exit_code == 0:
            await asyncio.sleep(0.05)


async def test_agents_that_share_an_executor_share_a_sandbox():
    executor = CellwallCodeExecutor()  # nobody has started it
    try:
        done = await asyncio.gather(*(run(executor, ("python", f"x{n} = {n}")) for n in range(3)))
        assert [each.exit_code for each in done] == [0, 0, 0]
        assert (await run(executor, ("python", "x0 + x1 + x2"))).output == "3"
    finally:
        await executor.stop()
