"""Sessions' folders on disk: made private, removed whole, swept in time (FS-1, FS-6, ISO-8)."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.ids import new_id
from cellwall.core.types import WorkspaceMode, WorkspaceRequest
from cellwall.sandbox.workspace.store import WorkspaceStore

COW = WorkspaceRequest(WorkspaceMode.COPY_ON_WRITE, "/project")


@pytest.fixture
def store(tmp_path: Path) -> WorkspaceStore:
    return WorkspaceStore(str(tmp_path))


def folders(store: WorkspaceStore) -> list[str]:
    return sorted(os.listdir(f"{store.home}/workspaces"))


def test_a_session_is_found_as_it_was_made_and_closed_to_others(store: WorkspaceStore) -> None:
    made = store.make(new_id("sbx"), COW)
    assert store.session(made.id) == made
    assert os.stat(made.folder).st_mode & 0o777 == 0o700
    assert sorted(os.listdir(made.layers_path)) == ["upper", "work"]


@pytest.mark.requirement("FS-2")
def test_a_file_that_was_written_just_before_is_not_newer_than_a_workspace(
    store: WorkspaceStore, tmp_path: Path
) -> None:
    """A file that is looked at and written again has a finer time than the clock of file times."""
    file = tmp_path / "file"
    for _ in range(50):
        file.write_text("first")
        file.stat()
        file.write_text("second")
        made = store.make(new_id("sbx"), COW)
        assert file.stat().st_ctime_ns <= made.made_ns
        while file.stat().st_ctime_ns <= made.made_ns:  # the control: a later change is newer
            file.write_text("third")


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize("text", ["../x", "..", "", "a\0b", "sbx_" + "x" * 9999, "/etc"])
def test_no_id_becomes_a_path_unchecked(store: WorkspaceStore, text: str) -> None:
    for work in (
        store.session,
        store.remove,
        lambda name: store.make(name, COW),
    ):
        with pytest.raises(BadInput):
            work(text)
    assert folders(store) == []


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"mode": "x", "directory": null, "made_ns": 1}', '{"mode": "rw"}']
)
def test_a_broken_session_is_one_that_is_not_there(store: WorkspaceStore, text: str) -> None:
    made = store.make(new_id("sbx"), COW)
    Path(made.folder, "session.json").write_text(text)
    with pytest.raises(WorkspaceError) as refused:
        store.session(made.id)
    assert refused.value.code == "CW-NO-WORKSPACE"


def test_removal_takes_closed_directories_and_never_follows_a_link(
    store: WorkspaceStore, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    made = store.make(new_id("sbx"), WorkspaceRequest())
    files = Path(made.files_path)
    (files / "link").symlink_to(outside)
    (files / "closed" / "in").mkdir(parents=True)
    (files / "closed").chmod(0)
    store.remove(made.id)
    store.remove(made.id)  # again is no error
    assert (folders(store), os.listdir(outside)) == ([], ["keep"])


def test_a_folder_with_something_in_quarantine_is_kept(store: WorkspaceStore) -> None:
    made = store.make(new_id("act"), WorkspaceRequest(WorkspaceMode.READ_WRITE, "/p"))
    Path(made.quarantine_path).mkdir()
    Path(made.quarantine_path, "x").touch()
    store.retire(made)
    assert folders(store) == [made.id]
    Path(made.quarantine_path, "x").unlink()
    store.retire(made)
    assert folders(store) == []


@pytest.mark.requirement("ISO-8")
def test_sweeping_removes_the_dead_and_the_expired_only(store: WorkspaceStore) -> None:
    dead, living = (
        store.make(new_id("sbx"), WorkspaceRequest()),
        store.make(new_id("sbx"), WorkspaceRequest()),
    )
    fresh, expired = store.make(new_id("act"), COW), store.make(new_id("act"), COW)
    unchanged = store.make(new_id("act"), COW)
    Path(fresh.upper_path, "changed").touch()
    old_and_living = store.make(new_id("sbx"), COW)
    for session in (expired, old_and_living):
        note = Path(session.folder, "session.json")
        note.write_text(json.dumps({**json.loads(note.read_text()), "made_ns": 1}))
    live = {living.id, old_and_living.id}
    sweep = partial(
        store.sweep,
        dead={dead.id, fresh.id, unchanged.id},
        live=live,
        keep_days=7,
        keep_private_days=30,
        hold_ended=nullcontext,
    )
    sweep(is_held=lambda: True)
    assert folders(store) == sorted([living.id, fresh.id, old_and_living.id, expired.id])
    sweep(is_held=lambda: False)
    assert folders(store) == sorted([living.id, fresh.id, old_and_living.id])


def test_two_sessions_never_share_a_folder(store: WorkspaceStore) -> None:
    made = store.make(new_id("sbx"), WorkspaceRequest())
    Path(made.files_path, "mine").touch()
    with pytest.raises(WorkspaceError):
        store.make(made.id, WorkspaceRequest())
    assert os.path.exists(f"{made.files_path}/mine")
