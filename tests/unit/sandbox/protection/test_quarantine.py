"""What lies in quarantine is listed, put back and removed, and nothing else is touched (FS-4)."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection import quarantine
from cellwall.sandbox.protection.placeholders import shared_lock
from cellwall.sandbox.protection.post_run_check import UNBOUNDED, Baseline, check_directory
from cellwall.sandbox.protection.quarantine import RECORDS, QuarantineEntry


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home/workspaces/run_1").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def check(project: Path, folder: Path) -> None:
    """The check after a run in which everything there was made."""
    with FileTree.open(project) as tree:
        check_directory(
            tree,
            Baseline(before=(), started_ns=time.time_ns() - 10**12),
            protection=load(),
            limits=UNBOUNDED,
            quarantine_dir=folder,
        )


@pytest.fixture
def two(home: Path, project: Path) -> tuple[QuarantineEntry, QuarantineEntry]:
    """A file of a run's own check, and a directory of a late one."""
    (project / ".git/hooks").mkdir(parents=True)
    (project / ".git/hooks/pre-commit").write_text("evil")
    check(project, home / "workspaces/run_1/quarantine")
    (project / "sub").mkdir()
    (project / "sub/CLAUDE.md").write_text("obey")
    check(project, home / "quarantine/run_2")
    first, second = quarantine.entries(str(home))
    return first, second


def test_each_tells_where_it_was_why_it_was_moved_and_where_it_lies(
    two: tuple[QuarantineEntry, QuarantineEntry], project: Path, home: Path
) -> None:
    first, second = two
    assert (first.path, first.kind, first.run_id) == (".git/hooks", "dir", "run_1")
    assert (second.path, second.kind, second.run_id) == ("sub/CLAUDE.md", "file", "run_2")
    assert {first.directory, second.directory} == {str(project)}
    assert {first.reason, second.reason} == {"is a protected name"}
    assert Path(second.place).read_text() == "obey"
    assert second.place.startswith(f"{home}/quarantine/run_2/{second.id}-")
    assert quarantine.find(str(home), second.id) == second


def test_one_is_put_back_and_the_other_removed_and_nothing_of_either_is_left(
    two: tuple[QuarantineEntry, QuarantineEntry], project: Path, home: Path
) -> None:
    first, second = two
    quarantine.restore(first)
    quarantine.delete(second)
    assert (project / ".git/hooks/pre-commit").read_text() == "evil"
    assert not (project / "sub/CLAUDE.md").exists()
    assert quarantine.entries(str(home)) == ()
    assert os.listdir(home / "workspaces/run_1/quarantine") == []  # goes with its session
    assert os.listdir(home / "quarantine") == []
    with pytest.raises(WorkspaceError) as gone:
        quarantine.find(str(home), first.id)
    assert gone.value.code == "CW-QUARANTINE-NONE"


def test_missing_directories_on_the_way_back_are_made(
    two: tuple[QuarantineEntry, QuarantineEntry], project: Path
) -> None:
    (project / "sub").rmdir()
    quarantine.restore(two[1])
    assert (project / "sub/CLAUDE.md").read_text() == "obey"


def test_what_is_there_now_is_not_replaced(
    two: tuple[QuarantineEntry, QuarantineEntry], project: Path
) -> None:
    (project / "sub/CLAUDE.md").write_text("mine")
    with pytest.raises(WorkspaceError) as refused:
        quarantine.restore(two[1])
    assert (refused.value.code, two[1].place in refused.value.hint) == ("CW-ALREADY-EXISTS", True)
    assert (project / "sub/CLAUDE.md").read_text() == "mine"
    assert Path(two[1].place).read_text() == "obey"


def test_nothing_is_put_back_through_a_link(
    two: tuple[QuarantineEntry, QuarantineEntry], project: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (project / "sub").rmdir()
    (project / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(WorkspaceError):
        quarantine.restore(two[1])
    assert os.listdir(tmp_path / "outside") == []


def test_another_directory_under_the_same_name_gets_nothing(
    two: tuple[QuarantineEntry, QuarantineEntry], project: Path
) -> None:
    project.rename(project.with_name("old"))
    project.mkdir()
    with pytest.raises(WorkspaceError) as refused:
        quarantine.restore(two[1])
    assert refused.value.code == "CW-QUARANTINE-ORIGIN"
    assert os.listdir(project) == []


@pytest.mark.parametrize("place", ["..", ".", "sub"])
def test_while_a_sandbox_works_there_or_around_it_nothing_is_put_back(
    place: str, two: tuple[QuarantineEntry, QuarantineEntry], project: Path
) -> None:
    (project / "other").mkdir()
    with FileTree.open(project / "other") as tree, shared_lock(tree.fd):
        quarantine.restore(two[0])
    with (
        FileTree.open(project / place) as tree,
        shared_lock(tree.fd),
        pytest.raises(WorkspaceError) as refused,
    ):
        quarantine.restore(two[1])
    assert refused.value.code == "CW-WORKSPACE-BUSY"
    quarantine.restore(two[1])


def test_what_appears_in_its_place_at_the_last_moment_is_not_replaced(
    two: tuple[QuarantineEntry, QuarantineEntry], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "lstat", lambda *_: None)  # looked before it appeared
    (project / "sub/CLAUDE.md").write_text("mine")
    monkeypatch.setattr(quarantine, "make_one_dir", lambda *_: None)
    with pytest.raises(WorkspaceError) as refused:
        quarantine.restore(two[1])
    assert refused.value.code == "CW-ALREADY-EXISTS"
    assert (project / "sub/CLAUDE.md").read_text() == "mine"
    (project / "sub/CLAUDE.md").unlink()
    quarantine.restore(two[1])
    assert (project / "sub/CLAUDE.md").read_text() == "obey"


def test_a_record_that_was_cut_by_a_full_disk_takes_no_other_with_it(
    home: Path, project: Path
) -> None:
    folder = home / "quarantine/run_2"
    (project / ".envrc").write_text("first")
    check(project, folder)
    records = folder / RECORDS
    records.write_bytes(records.read_bytes()[:-20])
    (project / "CLAUDE.md").write_text("second")
    check(project, folder)
    assert sorted(entry.path for entry in quarantine.entries(str(home))) == ["", "CLAUDE.md"]


def test_a_tree_from_another_file_system_comes_back_as_it_was(home: Path, project: Path) -> None:
    if os.stat("/dev/shm").st_dev == project.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    hooks = project / ".git/hooks"
    hooks.mkdir(parents=True, mode=0o750)
    (hooks / "pre-commit").write_text("mine")
    (hooks / "link").symlink_to("pre-commit")
    (hooks / "pre-commit").chmod(0o755)
    if os.geteuid() == 0:
        for path in (hooks, hooks / "pre-commit", hooks / "link"):
            os.chown(path, 12345, 12345, follow_symlinks=False)
    before = {path: _status(path) for path in (hooks, hooks / "pre-commit")}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        check(project, Path(elsewhere) / "quarantine/run_3")
        assert not hooks.exists()
        (entry,) = quarantine.entries(elsewhere)
        quarantine.restore(entry)
    assert {path: _status(path) for path in before} == before
    assert os.readlink(hooks / "link") == "pre-commit"
    assert (hooks / "link").lstat().st_uid == hooks.stat().st_uid


def _status(path: Path) -> tuple[int, int, int, int]:
    status = path.stat()
    return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns


@pytest.mark.parametrize("text", [b"", b"{", b"[]\n5\n", b'{"kept_as": []}', b"\xff" * 100])
def test_records_that_cannot_be_read_hide_nothing(
    text: bytes, two: tuple[QuarantineEntry, QuarantineEntry], home: Path
) -> None:
    (home / "quarantine/run_2" / RECORDS).write_bytes(text)
    found = quarantine.find(str(home), two[1].id)
    assert (found.place, found.path) == (two[1].place, "")
    with pytest.raises(WorkspaceError) as refused:
        quarantine.restore(found)
    assert refused.value.code == "CW-QUARANTINE-ORIGIN"
    quarantine.delete(found)
    assert quarantine.entries(str(home)) == quarantine.entries(str(home))[:1]
