"""One overlay at a time for each session: who waits for whom (FS-2, FS-7)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, WorkspaceError
from cellwall.core.files import FileOperation
from cellwall.core.types import Action, Principal, WorkspaceMode, WorkspaceMount
from cellwall.sandbox.files import merged_view
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.merged_view import MergedViews
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.watcher import Watcher

ACTION = Action(principal=Principal("me", "sdk"), operation=FileOperation("read", "a"))
MOUNT = WorkspaceMount(mode=WorkspaceMode.COPY_ON_WRITE)
SESSION = "sbx_a"


class Opener:
    """Opens a directory in place of an overlay, and remembers each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[int] = []

    def __call__(self, _action: Action, _mount: WorkspaceMount) -> int:
        self.opened.append(os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        return self.opened[-1]


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


@pytest.fixture
def found(opener: Opener) -> MergedViews:
    return MergedViews(opener)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def replaced(found: MergedViews, folder: Path) -> int:
    with found.replacing(SESSION) as put:
        view = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        put(view)
    return view


def beside(work: Callable[[], None]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # looked at by the test
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


@pytest.mark.requirement("FS-7")
def test_a_view_is_opened_once_and_closed_with_its_session(found: MergedViews, opener: Opener):
    for _ in range(3):
        with found.use(SESSION, ACTION, MOUNT) as view:
            assert os.path.samestat(os.fstat(view), os.stat(opener.folder))
        assert not is_open(view)
    assert len(opener.opened) == 1
    found.end(SESSION)
    assert not is_open(opener.opened[0])


def test_threads_that_come_first_at_once_open_one_view(found: MergedViews, opener: Opener):
    start = threading.Barrier(8)

    def use() -> None:
        start.wait()
        with found.use(SESSION, ACTION, MOUNT):
            pass

    for thread, raised in [beside(use) for _ in range(8)]:
        thread.join()
        assert raised == []
    assert len(opener.opened) == 1


@pytest.mark.requirement("FS-2")
def test_a_cell_is_not_made_before_the_operations_under_way_have_ended(
    found: MergedViews, opener: Opener
):
    made: list[bool] = []

    def make() -> None:
        with found.replacing(SESSION):
            made.append(is_open(opener.opened[0]))

    with found.use(SESSION, ACTION, MOUNT):
        thread, raised = beside(make)
        while not found._views[SESSION].is_changing:
            assert thread.is_alive()
        assert made == []
    thread.join()
    assert (made, raised) == ([False], [])


def test_an_operation_waits_for_a_cell_that_is_being_made_and_has_its_view(
    found: MergedViews, opener: Opener
):
    seen: list[os.stat_result] = []

    def use() -> None:
        with found.use(SESSION, ACTION, MOUNT) as view:
            seen.append(os.fstat(view))

    folder = opener.folder / "of-the-cell"
    folder.mkdir()
    with found.replacing(SESSION) as put:
        thread, raised = beside(use)
        put(os.open(folder, os.O_PATH | os.O_DIRECTORY))
    thread.join()
    assert (raised, opener.opened) == ([], [])
    assert os.path.samestat(seen[0], folder.stat())


def test_a_transfer_that_does_not_end_is_told_and_leaves_the_view_usable(
    found: MergedViews, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(merged_view, "_WAIT_S", 0.01)
    with found.use(SESSION, ACTION, MOUNT):
        with pytest.raises(WorkspaceError) as refused, found.replacing(SESSION):
            raise AssertionError("it was let in")
        assert refused.value.code == "CW-WORKSPACE-BUSY"
        with found.use(SESSION, ACTION, MOUNT) as view:
            assert is_open(view)


def test_a_cell_that_could_not_be_made_leaves_no_view_and_the_next_use_opens_one(
    found: MergedViews, opener: Opener
):
    with found.use(SESSION, ACTION, MOUNT):
        pass
    with pytest.raises(BadInput), found.replacing(SESSION):
        raise BadInput("no cell")
    assert not is_open(opener.opened[0])
    with found.use(SESSION, ACTION, MOUNT) as view:
        assert is_open(view)
    assert len(opener.opened) == 2


def test_a_view_that_cannot_be_opened_is_tried_again(opener: Opener):
    failures = [BadInput("not now")]

    def sometimes(action: Action, mount: WorkspaceMount) -> int:
        if failures:
            raise failures.pop()
        return opener(action, mount)

    found = MergedViews(sometimes)
    with pytest.raises(BadInput), found.use(SESSION, ACTION, MOUNT):
        raise AssertionError("it was let in")
    with found.use(SESSION, ACTION, MOUNT) as view:
        assert is_open(view)


def test_a_session_that_ends_during_an_operation_closes_its_view_after_it(
    found: MergedViews, opener: Opener
):
    with found.use(SESSION, ACTION, MOUNT):
        found.end(SESSION)
        assert is_open(opener.opened[0])
    assert not is_open(opener.opened[0])


def test_a_watch_of_a_session_that_has_ended_ends(found: MergedViews):
    with found.use(SESSION, ACTION, MOUNT) as view:
        watcher = Watcher(FileTree(os.dup(view)), ".", recursive=True)
        found.end(SESSION)
        found.attach(SESSION, watcher, Root)
    assert watcher.ended
    watcher.close()


@pytest.mark.requirement("FS-7")
def test_a_watch_goes_over_to_the_view_of_a_new_cell_and_loses_nothing(
    found: MergedViews, tmp_path: Path, opener: Opener
):
    opener.folder = tmp_path / "first"
    later = tmp_path / "later"  # stands for the same files behind another mount
    for folder in (opener.folder, later):
        (folder / "d").mkdir(parents=True)
    with found.use(SESSION, ACTION, MOUNT) as view:
        watcher = Watcher(FileTree(os.dup(view)), ".", recursive=True)
        found.attach(SESSION, watcher, Root)
    (opener.folder / "d" / "before").touch()
    (later / "d" / "before").touch()
    replaced(found, later)
    (opener.folder / "d" / "unseen").touch()
    (later / "d" / "after").touch()
    told = [(change.kind, change.path) for change in watcher.take()]
    assert told == [("created", "d/before"), ("created", "d/after")]
    found.end(SESSION)
    assert watcher.take() == ()
    watcher.close()
