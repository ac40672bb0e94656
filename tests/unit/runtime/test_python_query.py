"""uv is asked about Python once, in a cell with nothing of the caller."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from cellwall.core.errors import SandboxFailed
from cellwall.core.ids import new_id
from cellwall.core.outcomes import RunResult
from cellwall.core.packages import parse_install
from cellwall.core.types import Action, Principal, RunCommand, WorkspaceRequest
from cellwall.runtime.python_query import PythonQuery
from cellwall.sandbox.templates import uv_program
from cellwall.sandbox.templates.uv_answers import UvAnswers

ENTRY = "interpreter-v4/f69b9b348fb23375/7cc157ed415aa3b1.msgpack"
PRINTED = json.dumps({ENTRY: base64.b64encode(b"answer").decode()}).encode()
COMMAND = Action(
    principal=Principal("me", "sdk"),
    operation=RunCommand(("uv", "pip", "install", "zebra")),
    session_id=new_id("sbx"),
    registries=("pypi",),
    env={"UV_INDEX_URL": "https://evil.example"},
    allow_domains=("evil.example",),
    secrets=("TOKEN",),
)


class Cells:
    """Runs nothing."""

    def __init__(self, result):
        self.result, self.seen = result, []

    @asynccontextmanager
    async def private(self, step, *, is_shown=True):
        assert not is_shown
        yield self

    async def run(self, step):
        self.seen.append(step)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def ask(tmp_path, cells, *actions):
    query = PythonQuery(UvAnswers(str(tmp_path)))
    for each in actions:
        anyio.run(query.prepare, each, cells)
    return UvAnswers(str(tmp_path)).entries()


@pytest.mark.requirement("PKG-3")
def test_the_cell_that_asks_has_nothing_of_the_caller_and_asks_once(tmp_path):
    cells = Cells(RunResult(0, stdout=PRINTED))
    install = replace(COMMAND, operation=parse_install("pypi", ["zebra"]), registries=())
    assert ask(tmp_path, cells, COMMAND, install) == {ENTRY: b"answer"}
    (step,) = cells.seen
    expected = replace(
        COMMAND,
        operation=step.operation,
        session_id=None,
        registries=(),
        env={},
        allow_domains=(),
        secrets=(),
        template=uv_program.TEMPLATE,
        workspace=WorkspaceRequest(),
    )
    assert step == expected
    # The next process has the answer.
    again = Cells(RunResult(0, stdout=PRINTED))
    ask(tmp_path, again, install)
    assert again.seen == []


def test_only_a_cell_with_the_registry_of_pypi_needs_the_answers(tmp_path):
    cells = Cells(RunResult(0, stdout=PRINTED))
    npm = replace(COMMAND, operation=parse_install("npm", ["zebra"]), registries=("npm",))
    assert ask(tmp_path, cells, npm, replace(COMMAND, registries=())) == {}
    assert cells.seen == []


@pytest.mark.parametrize(
    "result",
    [RunResult(1, stdout=PRINTED), RunResult(0, stdout=b"[]"), SandboxFailed("no cell")],
)
def test_a_failed_question_is_no_error_and_is_not_repeated(tmp_path, result):
    cells = Cells(result)
    assert ask(tmp_path, cells, COMMAND, COMMAND) == {}
    assert len(cells.seen) == 1
