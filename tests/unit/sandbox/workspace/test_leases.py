"""When a workspace on a disk has no room left, and whom to believe when not all can be seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellwall.core.limits import MIB, Limits
from cellwall.core.outcomes import Finding
from cellwall.core.protected_names import Protection, load
from cellwall.core.sandbox_ports import UnlinkedFiles
from cellwall.core.types import Action, Principal, RunCommand, WorkspaceMode, WorkspaceMount
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection import post_run_check
from cellwall.sandbox.protection.found_names import KnownLinks
from cellwall.sandbox.protection.post_run_check import Baseline
from cellwall.sandbox.snapshots.layer_files import TreeSize
from cellwall.sandbox.workspace.leases import (
    LayeredLease,
    PlainLease,
    ReadWriteLease,
    WorkspaceSettings,
)

LIMITS = Limits(disk_bytes=16 * MIB, file_count=100)
PARTIAL = UnlinkedFiles(is_partial=True)


class DiskLease(PlainLease):
    """On a disk of which the test says how much is free."""

    free_bytes = 1000 * MIB

    def _read_free_bytes(self) -> int:
        return self.free_bytes


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[DiskLease]:
    settings = WorkspaceSettings(
        blocked_extensions=(), max_walk_entries=1000, protection=Protection(())
    )
    with FileTree.open(str(tmp_path)) as tree:
        mount = WorkspaceMount(mode=WorkspaceMode.READ_WRITE, dir_fd=tree.fd)
        yield DiskLease(mount, tree=tree, settings=settings)


def read_write_lease(tree: FileTree, baseline: Baseline, quarantine: Path) -> ReadWriteLease:
    action = Action(
        principal=Principal("me", "sdk"), operation=RunCommand(("true",)), limits=LIMITS
    )
    settings = WorkspaceSettings(blocked_extensions=(), max_walk_entries=1000, protection=load())
    return ReadWriteLease(
        WorkspaceMount(mode=WorkspaceMode.READ_WRITE, dir_fd=tree.fd),
        workspace_id="sbx_a",
        tree=tree,
        settings=settings,
        protection=load(),
        baseline=baseline,
        action=action,
        quarantine_dir=str(quarantine),
    )


@pytest.mark.requirement("LIM-6")
def test_files_without_a_name_count_like_others(lease: DiskLease, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(8 * MIB))
    assert lease.has_room(LIMITS, UnlinkedFiles(7 * MIB, 1))
    assert not lease.has_room(LIMITS, UnlinkedFiles(9 * MIB, 1))
    assert lease.has_room(LIMITS, UnlinkedFiles(0, 99))
    assert not lease.has_room(LIMITS, UnlinkedFiles(0, 100))


@pytest.mark.requirement("LIM-6")
def test_where_all_is_seen_the_disk_may_shrink_for_others(lease: DiskLease) -> None:
    for _ in range(3):
        lease.free_bytes -= 100 * MIB
        assert lease.has_room(LIMITS)


@pytest.mark.requirement("LIM-6")
def test_where_not_all_is_seen_the_disk_is_believed_the_second_time(lease: DiskLease) -> None:
    assert lease.has_room(LIMITS)
    lease.free_bytes -= 20 * MIB
    assert [lease.has_room(LIMITS, PARTIAL) for _ in range(2)] == [True, False]


@pytest.mark.requirement("LIM-6")
def test_what_is_seen_is_not_taken_for_hidden(lease: DiskLease, tmp_path: Path) -> None:
    assert lease.has_room(LIMITS)
    (tmp_path / "a").write_bytes(bytes(15 * MIB))
    lease.free_bytes -= 15 * MIB
    assert all(lease.has_room(LIMITS, PARTIAL) for _ in range(3))


@pytest.mark.requirement("LIM-6")
def test_the_disk_is_compared_with_the_last_time_that_all_was_seen(lease: DiskLease) -> None:
    lease.free_bytes -= 500 * MIB  # somebody else's, before
    assert lease.has_room(LIMITS)
    assert all(lease.has_room(LIMITS, PARTIAL) for _ in range(3))
    lease.free_bytes -= 20 * MIB
    assert lease.has_room(LIMITS, PARTIAL)
    assert lease.has_room(LIMITS)  # it was seen, and is not there
    assert lease.has_room(LIMITS, PARTIAL)


@pytest.mark.requirement("LIM-6")
def test_a_disk_that_shrinks_is_looked_at_again(lease: DiskLease) -> None:
    assert lease.has_room(LIMITS)
    lease.free_bytes -= 4 * MIB
    assert not lease.is_filling(LIMITS)
    lease.free_bytes -= 1
    assert lease.is_filling(LIMITS)
    assert lease.has_room(LIMITS)
    assert not lease.is_filling(LIMITS)


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize(("name", "stays"), [("sub/.vscode", False), ("sub/plain", True)])
def test_a_directory_that_was_moved_out_counts_for_as_long_as_code_may_write_to_it(
    tmp_path: Path, *, name: str, stays: bool
) -> None:
    project, quarantine = tmp_path / "project", tmp_path / "quarantine"
    folder = project / name
    folder.mkdir(parents=True)
    (folder / "a").touch()
    baseline = Baseline(before=(), started_ns=time.time_ns() - 10**12)
    with FileTree.open(str(project)) as tree:
        lease = read_write_lease(tree, baseline, quarantine)
        assert lease.has_room(LIMITS)
        held = os.open(folder, os.O_RDONLY)  # as a process of a live sandbox may have it
        lease.settle_now()
        assert folder.exists() is stays
        (Path(f"/proc/self/fd/{held}") / "large").write_bytes(bytes(8 * MIB))
        (project / "other").write_bytes(bytes(7 * MIB))
        assert lease.has_room(LIMITS)
        (Path(f"/proc/self/fd/{held}") / "larger").write_bytes(bytes(2 * MIB))
        assert not lease.has_room(LIMITS)
        os.close(held)


@pytest.mark.requirement("FS-4")
def test_an_empty_directory_is_checked_again_as_soon_as_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, quarantine, checks = tmp_path / "project", tmp_path / "quarantine", list[str]()
    project.mkdir()
    check = post_run_check.check_directory

    def noted(*args: Any, **options: Any) -> tuple[Finding, ...]:
        checks.append("checked")
        return check(*args, **options)

    monkeypatch.setattr(post_run_check, "check_directory", noted)
    baseline = Baseline(before=(), started_ns=time.time_ns() - 10**12)
    with FileTree.open(str(project)) as tree:
        lease = read_write_lease(tree, baseline, quarantine)
        assert (lease.settle_now(), lease.is_checked, checks) == ((), True, [])
        (project / ".vscode").mkdir()
        (project / ".vscode" / "tasks.json").touch()
        assert (len(lease.settle_now()), checks) == (1, ["checked"])
        assert not (project / ".vscode").exists()
        assert (lease.settle_now(), len(checks)) == ((), 1)  # empty again
        # Names that were there before could be missing.
        known = KnownLinks(hard={"a": (1, 2, 3)})
        for before in ({"covered": {".git": "1:1"}}, {"links": known}, {"index": b"DIRC"}):
            read_write_lease(tree, replace(baseline, **before), quarantine).settle_now()
        assert len(checks) == 4


@pytest.mark.requirement("LIM-6")
def test_the_event_loop_looks_at_few_files_and_leaves_many_to_a_thread(
    lease: DiskLease, tmp_path: Path
) -> None:
    limits = Limits(disk_bytes=16 * MIB, file_count=10_000)
    (tmp_path / "a").write_bytes(bytes(8 * MIB))
    assert lease.has_room_if_small(limits, UnlinkedFiles(7 * MIB, 1)) is True
    assert lease.has_room_if_small(limits, UnlinkedFiles(9 * MIB, 1)) is False
    for number in range(300):
        (tmp_path / str(number)).touch()
    assert lease.has_room_if_small(limits, UnlinkedFiles()) is None
    assert lease.has_room(limits)


@pytest.mark.requirement("FS-9", "LIM-6")
def test_the_layers_of_a_snapshot_count_against_the_limits(tmp_path: Path) -> None:
    settings = WorkspaceSettings(
        blocked_extensions=(), max_walk_entries=1000, protection=Protection(())
    )
    with FileTree.open(str(tmp_path)) as tree:
        mount = WorkspaceMount(mode=WorkspaceMode.PRIVATE, dir_fd=tree.fd)

        def lease_on(base: TreeSize) -> LayeredLease:
            return LayeredLease(
                mount, workspace_id="sbx_a", tree=tree, settings=settings, base=base
            )

        (tmp_path / "a").write_bytes(bytes(8 * MIB))
        assert lease_on(TreeSize(7 * MIB, 1)).has_room(LIMITS)
        assert not lease_on(TreeSize(9 * MIB, 1)).has_room(LIMITS)
        assert not lease_on(TreeSize(0, 100)).has_room(LIMITS)


@pytest.mark.requirement("LIM-6")
def test_a_quarantine_that_cannot_be_reached_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    project, plain_file = tmp_path / "project", tmp_path / "file"
    project.mkdir()
    plain_file.touch()
    baseline = Baseline(before=(), started_ns=time.time_ns())
    with FileTree.open(str(project)) as tree:
        missing = read_write_lease(tree, baseline, tmp_path / "missing")
        assert missing.has_room(LIMITS)  # positive control: there is none
        assert missing.has_room_if_small(LIMITS, UnlinkedFiles()) is True
        for unreachable in (plain_file / "quarantine", plain_file):
            lease = read_write_lease(tree, baseline, unreachable)
            assert not lease.has_room(LIMITS)
            assert lease.has_room_if_small(LIMITS, UnlinkedFiles()) is None
