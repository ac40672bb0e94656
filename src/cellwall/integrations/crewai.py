"""A tool that runs code for CrewAI: the extra `cellwall[crewai]`.

with CellwallCodeTool() as tool:
    coder = Agent(role="…", goal="…", backstory="…", tools=[tool])
"""

from __future__ import annotations

import threading
from typing import Any, Self

from crewai.tools import BaseTool
from pydantic import BaseModel, Field, PrivateAttr

from cellwall import CellwallError, Sandbox

# Agents in several threads may share a tool. Not a field of the tool: CrewAI copies tools.
_STARTING = threading.Lock()


class CodeArguments(BaseModel):
    """What a model passes to the tool."""

    code: str = Field(description="Python 3 code. Variables and files stay for the next call.")
    libraries_used: list[str] = Field(
        default_factory=list, description="Packages of PyPI to install first, such as numpy<3."
    )


class CellwallCodeTool(BaseTool):
    """Runs code in one live sandbox. `sandbox` holds the options of `Sandbox.create`.

    Packages are installed by Cellwall, whose registry proxy judges each of them, while the sandbox
    has no network.
    """

    name: str = "run_python"
    description: str = "Runs Python code in an isolated sandbox; returns its output and last value."
    args_schema: type[BaseModel] = CodeArguments
    sandbox: dict[str, Any] = Field(default_factory=dict)
    _live: Sandbox | None = PrivateAttr(default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox."""
        if self._live is not None:
            self._live.kill()
            self._live = None

    def _run(self, code: str, libraries_used: list[str] | None = None) -> str:
        """The output as text; a refusal or a limit is text as well, with its reason."""
        with _STARTING:
            live = self._live = self._live or Sandbox.create(**self.sandbox)
        if libraries_used:
            try:
                failure = live.packages.install(*libraries_used).failure
            except CellwallError as error:  # not the name of a package
                failure = str(error)
            if failure:
                return failure
        ran = live.run_code(code)
        return "\n".join(part for part in (ran.transcript, ran.text) if part)
