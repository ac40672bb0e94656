"""Placeholders stand only as long as somebody works in the directory, whatever crashes (FS-4)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.sandbox import placeholders
from cellwall.sandbox.beneath import Beneath
from cellwall.sandbox.placeholders import Placeholders, shared_lock
from cellwall.sandbox.protected import Placeholder, Treatment

WANTED = tuple(
    Placeholder(path, "dir", Treatment.READ_ONLY) for path in (".git/hooks", ".claude", ".bashrc")
)


@pytest.fixture
def notes(tmp_path: Path) -> Placeholders:
    return Placeholders(str(tmp_path / "notes"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def standing(tmp_path: Path) -> list[str]:
    return [name for name in os.listdir(tmp_path / "notes") if name != ".lock"]


def test_missing_names_are_held_at_their_first_missing_part_and_taken_away(
    notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    with Beneath.open(str(project)) as beneath, shared_lock(beneath.fd) as lock:
        assert notes.put(beneath, WANTED) == (".bashrc", ".claude", ".git")
        assert sorted(os.listdir(project)) == [".bashrc", ".claude", ".git"]
        assert all((project / name).is_dir() for name in os.listdir(project))
        notes.remove(beneath, lock)
    assert (os.listdir(project), standing(tmp_path)) == ([], [])


def test_what_exists_is_left_alone(notes: Placeholders, project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".bashrc").write_text("mine")
    (project / ".claude").symlink_to("nowhere")
    with Beneath.open(str(project)) as beneath, shared_lock(beneath.fd) as lock:
        assert notes.put(beneath, WANTED) == (".git/hooks",)
        notes.remove(beneath, lock)
    assert sorted(os.listdir(project)) == [".bashrc", ".claude", ".git"]
    assert os.listdir(project / ".git") == []


def test_only_the_last_run_takes_them_away(
    notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    with Beneath.open(str(project)) as first, shared_lock(first.fd) as first_lock:
        notes.put(first, WANTED)
        with Beneath.open(str(project)) as second, shared_lock(second.fd) as second_lock:
            assert {".bashrc", ".claude", ".git"} <= set(notes.put(second, WANTED))
            notes.remove(second, second_lock)
        assert len(os.listdir(project)) == 3
        notes.sweep()  # nor does a start in between
        assert len(os.listdir(project)) == 3
        notes.remove(first, first_lock)
    assert (os.listdir(project), standing(tmp_path)) == ([], [])


@pytest.mark.requirement("ISO-8")
def test_a_crash_is_tidied_up_at_the_next_start(
    notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    with Beneath.open(str(project)) as beneath, shared_lock(beneath.fd):
        notes.put(beneath, WANTED)
    assert len(os.listdir(project)) == 3
    Placeholders(str(tmp_path / "notes")).sweep()
    assert (os.listdir(project), standing(tmp_path)) == ([], [])


def test_a_placeholder_somebody_put_something_into_is_not_removed(
    notes: Placeholders, project: Path
) -> None:
    with Beneath.open(str(project)) as beneath, shared_lock(beneath.fd) as lock:
        notes.put(beneath, WANTED)
        (project / ".claude" / "mine").touch()
        notes.remove(beneath, lock)
    assert os.listdir(project) == [".claude"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"place": 5}', '{"place": "/etc", "names": ["ssl"]}', "\0" * 100]
)
def test_a_broken_or_lying_note_does_no_harm(
    text: str, notes: Placeholders, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes" / "1-2.json").write_text(text)
    (project / "keep").mkdir()
    notes.sweep()
    assert os.path.isdir("/etc/ssl") or not os.path.exists("/etc/ssl")
    assert os.listdir(project) == ["keep"]


def test_a_note_of_another_directory_under_the_same_name_removes_nothing(
    notes: Placeholders, project: Path
) -> None:
    with Beneath.open(str(project)) as beneath, shared_lock(beneath.fd):
        notes.put(beneath, WANTED)
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
            Beneath.open(str(project)) as beneath,
            pytest.raises(WorkspaceError) as refused,
            shared_lock(beneath.fd),
        ):
            pass
    finally:
        os.close(holder)
    assert refused.value.code == "CW-WORKSPACE-LOCKED"


@pytest.mark.requirement("ISO-8")
def test_a_note_whose_writer_was_killed_halfway_is_swept(
    notes: Placeholders, tmp_path: Path
) -> None:
    (tmp_path / "notes" / "1-2.json.new").write_text('{"place": "/nowhere", "names": []}')
    notes.sweep()
    assert standing(tmp_path) == []
