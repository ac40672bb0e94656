"""Kept workspaces as archives: what comes back, what a change or a kill does to them."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError, WorkspaceError
from cellwall.core.ids import new_id
from cellwall.core.types import WorkspaceMode, WorkspaceRequest
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.protection.post_run_check import COARSE_CLOCK
from cellwall.sandbox.workspace import sealed_files
from cellwall.sandbox.workspace.changes import changes as changes_of
from cellwall.sandbox.workspace.store import StoredWorkspace, WorkspaceStore

pytestmark = pytest.mark.requirement("FS-5")
CANARY = b"canary-77c1"
COW = WorkspaceRequest(WorkspaceMode.COPY_ON_WRITE, "/somewhere")


class Keys:
    """Keys in memory: those on disk are tested elsewhere."""

    def __init__(self) -> None:
        self.made: dict[str, bytes] = {}

    def new_key(self, session: str) -> tuple[str, bytes]:
        name = f"{len(self.made):08x}-{session}"
        self.made[name] = os.urandom(32)
        return name, self.made[name]

    def key_bytes(self, key: str) -> bytes:
        return self.made[key]

    def seal(self, session: str, plain: bytes, aad: bytes) -> tuple[str, bytes]:
        raise NotImplementedError

    def unseal(self, key: str, sealed: bytes, aad: bytes) -> bytes:
        raise NotImplementedError

    def is_destroyed(self, key: str) -> bool:
        return key not in self.made

    def destroy_key(self, key: str) -> None:
        del self.made[key]

    def close(self) -> None:
        pass


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def store(tmp_path: Path, keys: Keys) -> WorkspaceStore:
    return WorkspaceStore(str(tmp_path), keys)


def fill(upper: Path) -> None:
    (upper / "a").write_bytes(CANARY)
    (upper / "empty").touch()
    (upper / "large").write_bytes(CANARY * 100_000)
    (upper / "d" / "e").mkdir(parents=True)
    (upper / "d" / "e" / "f").write_bytes(b"deep")
    (upper / "link").symlink_to("/etc/passwd")
    os.link(upper / "a", upper / "d" / "hard")
    os.mkfifo(upper / "fifo")
    os.mknod(upper / "removed", stat.S_IFCHR | 0o600, 0)
    (upper / os.fsdecode(b"\xff\n name")).write_bytes(b"odd")
    with open(upper / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(CANARY)
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    os.chmod(upper / "a", 0o755)
    os.utime(upper / "a", ns=(1, 1_234_567_890))
    (upper / "locked").mkdir()
    (upper / "locked" / "file").write_bytes(b"x")
    os.chmod(upper / "locked" / "file", 0)
    os.chmod(upper / "locked", 0)


def picture(upper: Path) -> dict[str, object]:
    """All that an archive keeps of a tree."""
    found: dict[str, object] = {}
    for place, folders, names in os.walk(upper):
        for name in [*folders, *names]:
            path = Path(place, name)
            status = path.lstat()
            about: list[object] = [stat.filemode(status.st_mode), status.st_rdev, status.st_nlink]
            if stat.S_ISLNK(status.st_mode):
                about.append(os.readlink(path))
            else:
                about += [status.st_mtime_ns, os.listxattr(path)]
            if stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK):
                with path.open("rb") as file:
                    file.seek(1 << 39 if name == "sparse" else 0)
                    about += [status.st_size, file.read(2_000_000) if name != "sparse" else b""]
            if stat.S_ISDIR(status.st_mode):
                about[2] = 0  # depends on the file system
            found[str(path.relative_to(upper))] = about
    return found


def kept(store: WorkspaceStore) -> StoredWorkspace:
    session = store.make(new_id("act"), COW)
    fill(Path(session.upper_path))
    return session


def holds_canary(folder: str) -> bool:
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    return any(CANARY in path.read_bytes()[:20_000_000] for path in paths if path.name != "sparse")


def test_a_kept_workspace_is_one_encrypted_file_and_comes_back_whole(store):
    session = kept(store)
    before = picture(Path(session.upper_path))
    assert holds_canary(session.folder)
    store.retire(session)
    assert sorted(os.listdir(session.folder)) == ["sealed", "session.json"]
    assert not holds_canary(session.folder)
    assert Path(session.folder, "sealed").stat().st_size < 20_000_000  # holes are not filled
    with store.open_upper(session) as upper:
        assert picture(Path(upper)) == before
        assert Path(upper, "a").read_bytes() == CANARY
        with open(Path(upper, "sparse"), "rb") as file:
            file.seek(1 << 39)
            assert file.read(len(CANARY)) == CANARY
    assert sorted(os.listdir(session.folder)) == ["sealed", "session.json"]


def test_nothing_that_code_makes_loses_its_files_or_keeps_them_in_clear(
    store, tmp_path, monkeypatch
):
    session = store.make(new_id("act"), COW)
    upper = Path(session.upper_path)
    (upper / "a").write_bytes(CANARY)
    with socket.socket(socket.AF_UNIX) as made, monkeypatch.context() as there:
        there.chdir(upper)  # the path of a socket is short
        made.bind("socket")  # is not kept, so a link to it must not be kept either
        os.link("socket", "z-link")
    folder = os.open(upper, os.O_RDONLY)
    for _ in range(30):  # longer than any path that the kernel opens
        os.mkdir("d" * 200, dir_fd=folder)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    for number in range(30):
        os.setxattr(upper / "a", f"user.overlay.{number}", b"x" * 100)
    store.retire(session)
    assert not holds_canary(session.folder)
    with store.open_upper(session) as opened:
        assert sorted(os.listdir(opened)) == ["a", "d" * 200]
        assert Path(opened, "a").read_bytes() == CANARY
        assert os.listxattr(Path(opened, "a")) == []
        (tmp_path / "lower").mkdir()
        with Root.open(str(tmp_path / "lower")) as lower, Root.open(opened) as root:
            found = [change.path for change in changes_of(lower, root)]
    assert "a" in found
    assert len(found[-1]) > 4095  # listed, for `apply` to refuse it


def test_attributes_that_code_makes_longer_than_a_header_lose_no_file(store, monkeypatch):
    """Attributes of 1 MiB need another file system, so the bound is lowered instead."""
    monkeypatch.setattr(sealed_files, "_MAX_HEADER_BYTES", 2000)
    names = [f"user.made.{number}" for number in range(30)]

    def read_back() -> bytes:
        session = store.make(new_id("act"), COW)
        made = Path(session.upper_path, "a")
        made.write_bytes(CANARY)
        for name in names:
            os.setxattr(made, name, b"x" * 100)
        store.retire(session)
        with store.open_upper(session) as opened:
            return Path(opened, "a").read_bytes()

    assert read_back() == CANARY
    # The control: kept, these attributes would make the header unreadable.
    monkeypatch.setattr(sealed_files, "_OVERLAY_XATTRS", frozenset(names))
    with pytest.raises(WorkspaceError):
        read_back()


def test_a_live_workspace_is_read_in_place(store):
    session = kept(store)
    with store.open_upper(session) as upper:
        assert upper == session.upper_path


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_sizes_around_a_chunk(store, size):
    session = store.make(new_id("act"), COW)
    Path(session.upper_path, "file").write_bytes(b"x" * size)
    store.retire(session)
    with store.open_upper(session) as upper:
        assert Path(upper, "file").read_bytes() == b"x" * size


def changes(data: bytes) -> dict[str, bytes]:
    head = data.index(b"\n") + 1
    chunk = 64 * 1024 + 16
    first, second = data[head : head + chunk], data[head + chunk : head + 2 * chunk]
    return {
        "cut off within a chunk": data[:-1],
        "cut off at a chunk": data[: head + chunk],
        "last chunk dropped": data[: head + (len(data) - head - 1) // chunk * chunk],
        "empty": data[:head],
        "no head": data[head:],
        "nothing": b"",
        "appended": data + bytes(16),
        "reordered": data[:head] + second + first + data[head + 2 * chunk :],
        "flipped": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
    }


@pytest.mark.parametrize("change", list(changes(b"\n" + bytes(300_000))))
def test_a_changed_archive_is_refused_and_leaves_nothing_behind(store, change):
    session = kept(store)
    store.retire(session)
    path = Path(session.folder, "sealed")
    whole = path.read_bytes()
    path.write_bytes(changes(whole)[change])
    with pytest.raises(WorkspaceError) as caught, store.open_upper(session):
        pass
    assert caught.value.code == "CW-WORKSPACE-DAMAGED"
    assert sorted(os.listdir(session.folder)) == ["sealed", "session.json"]
    path.write_bytes(whole)
    with store.open_upper(session) as upper:
        assert Path(upper, "a").read_bytes() == CANARY


def test_an_archive_of_another_session_is_refused(store):
    one, two = kept(store), kept(store)
    store.retire(one)
    store.retire(two)
    os.replace(Path(one.folder, "sealed"), Path(two.folder, "sealed"))
    with pytest.raises(WorkspaceError), store.open_upper(two):
        pass


def test_a_failure_leaves_the_files_as_they_are_and_the_next_sweep_seals_them(
    store, keys, monkeypatch
):
    session = kept(store)

    def fail(_: str) -> tuple[str, bytes]:
        raise CellwallError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(keys, "new_key", fail)
        store.retire(session)
    assert Path(session.upper_path, "a").read_bytes() == CANARY
    sweep(store, session)
    assert not holds_canary(session.folder)


def sweep(
    store: WorkspaceStore,
    session: StoredWorkspace,
    *,
    is_live: bool = False,
    dead: Collection[str] = (),
) -> None:
    """As the next start does it, two hours later."""

    @contextmanager
    def alive(_: str):
        raise WorkspaceError("it is in use")
        yield

    note = Path(session.folder, "session.json")
    made = f'"made_ns": {session.made_ns}'
    note.write_text(note.read_text().replace(made, f'"made_ns": {session.made_ns - 7200 * 10**9}'))
    store.sweep(
        dead=dead,
        live=(),
        keep_days=7,
        keep_private_days=30,
        hold_ended=alive if is_live else nullcontext,
        is_held=lambda: False,
    )


def test_a_sweep_touches_no_live_session(store):
    session = kept(store)
    sweep(store, session, is_live=True)
    assert Path(session.upper_path, "a").read_bytes() == CANARY


def test_what_a_killed_reader_left_is_removed_and_what_a_live_one_has_is_not(store):
    session = kept(store)
    store.retire(session)
    left = Path(session.folder, "opened.0123", "layers")
    left.mkdir(parents=True)
    (left / "a").write_bytes(CANARY)
    with store.open_upper(session) as upper:
        sweep(store, session)
        assert not left.exists()
        assert Path(upper, "a").read_bytes() == CANARY


_SEALER = """
import sys
sys.path.insert(0, sys.argv[4])
from unit.sandbox.workspace.test_sealed_layers import Keys
from cellwall.sandbox.workspace import sealed_layers
from cellwall.sandbox.workspace.store import WorkspaceStore
from pathlib import Path
import os, signal

class Fixed(Keys):
    def new_key(self, session):
        return "00000000-x", bytes(32)

at = sys.argv[3]
def killing(name, work):
    def wrapped(*args, **options):
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*args, **options)
    return wrapped
for name in ("fsync", "rename"):
    setattr(sealed_layers.os, name, killing(name, getattr(os, name)))
sealed_layers.remove_tree = killing("remove_tree", sealed_layers.remove_tree)
store = WorkspaceStore(sys.argv[1], Fixed())
store.retire(store.session(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["fsync", "rename", "remove_tree"])
def test_a_kill_at_any_step_leaves_the_files_or_the_archive(tmp_path, store, keys, moment):
    keys.made["00000000-x"] = bytes(32)
    session = kept(store)
    before = picture(Path(session.upper_path))
    tests = str(Path(__file__).parents[3])
    words = [sys.executable, "-c", _SEALER, str(tmp_path), session.id, moment, tests]
    done = subprocess.run(words, check=False)
    assert done.returncode == -signal.SIGKILL
    sweep(store, session)
    with store.open_upper(session) as upper:
        assert {**picture(Path(upper)), "locked": 0} == {**before, "locked": 0}
    assert not holds_canary(session.folder)


def test_the_key_of_a_removed_archive_is_destroyed(store, keys):
    one, two = kept(store), kept(store)
    store.retire(one)
    store.retire(two)
    data = Path(one.folder, "sealed").read_bytes()
    store.remove(one.id)
    assert [name.partition("-")[2] for name in keys.made] == [two.id]
    os.mkdir(one.folder, 0o700)  # its blocks were found on the disk
    Path(one.folder, "session.json").write_text(Path(two.folder, "session.json").read_text())
    Path(one.folder, "sealed").write_bytes(data)
    assert store.erased() == [one.id]


def test_the_oldest_workspaces_beyond_a_size_are_named(store):
    sessions = []
    for _ in range(3):
        sessions.append(kept(store))
        store.retire(sessions[-1])
        while time.clock_gettime_ns(COARSE_CLOCK) <= sessions[-1].made_ns:
            pass  # the next one is younger
    size = Path(sessions[0].folder, "sealed").stat().st_blocks * 512
    assert store.oldest_beyond(100 * size, ()) == []
    assert store.oldest_beyond(2 * size + size // 2, ()) == [sessions[0].id]
    assert store.oldest_beyond(0, {sessions[1].id}) == [sessions[0].id, sessions[2].id]


def private(store: WorkspaceStore) -> StoredWorkspace:
    session = store.make(new_id("sbx"), WorkspaceRequest())
    fill(Path(session.files_path))
    quarantine = Path(session.quarantine_path)
    quarantine.mkdir()
    (quarantine / "refused").write_bytes(CANARY)
    return session


def test_a_kept_private_workspace_is_sealed_and_restored_whole_for_a_new_session(store, keys):
    session = private(store)
    before = picture(Path(session.files_path))
    store.keep(session.id, keeper="usr_1")
    store.retire(session)  # as it was known before it was kept
    assert sorted(os.listdir(session.folder)) == ["sealed", "session.json"]
    assert not holds_canary(session.folder)
    size_bytes = Path(session.folder, "sealed").stat().st_size
    [(found, found_bytes)] = store.kept()
    assert (found.id, found.keeper, found_bytes) == (session.id, "usr_1", size_bytes)
    for _ in range(2):
        resumed = store.make(new_id("sbx"), WorkspaceRequest(), resumed=found)
        assert picture(Path(resumed.files_path)) == before
        assert sorted(os.listdir(resumed.folder)) == ["files", "session.json"]
        store.retire(resumed)
        assert not Path(resumed.folder).exists()  # nobody keeps the new one
    [name] = keys.made
    store.remove(session.id)
    assert name not in keys.made


def test_a_private_workspace_that_cannot_be_restored_leaves_nothing(store, keys):
    session = private(store)
    store.keep(session.id, keeper="usr_1")
    store.retire(session)
    archive = Path(session.folder, "sealed")
    archive.write_bytes(archive.read_bytes()[:-1])
    new = new_id("sbx")
    with pytest.raises(WorkspaceError) as caught:
        store.make(new, WorkspaceRequest(), resumed=store.session(session.id))
    assert caught.value.code == "CW-WORKSPACE-DAMAGED"
    assert [each.id for each in store.sessions()] == [session.id]


def test_a_kill_after_the_mark_keeps_the_workspace_and_before_it_does_not(store):
    marked, unmarked = private(store), private(store)
    store.keep(marked.id, keeper="usr_1")
    sweep(store, marked, dead=(marked.id, unmarked.id))
    assert [each.id for each, _ in store.kept()] == [marked.id]
    assert not holds_canary(marked.folder)
    assert not Path(unmarked.folder).exists()


def test_a_kept_workspace_that_was_not_sealed_is_sealed_by_the_next_sweep(store, keys, monkeypatch):
    session = private(store)
    store.keep(session.id, keeper="usr_1")

    def fail(_: str) -> tuple[str, bytes]:
        raise CellwallError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(keys, "new_key", fail)
        store.retire(session)
    assert store.kept() == []
    assert Path(session.files_path, "a").read_bytes() == CANARY
    sweep(store, session)
    assert [each.id for each, _ in store.kept()] == [session.id]
    assert not holds_canary(session.folder)
