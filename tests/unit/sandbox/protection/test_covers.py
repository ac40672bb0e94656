"""Which covers stood all the time is told by inodes, and never guessed (FS-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.core.types import Cover
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.protection import covers
from cellwall.sandbox.protection.covers import (
    cover_identities,
    intact_covers,
    is_covered,
    lost_covers,
)

COVERS: tuple[Cover, ...] = (("ro", ".git"), ("hide", ".env"), ("pin", "sub"), ("ro", "gone"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / ".env").write_text("A=1")
    return tmp_path


def test_what_is_filled_or_written_in_place_has_kept_its_cover(project: Path) -> None:
    with FileTree.open(project) as tree:
        covered = cover_identities(tree, COVERS)
        assert covered.keys() == {".git", ".env", "gone"}
        (project / ".git/config").touch()
        (project / ".env").write_text("A=2")
        assert lost_covers(tree, covered) == []
        assert intact_covers(tree, covered) == {".git", ".env", "gone"}


def test_what_was_made_anew_has_lost_it_whatever_its_inode_number(project: Path) -> None:
    with FileTree.open(project) as tree:
        covered = cover_identities(tree, COVERS)
        (project / ".git").rmdir()
        (project / ".git").mkdir()  # often with the number of the old one
        (project / "new").write_text("A=2")
        (project / "new").rename(project / ".env")
        (project / "gone").touch()
        assert lost_covers(tree, covered) == [".env", ".git", "gone"]
        assert intact_covers(tree, covered) == frozenset()


def test_where_there_are_no_handles_nothing_is_certain(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covers, "file_handle", lambda _fd: "")
    with FileTree.open(project) as tree:
        covered = cover_identities(tree, COVERS)
        assert lost_covers(tree, covered) == []
        assert intact_covers(tree, covered) <= {"gone"}
        (project / ".git").rmdir()
        assert lost_covers(tree, covered) == [".git"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [(".git", True), (".git/a/b", True), (".github", False), ("a/.git", False), ("", False)],
)
def test_what_lies_behind_a_cover(path: str, expected: bool) -> None:
    assert is_covered(path, {".git"}) is expected
