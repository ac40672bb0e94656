"""A sandbox that is killed while it is used: its clients get an answer, and nothing of it is left."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from e2b import SandboxException
from e2b_code_interpreter import Sandbox

from cellwall.core.errors import StorageError, WorkspaceError
from interfaces.e2b.conftest import options
from interfaces.http.running_service import RunningService
from interfaces.test_cli_process import until

pytestmark = pytest.mark.requirement("INT-2", "ISO-8")
RACES = 6


def folders(service: RunningService) -> set[str]:
    return set(os.listdir(Path(service.home, "workspaces")))


def test_of_clients_that_kill_a_sandbox_at_once_one_does_and_its_run_ends(service: RunningService):
    before = folders(service)
    sandbox = Sandbox.create(**options(service))
    printed = threading.Event()
    assert folders(service) > before  # the control
    with ThreadPoolExecutor(4) as threads:
        code = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
        run = threads.submit(sandbox.run_code, code, on_stdout=lambda _: printed.set(), timeout=60)
        assert printed.wait(60)
        kills = [threads.submit(sandbox.kill) for _ in range(3)]
        assert sorted(each.result(60) for each in kills) == [False, False, True]
        error = run.result(60).error  # its stream had begun
        assert error is not None
        assert "ended" in error.value
    until(lambda: folders(service) == before)
    assert not sandbox.is_running()


def test_kill_beside_the_first_run_leaves_nothing(service: RunningService):
    """The cell may be under way, ready, or in use: the run has its value, or an error."""
    before, values = folders(service), set[object]()

    def run(sandbox: Sandbox) -> object:
        try:
            return sandbox.run_code("6 * 7").text
        except SandboxException:
            return None

    with ThreadPoolExecutor(2) as threads:
        for number in range(RACES):
            sandbox = Sandbox.create(**options(service))
            value = threads.submit(run, sandbox)
            if number % 2:
                until(lambda sandbox=sandbox: is_live(service, sandbox))  # type: ignore[misc]  # of a default
            assert threads.submit(sandbox.kill).result(60)
            values.add(value.result(60))
            assert not is_live(service, sandbox)
    assert values <= {"42", None}
    until(lambda: folders(service) == before)


def is_live(service: RunningService, sandbox: Sandbox) -> bool:
    return service.app.runtime.sandbox.has_cell(sandbox.sandbox_id)


@pytest.mark.parametrize("is_stored", [True, False])
def test_the_end_of_a_session_is_stored_whether_or_not_its_sandbox_ends_cleanly(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
):
    """And one that the database refuses is stored later."""
    sandboxes = service.api.state.service.sandboxes
    sandbox = Sandbox.create(**options(service))
    owned = next(each for each in sandboxes.all() if each.id == sandbox.sandbox_id)
    end, calls = owned.host.end, list[str]()

    async def end_and_fail() -> None:
        await end()
        raise WorkspaceError("its folder is locked")

    async def refused(*_args: object, **_options: object) -> bool:
        calls.append("refused")
        raise StorageError("the database does not answer")

    owned.host.end = end_and_fail
    if not is_stored:
        monkeypatch.setattr(service.store, "end_session", refused)
    with pytest.raises(WorkspaceError):
        service.call(sandboxes.end(owned))
    assert bool(calls) is not is_stored
    if is_stored:
        assert is_ended(service, sandbox)
    else:
        assert not is_ended(service, sandbox)
        monkeypatch.undo()
        until(lambda: is_ended(service, sandbox))


def is_ended(service: RunningService, sandbox: Sandbox) -> bool:
    name, user_id = sandbox.sandbox_id, service.ids["user"]
    find = service.store.find_session(name, user_id=user_id, teams=frozenset())
    record = service.call(find)
    assert record is not None
    return record.ended_s is not None
