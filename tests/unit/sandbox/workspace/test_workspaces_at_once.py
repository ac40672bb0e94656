"""Two runs in one directory, or one inside the other: neither takes the other's cover away (FS-4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation
from cellwall.core.ids import new_id
from cellwall.core.protected_names import load
from cellwall.core.types import (
    Action,
    Principal,
    RunCommand,
    WorkspaceMode,
    WorkspaceMount,
    WorkspaceRequest,
)
from cellwall.sandbox.files.merged_view import MergedViews
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.protection import protected_paths
from cellwall.sandbox.workspace.leases import WorkspaceSettings
from cellwall.sandbox.workspace.store import WorkspaceStore
from cellwall.sandbox.workspace.workspaces import Workspaces


def workspaces(home: Path, views: MergedViews | None = None) -> Workspaces:
    settings = WorkspaceSettings(blocked_extensions=(), max_walk_entries=1000, protection=load())
    views = views or MergedViews(lambda _action, _mount: -1)  # most do no file operation
    return Workspaces(WorkspaceStore(str(home)), settings, views)


def wanted(directory: Path) -> Action:
    request = WorkspaceRequest(WorkspaceMode.READ_WRITE, str(directory))
    return Action(
        principal=Principal("me", "sdk"), operation=RunCommand(("true",)), workspace=request
    )


NAMES = (".vscode/tasks.json", ".git/hooks/x", ".husky/pre-commit")


def remove_placeholders(root: Path) -> None:
    """As a program on the host does that clears empty directories away: the covers go, too."""
    for name in NAMES:
        (root / name.split("/")[0]).rmdir()


def plant(root: Path) -> list[Path]:
    made = [root / name for name in NAMES]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("planted")
    return made


def overlap(
    first: Path, second: Path, homes: tuple[Path, Path], work: Callable[[], None]
) -> tuple[list[str], list[str]]:
    """The second starts while the first runs, the first ends; then `work`, then the second ends."""
    told: list[list[str]] = []

    async def run() -> None:
        async with workspaces(homes[1]).lease(wanted(second)) as lease:
            async with workspaces(homes[0]).lease(wanted(first)) as other:
                told.append([finding.message for finding in other.settle_now()])
            work()
            told.append([finding.message for finding in lease.settle_now()])

    async def start_second_later() -> None:
        async with (
            workspaces(homes[0]).lease(wanted(first)) as other,
            workspaces(homes[1]).lease(wanted(second)) as lease,
        ):
            told.append([finding.message for finding in other.settle_now()])
            work()
            told.append([finding.message for finding in lease.settle_now()])

    anyio.run(run)
    assert told[:1] == [[]]
    anyio.run(start_second_later)
    return told[2], told[3]


@pytest.mark.requirement("FS-4", "FS-8")
@pytest.mark.parametrize("second", [".", "sub"])
@pytest.mark.parametrize("is_one_home", [True, False], ids=["one-home", "two-homes"])
def test_placeholders_of_another_run_are_left_where_they_are(
    tmp_path: Path, second: str, is_one_home: bool
) -> None:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    homes = (tmp_path / "home", tmp_path / ("home" if is_one_home else "other"))
    assert overlap(root, root / second, homes, lambda: None) == ([], [])
    assert sorted(os.listdir(root)) == ["sub"]
    assert os.listdir(root / "sub") == []


@pytest.mark.requirement("FS-4", "FS-8")
@pytest.mark.parametrize("second", [".", "sub"])
def test_what_is_made_anew_where_a_placeholder_was_removed_is_moved_out(
    tmp_path: Path, second: str
) -> None:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    homes = (tmp_path / "home", tmp_path / "home")
    planted: list[Path] = []

    def work() -> None:
        remove_placeholders(root / second)
        planted.extend(plant(root / second))

    overlap(root, root / second, homes, work)
    assert planted
    assert [path for path in planted if path.exists()] == []


@pytest.mark.requirement("FS-4", "FS-8")
def test_control_what_the_host_puts_behind_a_standing_cover_stays(tmp_path: Path) -> None:
    # `git init` on the host while a sandbox lives there: no code can write behind the mount.
    root = tmp_path / "project"
    root.mkdir()
    kept: list[Path] = []
    homes = (tmp_path / "home", tmp_path / "home")
    assert overlap(root, root, homes, lambda: kept.extend(plant(root)))[1] == []
    assert kept
    assert all(path.read_text() == "planted" for path in kept)


@pytest.mark.requirement("FS-4")
def test_control_a_directory_of_the_users_stays_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "project"
    kept = plant(root)
    overlap(root, root, (tmp_path / "home", tmp_path / "home"), lambda: None)
    assert all(path.read_text() == "planted" for path in kept)


def session_in(
    home: Path, directory: Path, mode: WorkspaceMode = WorkspaceMode.READ_WRITE
) -> Action:
    request = WorkspaceRequest(mode, str(directory))
    status = directory.stat()
    identity = status.st_dev, status.st_ino
    session = WorkspaceStore(str(home)).make(new_id("sbx"), request, identity=identity)
    return replace(wanted(directory), session_id=session.id)


def take_lease(made: Workspaces, action: Action) -> None:
    async def take() -> None:
        async with made.lease(action) as lease:
            lease.settle_now()

    anyio.run(take)


@pytest.fixture
def slow_and_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Workspaces, Action, Action, threading.Event]]:
    """Two sessions of one process; the first one's directory is being looked through until the
    event is set."""
    home, slow, quick = tmp_path / "home", tmp_path / "slow", tmp_path / "quick"
    slow.mkdir()
    quick.mkdir()
    made, is_looking, may_end = workspaces(home), threading.Event(), threading.Event()
    actions = [session_in(home, directory) for directory in (slow, quick)]
    scan = protected_paths.scan_and_count

    def scan_slowly(root: Root, *arguments: Any, **options: Any) -> Any:
        if os.path.samestat(os.fstat(root.fd), slow.stat()):
            is_looking.set()
            may_end.wait()
        return scan(root, *arguments, **options)

    monkeypatch.setattr(protected_paths, "scan_and_count", scan_slowly)
    thread = threading.Thread(target=made._lease_for_session, args=(actions[0],))
    thread.start()
    is_looking.wait()
    try:
        yield made, *actions, may_end
    finally:
        may_end.set()
        thread.join()
        for action in actions:
            made.end_session(action.session_id or "")


@pytest.mark.requirement("FS-4")
def test_a_directory_that_is_slow_to_look_through_keeps_no_other_session_waiting(
    slow_and_quick: tuple[Workspaces, Action, Action, threading.Event],
) -> None:
    made, _slow, quick, _may_end = slow_and_quick
    beside = threading.Thread(target=take_lease, args=(made, quick), daemon=True)
    beside.start()
    beside.join(20)
    assert not beside.is_alive()


def test_a_call_that_waited_for_a_session_that_has_ended_opens_nothing_anew(
    slow_and_quick: tuple[Workspaces, Action, Action, threading.Event],
) -> None:
    made, slow, _quick, may_end = slow_and_quick
    own = made._sessions[slow.session_id or ""]
    ending = threading.Thread(target=made.end_session, args=(slow.session_id,))
    ending.start()
    while slow.session_id in made._sessions:
        assert ending.is_alive()
    may_end.set()
    ending.join()
    assert (own.is_ended, own.held) == (True, None)
    made._sessions[slow.session_id or ""] = own  # as seen by a call that came before the end
    with pytest.raises(BadInput) as refused:
        take_lease(made, slow)
    assert refused.value.code == "CW-SANDBOX-ENDED"


def test_no_view_stays_of_a_session_that_ends_as_a_file_operation_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, project, opened = tmp_path / "home", tmp_path / "project", list[int]()
    project.mkdir()
    (project / "a").write_text("here")

    def open_view(_action: Action, _mount: WorkspaceMount) -> int:
        opened.append(os.open(project, os.O_PATH | os.O_DIRECTORY))  # in place of an overlay
        return opened[-1]

    views = MergedViews(open_view)
    made = workspaces(home, views)
    action = session_in(home, project, WorkspaceMode.COPY_ON_WRITE)
    action = replace(action, operation=FileOperation("read", "a"))
    ending = threading.Thread(target=made.end_session, args=(action.session_id,))
    use = views.use

    def use_as_it_ends(*arguments: Any) -> AbstractContextManager[int]:
        ending.start()
        while action.session_id in made._sessions:
            assert ending.is_alive()
        return use(*arguments)

    monkeypatch.setattr(views, "use", use_as_it_ends)
    assert made.operate(action) == b"here"
    ending.join()
    assert views._views == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
