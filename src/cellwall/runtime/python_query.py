"""Asks uv about the Pythons of a cell, once for a state folder (`sandbox/templates/uv_answers.py`).

uv looks at Python in each new cell, which takes longer than its own start, and the answer is the
same in every cell. The cell that asks has no network, and no file, variable or secret of anybody.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

import anyio

from cellwall.core.errors import CellwallError
from cellwall.core.packages import InstallPackages
from cellwall.core.ports import InstallCells
from cellwall.core.types import Action, RunCommand, WorkspaceRequest
from cellwall.sandbox.languages import python_inside
from cellwall.sandbox.templates import uv_program
from cellwall.sandbox.templates.uv_answers import UvAnswers


def bare_action(action: Action, command: RunCommand) -> Action:
    """The command in a one-shot cell, with nothing of the session."""
    return replace(
        action,
        operation=command,
        session_id=None,
        env={},
        brief={},
        stdin=None,
        allow_domains=(),
        registries=(),
        secrets=(),
        tools=(),
        skills=(),
        template="python",
    )


@dataclass(slots=True)
class PythonQuery:
    """Without the answers an installation takes longer, so a failure is no error."""

    answers: UvAnswers
    _is_done: bool = field(default=False, init=False)

    async def prepare(self, action: Action, cells: InstallCells) -> None:
        """Ask before the first cell of this process that has the registry of PyPI."""
        if self._is_done or not _reaches_pypi(action):
            return
        self._is_done = True
        with suppress(CellwallError):
            if await anyio.to_thread.run_sync(self.answers.entries):
                return
            argv = (python_inside(), "-I", "-c", _source(), uv_program.INSIDE)
            asked = replace(
                bare_action(action, RunCommand((*argv, *self.answers.pythons), "/")),
                template=uv_program.TEMPLATE,
                workspace=WorkspaceRequest(),
            )
            async with cells.private(asked, is_shown=False) as fresh:
                result = await fresh.run(asked)
            if result.exit_code == 0 and result.limit is None:
                await anyio.to_thread.run_sync(self.answers.write, result.stdout)


def _reaches_pypi(action: Action) -> bool:
    operation = action.operation
    is_install = isinstance(operation, InstallPackages) and operation.ecosystem == "pypi"
    return is_install or "pypi" in action.registries


@cache
def _source() -> str:
    return (resources.files("cellwall.sandbox.inside") / "query.py").read_text("utf-8")
