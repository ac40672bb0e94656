"""A watch tells what changes tree its root, and nothing else (FS-1, FS-4, FS-7)."""

from __future__ import annotations

import os

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.files import FileChange
from cellwall.core.protected_names import load
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits
from cellwall.sandbox.files.watcher import Watcher
from cellwall.sandbox.linux.channels import ready_to_read
from cellwall.sandbox.protection.protected_paths import access_check_for
from conftest import need

LIMITS = WriteLimits(max_file_bytes=1 << 20, max_total_bytes=1 << 24, max_files=1000)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "outside").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def watching(place):
    opened = []

    def watch(path=".", *, access_check=None, **options):
        options.setdefault("recursive", True)
        root = FileTree.open(place, access_check=access_check)
        try:
            opened.append(Watcher(root, path, **options))
        except BaseException:
            root.close()
            raise
        return opened[-1]

    yield watch
    for watcher in opened:
        watcher.close()


def told(watcher):
    """All that has happened until now; the kernel has queued it before this is called."""
    changes = []
    while not watcher.ended:
        changes += watcher.take()
        if watcher.patience_s is not None:
            ready_to_read(watcher, timeout_s=watcher.patience_s)
        elif not ready_to_read(watcher, timeout_s=0):
            break
    return [(c.kind, c.path, c.target) if c.target else (c.kind, c.path) for c in changes]


@pytest.mark.requirement("FS-7")
def test_files_are_told_as_they_are_made_changed_moved_and_removed(watching, place):
    (place / "old").write_bytes(b"")
    watcher = watching()
    assert told(watcher) == []
    (place / "a").write_bytes(b"x")
    with (place / "old").open("ab") as old:
        for _ in range(3):
            old.write(b"y")
            old.flush()
    (place / "a").rename(place / "b")
    (place / "old").unlink()
    assert told(watcher) == [
        ("created", "a"),
        ("modified", "a"),
        ("modified", "old"),
        ("moved", "a", "b"),
        ("removed", "old"),
    ]
    (place / "b").write_bytes(b"new")
    assert told(watcher) == [("modified", "b")]


@pytest.mark.requirement("FS-7")
def test_new_directories_are_watched_and_what_was_in_them_before_is_told(watching, place):
    (place / "d/e").mkdir(parents=True)
    watcher = watching()
    (place / "n/m").mkdir(parents=True)
    (place / "n/m/early").write_bytes(b"")
    (place / "d/e/x").write_bytes(b"")
    assert sorted(told(watcher)) == [
        ("created", "d/e/x"),
        ("created", "n"),
        ("created", "n/m"),
        ("created", "n/m/early"),
    ]
    (place / "n/m/late").write_bytes(b"")
    assert told(watcher) == [("created", "n/m/late")]


@pytest.mark.requirement("FS-7")
def test_moved_directories_go_on_being_watched_under_their_new_name(watching, place):
    (place / "a/b").mkdir(parents=True)
    (place / "x").mkdir()
    watcher = watching()
    (place / "a").rename(place / "x/c")
    (place / "x/c/b/new").write_bytes(b"")
    assert told(watcher) == [("moved", "a", "x/c"), ("created", "x/c/b/new")]
    (place / "a").mkdir()
    (place / "a/again").write_bytes(b"")
    assert told(watcher) == [("created", "a"), ("created", "a/again")]
    (place / "x/c").rename(place.parent / "outside/c")  # out of sight
    (place.parent / "outside/c/b/secret").write_bytes(b"")
    (place / "end").write_bytes(b"")
    assert told(watcher) == [("removed", "x/c"), ("created", "end")]
    (place.parent / "outside/c").rename(place / "back")
    assert sorted(told(watcher)) == [
        ("created", "back"),
        ("created", "back/b"),
        ("created", "back/b/new"),
        ("created", "back/b/secret"),
    ]


@pytest.mark.requirement("FS-7")
def test_names_used_again_and_again_are_told_where_they_are(watching, place):
    watcher = watching()
    for n in range(50):
        (place / "d").mkdir()
        (place / "d/f").write_bytes(b"")
        (place / "d").rename(place / f"d{n}")
    told(watcher)
    for n in range(50):
        (place / f"d{n}" / "late").write_bytes(b"")
    assert told(watcher) == [("created", f"d{n}/late") for n in range(50)]


@pytest.mark.requirement("FS-7")
def test_only_the_directory_itself_without_recursive(watching, place):
    (place / "d").mkdir()
    watcher = watching(recursive=False)
    (place / "d/x").write_bytes(b"")
    (place / "n").mkdir()
    (place / "n/y").write_bytes(b"")
    (place / "d").rename(place / "e")
    assert told(watcher) == [("created", "n"), ("moved", "d", "e")]


@pytest.mark.requirement("FS-7")
def test_a_write_of_the_file_api_is_one_change(watching, place):
    watcher = watching()
    with FileTree.open(place) as ws:
        ws.write("d/a", b"1", LIMITS)
        assert told(watcher) == [("created", "d"), ("created", "d/a")]
        ws.write("d/a", b"2", LIMITS)
        assert told(watcher) == [("modified", "d/a")]
        ws.remove("d", recursive=True)
    assert told(watcher) == [("removed", "d/a"), ("removed", "d")]


@pytest.mark.requirement("FS-4", "FS-7")
def test_hidden_names_never_appear(watching, place):
    (place / ".ssh").mkdir()
    watcher = watching(access_check=access_check_for(load()))
    (place / ".ssh/id_rsa").write_bytes(b"secret")
    (place / ".env").write_bytes(b"secret")
    (place / "seen").mkdir()
    (place / "seen/.env").write_bytes(b"secret")
    (place / "seen/x").write_bytes(b"")
    assert sorted(told(watcher)) == [("created", "seen"), ("created", "seen/x")]
    (place / "seen").rename(place / ".aws")  # a hidden name: it is gone
    (place / ".aws/y").write_bytes(b"")
    (place / "end").write_bytes(b"")
    assert told(watcher) == [("removed", "seen"), ("created", "end")]
    (place / ".aws").rename(place / "open")
    assert sorted(told(watcher)) == [
        ("created", "open"),
        ("created", "open/x"),
        ("created", "open/y"),
    ]
    (place / "open/.env").rename(place / "env")
    assert told(watcher) == [("created", "env")]
    with pytest.raises(WorkspaceError) as caught:
        watching(".ssh", access_check=access_check_for(load()))
    assert caught.value.code == "CW-PATH-PROTECTED"


@pytest.mark.requirement("FS-1", "FS-7")
def test_no_link_leads_a_watch_out(watching, place):
    outside = place.parent / "outside"
    (place / "link").symlink_to(outside)
    for path in ("link", "../outside", "/etc"):
        with pytest.raises(WorkspaceError) as caught:
            watching(path)
        assert caught.value.code == "CW-PATH-OUTSIDE"
    watcher = watching()
    (place / "late").symlink_to(outside)
    told(watcher)
    (outside / "x").write_bytes(b"")
    (place / "end").write_bytes(b"")
    assert told(watcher) == [("created", "end")]


@pytest.mark.requirement("FS-7")
def test_names_that_are_no_text_do_not_blow_up(watching, place):
    watcher = watching()
    os.mkdir(os.fsencode(place) + b"/\xff\n")
    os.close(os.open(os.fsencode(place) + b"/\xff\n/x", os.O_CREAT))
    assert told(watcher) == [("created", "\\xff\n"), ("created", "\\xff\n/x")]


@pytest.mark.requirement("FS-7")
def test_a_watch_ends_with_what_it_watches(watching, place):
    (place / "d/e").mkdir(parents=True)
    watcher = watching("d")
    (place / "d/e").rmdir()
    (place / "d").rmdir()
    assert told(watcher) == [("removed", "d/e"), ("removed", "d")]
    assert watcher.ended
    root = watching()
    place.rmdir()
    assert told(root) == []
    root.take()
    assert root.ended


@pytest.mark.requirement("FS-7")
def test_too_large_a_tree_is_refused_and_one_that_grows_is_an_overflow(watching, place):
    for n in range(4):
        (place / f"d{n}").mkdir()
    for bound in ({"max_directories": 4}, {"max_names": 3}):
        with pytest.raises(WorkspaceError) as caught:
            watching(**bound)
        assert caught.value.code == "CW-WATCH-TOO-LARGE"
    few = watching(max_directories=5)
    (place / "new").mkdir()
    assert told(few) == [("created", "new"), ("overflow", ".")]
    (place / "d0/x").write_bytes(b"")
    assert told(few) == [("created", "d0/x")]
    (place / "d0/x").unlink()
    names = watching(max_names=5)
    (place / "d1/y").write_bytes(b"")
    assert told(names) == [("created", "d1/y"), ("overflow", ".")]


@pytest.mark.requirement("FS-7")
@pytest.mark.slow
def test_lost_notices_are_an_overflow_and_the_watch_goes_on(watching, place):
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        most = int(file.read())
    need(most <= 100_000, "a queue of notices short enough to be filled")
    watcher = watching()
    for _ in range(most // 2 + 1):
        (place / "a").touch()
        (place / "a").unlink()
    (place / "late/deep").mkdir(parents=True)
    changes = told(watcher)
    assert ("overflow", ".") in changes
    assert changes.count(("overflow", ".")) == 1
    (place / "late/deep/x").write_bytes(b"")
    assert told(watcher) == [("created", "late/deep/x")]


def test_a_closed_watch_is_closed_once_and_says_nothing(watching, place):
    watcher = watching()
    (place / "a").write_bytes(b"")
    watcher.stop()
    assert ready_to_read(watcher, timeout_s=10)  # whoever waits wakes up
    assert watcher.take() == ()
    watcher.close()
    watcher.close()
    assert watcher.ended


def test_a_failed_watch_leaves_no_descriptor_open(watching, place):
    (place / "d").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(WorkspaceError):
            watching(max_directories=1)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize(
    ("call", "errno", "code"),
    [("inotify_open", 24, "CW-WATCH-LIMIT"), ("inotify_watch", 28, "CW-WATCH-TOO-LARGE")],
)
def test_the_kernels_own_bounds_are_told_as_what_they_are(watching, monkeypatch, call, errno, code):
    def full(*_args, **_options):
        raise OSError(errno, "no more")

    monkeypatch.setattr(f"cellwall.sandbox.files.inotify.{call}", full)
    with pytest.raises(WorkspaceError) as caught:
        watching()
    assert (caught.value.code, bool(caught.value.hint)) == (code, True)


def test_a_forgotten_watch_is_closed(place):
    before = len(os.listdir("/proc/self/fd"))
    Watcher(FileTree.open(place), ".", recursive=True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_change_is_plain_data():
    assert FileChange("created", "a") == FileChange("created", "a", "")
