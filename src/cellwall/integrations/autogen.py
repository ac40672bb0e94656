"""A code executor for AutoGen: the extra `cellwall[autogen]`.

async with CellwallCodeExecutor() as executor:
    agent = CodeExecutorAgent("coder", code_executor=executor)
"""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult

from cellwall import AsyncSandbox, Execution

_SHELLS = {"bash", "sh", "shell"}


class CellwallCodeExecutor(CodeExecutor):
    """Runs blocks of code in one live sandbox; variables and files stay until `restart` or `stop`.

    The options are those of `AsyncSandbox.create`. Blocks of shell text are commands; other
    languages are those of Cellwall: Python, JavaScript, TypeScript and what the host can compile.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # each option has its own type
        self._options = options
        self._sandbox: AsyncSandbox | None = None
        self._starting = asyncio.Lock()  # two agents that start one executor make one sandbox

    async def start(self) -> None:
        """Create the sandbox."""
        async with self._starting:
            if self._sandbox is None:
                self._sandbox = await AsyncSandbox.create(**self._options)

    async def stop(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.kill()

    async def restart(self) -> None:
        """A new sandbox in place of this one."""
        await self.stop()
        await self.start()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Run the blocks in turn, up to the first that fails; a refusal has exit code 125."""
        await self.start()
        outputs = []
        for block in code_blocks:
            work = asyncio.ensure_future(self._run(block))
            cancellation_token.link_future(work)
            done = await work
            if done.limit == "wall":
                raise TimeoutError(done.transcript)
            outputs.append("\n".join(part for part in (done.transcript, done.text) if part))
            if done.shell_exit_code != 0:
                return CodeResult(done.shell_exit_code, "\n".join(outputs))
        return CodeResult(0, "\n".join(outputs))

    async def _run(self, block: CodeBlock) -> Execution:
        sandbox = self._sandbox
        if sandbox is None:
            raise ValueError("the executor was stopped")
        language = block.language.lower() or "python"
        if language in _SHELLS:
            return await sandbox.commands.run(["bash", "-c", block.code])
        return await sandbox.run_code(block.code, language=language)
