"""Which covers stood all the time is told by inodes, and never guessed (FS-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.core.types import Cover
from cellwall.sandbox.files.file_tree import Beneath
from cellwall.sandbox.protection import covers
from cellwall.sandbox.protection.covers import identities, intact, is_behind, lost

COVERS: tuple[Cover, ...] = (("ro", ".git"), ("hide", ".env"), ("pin", "sub"), ("ro", "gone"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / ".env").write_text("A=1")
    return tmp_path


def test_what_is_filled_or_written_in_place_has_kept_its_cover(project: Path) -> None:
    with Beneath.open(project) as beneath:
        covered = identities(beneath, COVERS)
        assert covered.keys() == {".git", ".env", "gone"}
        (project / ".git/config").touch()
        (project / ".env").write_text("A=2")
        assert lost(beneath, covered) == []
        assert intact(beneath, covered) == {".git", ".env", "gone"}


def test_what_was_made_anew_has_lost_it_whatever_its_inode_number(project: Path) -> None:
    with Beneath.open(project) as beneath:
        covered = identities(beneath, COVERS)
        (project / ".git").rmdir()
        (project / ".git").mkdir()  # often with the number of the old one
        (project / "new").write_text("A=2")
        (project / "new").rename(project / ".env")
        (project / "gone").touch()
        assert lost(beneath, covered) == [".env", ".git", "gone"]
        assert intact(beneath, covered) == frozenset()


def test_where_there_are_no_handles_nothing_is_certain(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(covers, "file_handle", lambda _fd: "")
    with Beneath.open(project) as beneath:
        covered = identities(beneath, COVERS)
        assert lost(beneath, covered) == []
        assert intact(beneath, covered) <= {"gone"}
        (project / ".git").rmdir()
        assert lost(beneath, covered) == [".git"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [(".git", True), (".git/a/b", True), (".github", False), ("a/.git", False), ("", False)],
)
def test_what_lies_behind_a_cover(path: str, expected: bool) -> None:
    assert is_behind(path, {".git"}) is expected
