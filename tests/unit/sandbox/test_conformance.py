"""The conformance suite passes on both paths, and fails where a backend is weak."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.core.command_scripts import long_script, run_from_file
from cellwall.core.errors import SandboxFailed
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Outcome, Status
from cellwall.core.types import Action, Principal, RunCode, RunCommand, WorkspaceRequest
from cellwall.runtime import wiring
from cellwall.runtime.home import local_principal
from cellwall.sandbox.conformance import (
    CheckResult,
    ConformanceCheck,
    RunAction,
    checks,
    lacks_of,
    run_conformance,
)
from cellwall.sandbox.linux import cgroups, pool
from cellwall.sandbox.linux.prepared_cell import spare_cells
from conftest import need

SOMEBODY = Principal("somebody", "test")
WALLS = {check.name for check in checks() if check.expected == {"status": "ok", "value": []}}
LIMITS = {check.name for check in checks() if check.requirement == "LIM-2"}


def judge(run: RunAction, backend: str = "native") -> dict[str, CheckResult]:
    async def work() -> list[CheckResult]:
        return await run_conformance(
            run, principal=SOMEBODY, session_id="sbx_of_the_fake", backend=backend
        )

    return {result.name: result for result in anyio.run(work)}


def failed(run: RunAction) -> set[str]:
    return {name for name, result in judge(run).items() if not result.passed}


# --- real backends


@pytest.mark.requirement("ISO-1", "ISO-2", "ISO-3", "ISO-5", "ISO-6", "ISO-7", "ISO-9")
@pytest.mark.requirement("LIM-2", "NET-1", "ERR-2", "LANG-1", "LANG-2", "ISO-11")
@pytest.mark.parametrize("path", ["cold", "warm"])
@pytest.mark.slow
def test_native_sandbox_passes_every_check(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")
    monkeypatch.setenv("CELLWALL_PATH", path)
    used: set[str] = set()

    async def work() -> list[CheckResult]:
        house = wiring.open_app()
        perform = house.runtime.perform

        async def noted(self: object, action: Action) -> Outcome:
            outcome = await perform(action)
            used.add(outcome.sandbox_path)
            return outcome

        monkeypatch.setattr(type(house.runtime), "perform", noted)
        with house.session(WorkspaceRequest(), local_principal("sdk")) as session_id:
            return await run_conformance(
                house.runtime.perform,
                principal=local_principal("sdk"),
                session_id=session_id,
                limits=house.limits,
            )

    try:
        results = anyio.run(work)
    finally:
        monkeypatch.undo()
        spare_cells.close()
        pool.close_all()
    assert [result for result in results if not result.passed] == []
    assert len(results) == len(checks())
    assert used == {path}


# --- a backend without any wall

_HOST_RUNNER = """
import ast, json, sys
tree = ast.parse(open(sys.argv[1]).read())
last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
names = {"__name__": "__main__"}
exec(compile(tree, "code", "exec"), names)
value = eval(compile(last, "code", "eval"), names) if last else None
json.dump(value, open(sys.argv[2], "w"))
"""


class Careless:
    """A subprocess with the parent's environment and descriptors; only wall time is kept to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = os.open("/", os.O_RDONLY | os.O_DIRECTORY)

    async def run(self, action: Action) -> Outcome:
        return await anyio.to_thread.run_sync(self._run, action)

    def _run(self, action: Action) -> Outcome:
        code, value = self._folder / "code.py", self._folder / "value.json"
        value.unlink(missing_ok=True)
        match action.operation:
            case RunCode(code=text):
                code.write_bytes(text)
                argv = (sys.executable, "-c", _HOST_RUNNER, str(code), str(value))
            case RunCommand(argv) if long_script(argv) is not None:
                argv, script = run_from_file(argv, str(code), is_removed=False)
                code.write_bytes(script)
            case RunCommand(argv):
                pass
            case _:
                raise AssertionError(action.operation)
        try:
            done = subprocess.run(
                argv,
                input=action.stdin or b"",
                capture_output=True,
                env={**os.environ, **action.env},
                cwd=self._folder,
                pass_fds=[self._held],
                timeout=action.limits.wall_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(status=Status.LIMIT, action_id=action.id, limit=LimitName.WALL)
        exit_code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Outcome(
            status=Status.FAILED if exit_code else Status.OK,
            action_id=action.id,
            exit_code=exit_code,
            stdout_bytes=done.stdout,
            stderr_bytes=done.stderr,
            value=json.loads(value.read_text()) if value.exists() else None,
        )


@pytest.mark.slow
def test_backend_without_walls_fails_exactly_the_checks_of_walls_limits_and_state() -> None:
    need(os.geteuid() == 0, "root: a backend that has nothing but what the user lacks is not weak")
    with tempfile.TemporaryDirectory() as folder:
        results = judge(Careless(Path(folder)).run)
    wrong = {name for name, result in results.items() if not result.passed}
    assert wrong == WALLS | (LIMITS - {"limit wall"}) | {"state is kept", "a loss is reported", "after a loss"}  # fmt: skip
    assert "CELLWALL_SELFCHECK_BAIT" not in os.environ
    assert "loopback" in results["network"].found
    assert "abstract" in results["network"].found
    assert "os.environ" in results["environment"].found
    assert results["files of the host"].found.count(".selfcheck-") >= 3


# --- the judging itself


def perfect(action: Action) -> Outcome:
    """Says whatever is expected, and has run nothing."""
    told = Outcome(status=Status.OK, action_id=action.id)
    for check in checks():
        if check.operation == action.operation:
            return replace(told, **_typed(check))
    return told


def _typed(check: ConformanceCheck) -> dict[str, Any]:
    fields = dict(check.expected)
    fields["status"] = Status(str(fields["status"]))
    return fields


def faulty(change: Callable[[Outcome], Outcome]) -> RunAction:
    async def run(action: Action) -> Outcome:
        return change(perfect(action))

    return run


def test_what_says_everything_as_expected_passes() -> None:
    assert failed(faulty(lambda told: told)) == set()


FAULTS: dict[str, tuple[Callable[[Outcome], Outcome], set[str]]] = {
    "no exit code": (
        lambda told: replace(told, exit_code=0),
        {"output and exit code", "death by a signal", "failure of the code", "a loss is reported"},
    ),
    "no limit is named": (lambda told: replace(told, limit=None), LIMITS),
    "another limit": (
        lambda told: replace(told, limit=told.limit and LimitName.WALL),
        LIMITS - {"limit wall"},
    ),
    "limits are failures": (
        lambda told: replace(told, status=Status.FAILED) if told.limit else told,
        LIMITS,
    ),
    "a byte is lost": (
        lambda told: replace(told, stdout_bytes=told.stdout_bytes.replace(b"\0", b"")),
        {"output and exit code", "standard input"},
    ),
    "state is never lost": (
        lambda told: replace(told, state=told.state and "kept"),
        {"a loss is reported"},
    ),
    "true is one": (
        lambda told: replace(told, value=0 if told.value is False else told.value),
        {"after a loss"},
    ),
    "values are lost": (
        lambda told: replace(told, value=None),
        WALLS | {"value", "state is kept", "after a loss"},
    ),
    "something is found": (lambda told: replace(told, value=told.value or ["it"]), WALLS | {"failure of the code", "after a loss"}),
    "the sandbox breaks": (
        lambda told: replace(told, error=ErrorInfo("CW-X", "it broke")),
        {check.name for check in checks()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_the_checks_it_concerns_and_no_other(fault: str) -> None:
    change, names = FAULTS[fault]
    assert failed(faulty(change)) == names


@pytest.mark.requirement("ISO-11")
def test_a_declared_lack_passes_where_it_is_and_fails_where_it_is_not() -> None:
    (lack,) = lacks_of("gvisor")

    def lacking(told: Outcome) -> Outcome:
        if told.limit != LimitName.OPEN_FILES:
            return told
        return replace(told, limit=None, status=Status.FAILED, exit_code=1)

    as_declared = judge(faulty(lacking), "gvisor")
    assert [name for name, result in as_declared.items() if not result.passed] == []
    assert [name for name, result in as_declared.items() if result.lack] == [lack.check]
    assert failed(faulty(lacking)) == {lack.check}  # nobody else has declared it
    assert not judge(faulty(lambda told: told), "gvisor")[lack.check].passed
    guide = Path(__file__).parents[3] / "docs/guides/backends.md"
    words = " ".join(guide.read_text().split())
    assert lack.words in words
    assert lack.reason in words


def test_error_that_is_raised_is_a_failed_check_with_its_words() -> None:
    async def broken(action: Action) -> Outcome:
        raise SandboxFailed("no wall stands", code="CW-X")

    results = judge(broken)
    assert {result.passed for result in results.values()} == {False}
    assert {result.found for result in results.values()} == {"no wall stands [CW-X]"}


def test_check_whose_preparation_fails_does_not_pass() -> None:
    async def run(action: Action) -> Outcome:
        if any(check.before == action.operation for check in checks()):
            return Outcome(status=Status.FAILED, action_id=action.id, exit_code=1)
        return perfect(action)

    assert failed(run) == {check.name for check in checks() if check.before is not None}


def test_names_are_unique() -> None:
    assert len({check.name for check in checks()}) == len(checks())
