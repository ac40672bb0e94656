"""Two runs in one directory, or one inside the other: neither takes the other's cover away (FS-4)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from cellwall.core.types import (
    Action,
    Principal,
    RunCommand,
    WorkspaceMode,
    WorkspaceRequest,
)
from cellwall.sandbox import protected
from cellwall.sandbox.leases import WorkspaceSettings
from cellwall.sandbox.views import MergedViews
from cellwall.sandbox.workspace import Workspaces
from cellwall.sandbox.workspace_store import WorkspaceStore


def workspaces(home: Path) -> Workspaces:
    settings = WorkspaceSettings(
        blocked_extensions=(), max_walk_entries=1000, protection=protected.load()
    )
    views = MergedViews(lambda _action, _mount: -1)  # no file operation is done here
    return Workspaces(WorkspaceStore(str(home)), settings, views)


def wanted(directory: Path) -> Action:
    request = WorkspaceRequest(WorkspaceMode.READ_WRITE, str(directory))
    return Action(principal=Principal("me", "sdk"), want=RunCommand(("true",)), workspace=request)


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
