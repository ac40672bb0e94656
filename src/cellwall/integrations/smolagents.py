"""A code executor for smolagents: the extra `cellwall[smolagents]`.

    executor = CellwallExecutor()
    with CodeAgent(tools=[…], model=…, executor=executor) as agent:
        agent.run("…")

smolagents sends the source of the tools to the executor, so the tools run in the sandbox as well.
"""

from __future__ import annotations

import shlex
from typing import Any

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import Tool, get_tools_definition_code
from smolagents.utils import AgentError

from cellwall import CellwallError, Execution, Sandbox

_PIP = "!pip install "
_DISTRIBUTIONS = {"PIL": "pillow"}


class CellwallExecutor(RemotePythonExecutor):
    """Runs an agent's code in a live sandbox; variables stay from step to step.

    The options are those of `Sandbox.create`. `additional_imports` and `!pip install` lines are
    installed by Cellwall: through its registry proxy, which judges each package, while the sandbox
    has no network.
    """

    def __init__(
        self,
        additional_imports: list[str] | None = None,
        logger: AgentLogger | None = None,
        **options: Any,  # noqa: ANN401  # each option has its own type
    ) -> None:
        super().__init__(additional_imports or [], logger or AgentLogger(LogLevel.ERROR))
        self.sandbox = Sandbox.create(**options)
        try:
            self.installed_packages = self.install_packages(self.additional_imports)
        except BaseException:  # nobody gets the executor, so nobody would end the sandbox
            self.sandbox.kill()
            raise

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Define the tools inside, after installing the packages that they import."""
        if "final_answer" in tools:
            self._patch_final_answer_with_exception(tools["final_answer"])
        needed = {
            package
            for name, tool in tools.items()
            if name != "final_answer"
            for package in tool.to_dict()["requirements"]
        }
        fresh = sorted(needed - {"smolagents", *self.installed_packages})
        if fresh:
            self.install_packages([_DISTRIBUTIONS.get(package, package) for package in fresh])
            self.installed_packages += fresh
        # The final answer imports these where they are, and does without them.
        absent = {f"import {package}" for package in ("PIL", "numpy") if package not in needed}
        code = get_tools_definition_code(tools).splitlines()
        self.run_code_raise_errors("\n".join(line for line in code if line not in absent))

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code; whatever stops it is an `AgentError`, which the model sees and can act on."""
        lines = code.split(
            "\n"
        )  # not at the other characters that `splitlines` takes for line ends
        logs = [self._install(line) for line in lines if line.startswith(_PIP)]
        rest = "\n".join(line for line in lines if not line.startswith(_PIP))
        if not rest.strip():
            return CodeOutput(output=None, logs="\n".join(logs), is_final_answer=False)
        done = self.sandbox.run_code(rest)
        logs.append(done.stdout + done.stderr)
        return self._output(done, "\n".join(logs))

    def cleanup(self) -> None:
        """End the sandbox."""
        self.sandbox.kill()

    def _install(self, line: str) -> str:
        # An option of pip, such as another index, is refused as the name of a package.
        try:
            done = self.sandbox.packages.install(*shlex.split(line.removeprefix(_PIP)))
        except (CellwallError, ValueError) as error:
            raise AgentError(str(error), self.logger) from None
        if done.failure:
            raise AgentError(done.failure, self.logger)
        return "\n".join(f"installed {each.name} {each.version}" for each in done.installed)

    def _output(self, done: Execution, logs: str) -> CodeOutput:
        if done.limit is not None or done.refusal is not None:
            raise AgentError(done.transcript, self.logger)
        match done.error:
            case {"type": self.FINAL_ANSWER_EXCEPTION, "message": str(answer)}:
                # JSON alone: the answer comes from code inside, and nothing of it is unpickled.
                found = self._deserialize_final_answer(answer, allow_pickle=False)
                return CodeOutput(output=found, logs=logs, is_final_answer=True)
            case {"type": _}:  # its traceback is in the logs
                raise AgentError(logs, self.logger)
        # Pictures stay inside: their bytes are untrusted input for a decoder in this process.
        value = done.text if done.value is None else done.value
        return CodeOutput(output=value, logs=logs, is_final_answer=False)
