"""Placeholders stand only as long as somebody works in the directory, whatever crashes (FS-4).

The reaper is the real one: a process of its own, which removes them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import NameTreatment, Placeholder
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection import placeholders
from cellwall.sandbox.protection.host_directory import ExtraCovers
from cellwall.sandbox.protection.placeholders import LeftoverPlaceholders, Placeholders, shared_lock

KINDS: dict[str, Literal["file", "dir"]] = {
    ".git/config": "file",
    ".git/hooks": "dir",
    ".claude": "dir",
    ".bashrc": "file",
}
WANTED = tuple(Placeholder(path, kind, NameTreatment.READ_ONLY) for path, kind in KINDS.items())


@pytest.fixture
def notes(tmp_path: Path) -> Placeholders:
    return Placeholders(str(tmp_path / "notes"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def journals(tmp_path: Path) -> list[str]:
    return [name for name in os.listdir(tmp_path / "notes") if name != ".lock"]


@contextmanager
def working(notes: Placeholders, project: Path) -> Iterator[ExtraCovers]:
    """A run in the directory, from its start to its end."""
    with (
        FileTree.open(str(project)) as tree,
        shared_lock(tree.fd) as lock,
        notes.remove_at_end(tree, lock),
    ):
        yield notes.create(tree, WANTED)


@contextmanager
def forgotten(notes: Placeholders, project: Path) -> Iterator[None]:
    """A run whose process and holder were killed at once: only the journal is left."""
    with FileTree.open(str(project)) as tree, shared_lock(tree.fd):
        notes.create(tree, WANTED)
        yield


def test_missing_names_are_held_at_their_first_missing_part_and_taken_away(
    notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    with working(notes, project) as standing:
        assert standing == ExtraCovers(read_only=(".bashrc", ".claude", ".git"))
        assert sorted(os.listdir(project)) == [".bashrc", ".claude", ".git"]
        assert all((project / name).is_dir() for name in os.listdir(project))
    assert (os.listdir(project), journals(tmp_path)) == ([], [])


def test_what_exists_is_left_alone(notes: Placeholders, project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git/HEAD").touch()
    (project / ".bashrc").write_text("mine")
    (project / ".claude").symlink_to("nowhere")
    with working(notes, project) as standing:
        assert standing == ExtraCovers(read_only=(".git/config", ".git/hooks"))
        assert (project / ".git/config").read_bytes() == b""  # git refuses a directory there
    assert sorted(os.listdir(project)) == [".bashrc", ".claude", ".git"]
    assert os.listdir(project / ".git") == ["HEAD"]


def test_a_thing_of_another_kind_in_the_place_of_a_name_cannot_be_replaced(
    notes: Placeholders, project: Path
) -> None:
    # Code would remove `.claude`, or move `.bashrc` away, and make what the host obeys.
    (project / ".claude").write_text("a file")
    (project / ".bashrc").mkdir()
    (project / ".bashrc/mine").touch()
    (project / ".git").write_text("gitdir: elsewhere")
    with working(notes, project) as standing:
        assert standing == ExtraCovers(pinned=(".bashrc", ".claude", ".git"))


def test_an_empty_directory_is_covered_as_the_placeholder_it_may_be(
    notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    other = Placeholders(str(tmp_path / "other"))  # another user's, or another CELLWALL_HOME
    with working(other, project) as standing:
        with working(notes, project) as second:
            assert second == standing
            assert journals(tmp_path) == []
        assert len(os.listdir(project)) == 3
    assert os.listdir(project) == []


def test_only_the_last_run_takes_them_away(
    notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    with working(notes, project):
        with working(notes, project) as second:
            assert second.read_only == (".bashrc", ".claude", ".git")
        assert len(os.listdir(project)) == 3
        notes.sweep()  # nor does a start in between
        assert len(os.listdir(project)) == 3
    assert (os.listdir(project), journals(tmp_path)) == ([], [])


@pytest.mark.requirement("ISO-8")
def test_a_crash_is_tidied_up_at_the_next_start(
    notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    names = (".bashrc", ".claude", ".git")
    with forgotten(notes, project):
        assert notes.leftovers() == (LeftoverPlaceholders(str(project), names, is_in_use=True),)
    assert notes.leftovers() == (LeftoverPlaceholders(str(project), names, is_in_use=False),)
    assert len(os.listdir(project)) == 3
    Placeholders(str(tmp_path / "notes")).sweep()
    assert (os.listdir(project), journals(tmp_path)) == ([], [])


def test_a_placeholder_somebody_put_something_into_is_not_removed(
    notes: Placeholders, project: Path
) -> None:
    (project / ".git").mkdir()
    (project / ".git/HEAD").touch()
    with working(notes, project):
        (project / ".claude" / "mine").touch()
        (project / ".git/config").write_text("[user]")
    assert sorted(os.listdir(project)) == [".claude", ".git"]
    assert sorted(os.listdir(project / ".git")) == ["HEAD", "config"]


def test_a_name_that_is_another_inode_by_now_is_not_removed(
    notes: Placeholders, project: Path
) -> None:
    with working(notes, project):
        (project / "new").mkdir()
        (project / "new").rename(project / ".claude")  # an empty directory is replaced
    assert os.listdir(project) == [".claude"]


def test_a_placeholder_in_which_another_run_works_is_not_removed(
    notes: Placeholders, project: Path
) -> None:
    with working(notes, project):
        inner = FileTree.open(str(project / ".claude"))
        inner_lock = shared_lock(inner.fd)
        inner_lock.__enter__()
    assert os.listdir(project) == [".claude"]
    inner_lock.__exit__(None, None, None)
    inner.close()
    notes.sweep()
    assert os.listdir(project) == []


def test_a_directory_that_code_has_closed_is_tidied_up_and_stays_closed(
    notes: Placeholders, project: Path
) -> None:
    with working(notes, project):
        project.chmod(0o500)
    assert (os.listdir(project), project.stat().st_mode & 0o777) == ([], 0o500)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x",
        b"\0",
        b"/etc",
        b"/etc\0005\0dir\0ssl\0",
        b"/etc\0x\0dir\0",
        b"\0" * 100,
        b"a" * 2**20,
    ],
)
def test_a_broken_or_lying_journal_does_no_harm(
    text: bytes, notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes" / "1-2.journal").write_bytes(text)
    (project / "keep").mkdir()
    notes.sweep()
    assert notes.leftovers() == ()
    assert os.path.isdir("/etc/ssl") or not os.path.exists("/etc/ssl")
    assert os.listdir(project) == ["keep"]


@pytest.mark.parametrize("path", ["../outside", "/{outside}", "link/outside", "..", "", "."])
def test_a_journal_that_names_a_place_outside_removes_nothing_there(
    path: str, notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "link").symlink_to(tmp_path)
    info = project.stat()
    named = path.format(outside=outside)
    text = f"{project}\0{outside.stat().st_ino}\0dir\0{named}\0"
    journal = tmp_path / "notes" / f"{info.st_dev}-{info.st_ino}.journal"
    journal.write_bytes(text.encode())
    notes.sweep()
    assert outside.is_dir()
    assert project.is_dir()


def test_a_journal_of_another_directory_under_the_same_name_removes_nothing(
    notes: Placeholders, project: Path
) -> None:
    with forgotten(notes, project):
        pass
    project.rename(project.with_name("old"))
    for name in (".git", ".claude"):
        (project / name).mkdir(parents=True)
    notes.sweep()
    assert sorted(os.listdir(project)) == [".claude", ".git"]


def test_a_directory_somebody_else_has_locked_is_told_in_bounded_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "_LOCK_TRIES", 3)
    holder = os.open(project, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        with (
            FileTree.open(str(project)) as tree,
            pytest.raises(WorkspaceError) as refused,
            shared_lock(tree.fd),
        ):
            pass
    finally:
        os.close(holder)
    assert refused.value.code == "CW-WORKSPACE-LOCKED"


@pytest.mark.requirement("ISO-8")
def test_a_journal_whose_writer_was_killed_halfway_is_swept(
    notes: Placeholders, tmp_path: Path
) -> None:
    (tmp_path / "notes" / "1-2.journal.new").write_bytes(b"/nowhere\0")
    notes.sweep()
    assert journals(tmp_path) == []


def test_a_directory_in_which_nothing_can_be_made_is_reported_with_a_hint(
    notes: Placeholders, project: Path
) -> None:
    with FileTree.open("/sys/kernel") as tree, pytest.raises(WorkspaceError) as refused:
        notes.create(tree, WANTED)
    assert refused.value.code == "CW-WORKSPACE-READ-ONLY"
    assert ":cow" in refused.value.hint
    with working(notes, project) as standing:
        assert standing.read_only
