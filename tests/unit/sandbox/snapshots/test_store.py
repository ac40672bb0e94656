"""Snapshots on disk: owners, times, and layers that go with their last user."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from cellwall.core.errors import NotFound
from cellwall.core.ids import new_id
from cellwall.core.types import WorkspaceRequest
from cellwall.sandbox.snapshots.layer_files import TreeSize
from cellwall.sandbox.snapshots.store import SnapshotRecord, SnapshotStore
from cellwall.sandbox.workspace.store import WorkspaceStore

pytestmark = pytest.mark.requirement("FS-9")
HOUR_NS = 3600 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> WorkspaceStore:
    return WorkspaceStore(str(tmp_path))


def fill(path: str) -> TreeSize:
    os.mkdir(path)
    Path(path, "a").write_text("content")
    return TreeSize(4096, 1)


def save(
    snapshots: SnapshotStore, *layers: str, owner: str = "", lasts_ns: int = HOUR_NS
) -> SnapshotRecord:
    now = time.time_ns()
    record = SnapshotRecord(
        id=new_id("snp"),
        name="",
        owner=owner,
        session=new_id("sbx"),
        template="python",
        created_ns=now,
        expires_ns=now + lasts_ns,
        layers=layers,
        size_bytes=4096,
        files=1,
    )
    return snapshots.save(record, state=b"", complete=lambda _folder: None)


def test_a_layer_goes_with_its_last_snapshot_or_workspace(store):
    with store.snapshots.building():
        shared, own = (store.snapshots.add_layer(fill) for _ in range(2))
        one, two = save(store.snapshots, shared), save(store.snapshots, own, shared)
        assert store.snapshots.used_by("") == (2, 8192)  # the shared layer counts once
        session = store.make(new_id("sbx"), WorkspaceRequest(), layers=two.layers)
    store.snapshots.remove(one.id)
    store.snapshots.remove(two.id)
    store.collect_layers()
    assert sorted(os.listdir(f"{store.home}/snapshots/layers")) == sorted([shared, own])
    store.remove(session.id)
    assert os.listdir(f"{store.home}/snapshots/layers") == []


def test_what_a_killed_process_left_is_removed_and_nothing_else(store):
    folder = Path(store.home, "snapshots")
    with store.snapshots.building():
        layer = store.snapshots.add_layer(fill)
        kept = save(store.snapshots, layer)
        store.snapshots.add_layer(fill)  # killed before its record
    (folder / "layers" / new_id("lay") / "files").mkdir(parents=True)  # while it was filled
    (folder / f"draft.{new_id('snp')}").mkdir()  # while the record was written
    half = folder / new_id("snp")  # in the middle of a deletion
    half.mkdir()
    (half / "state.json").write_text("{}")
    store.collect_layers()
    assert sorted(os.listdir(folder)) == sorted(["layers", "lock", kept.id])
    assert os.listdir(folder / "layers") == [layer]


def test_no_layer_is_removed_while_one_is_made(store):
    with store.snapshots.building():
        layer = store.snapshots.add_layer(fill)
        store.collect_layers()  # of another process, or thread
        assert os.path.exists(store.snapshots.layer_path(layer))
    with open(f"{store.home}/snapshots/lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is free again


def test_another_owner_an_expired_one_and_a_guess_get_the_same_answer(store):
    with store.snapshots.building():
        mine = save(store.snapshots, owner="usr_a")
        old = save(store.snapshots, owner="usr_a", lasts_ns=-1)
    assert store.snapshots.find(mine.id, owner="usr_a") == mine
    answers = set()
    guesses = (new_id("snp"), "../workspaces", "layers", "snp_", "", mine.id.upper(), "lock")
    for name, owner in (
        (mine.id, "usr_b"),
        (mine.id, ""),
        (old.id, "usr_a"),
        *((each, "usr_a") for each in guesses),
    ):
        with pytest.raises(NotFound) as refused:
            store.snapshots.find(name, owner=owner)
        answers.add(str(refused.value))
    assert len(answers) == 1
    assert [each.id for each in store.snapshots.all(owner="usr_a")] == [mine.id]
    assert store.snapshots.all(owner="usr_b") == []
    assert store.snapshots.expired() == [old.id]


def test_a_damaged_record_removes_no_layer_and_can_be_deleted(store):
    with store.snapshots.building():
        layer = store.snapshots.add_layer(fill)
        damaged = save(store.snapshots, layer)
    record = Path(store.snapshots.folder_of(damaged.id), "snapshot.json")
    record.write_text(json.dumps({"layers": ["../../etc"]}))
    store.collect_layers()
    assert os.path.exists(store.snapshots.layer_path(layer))
    store.snapshots.remove(damaged.id)
    store.collect_layers()
    assert os.listdir(f"{store.home}/snapshots/layers") == []
