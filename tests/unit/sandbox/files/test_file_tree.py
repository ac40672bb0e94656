"""The file API stays tree its root, whatever path, link or race is tried (FS-1, FS-3, FS-7)."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cellwall.core.errors import WorkspaceError
from cellwall.core.files import FileEntry, StreamedFile
from cellwall.core.protected_names import load
from cellwall.sandbox.files.descriptors import from_os_error
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits, is_blocked
from cellwall.sandbox.files.paths import inner_path
from cellwall.sandbox.protection.protected_paths import access_check_for

LIMITS = WriteLimits(max_file_bytes=1 << 20, max_total_bytes=1 << 24, max_files=1000)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to another user")
AT_FDCWD, RENAME_EXCHANGE = -100, 2
CANARY = b"outside, untouched"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "canary").write_bytes(CANARY)
    return tmp_path / "ws"


@pytest.fixture
def outside(place):
    yield place.parent / "outside"
    assert sorted(os.listdir(place.parent / "outside")) == ["canary"]
    assert (place.parent / "outside" / "canary").read_bytes() == CANARY


@pytest.fixture
def ws(place):
    with FileTree.open(place) as tree:
        yield tree


def refused_code(call, *args, **kwargs):
    with pytest.raises(WorkspaceError) as caught:
        call(*args, **kwargs)
    return caught.value.code


class Endless:
    """A source that never ends, and counts what was taken."""

    def __init__(self) -> None:
        self.taken = 0

    def read(self, size: int, /) -> bytes:
        self.taken += size
        return bytes(size)


class Broken:
    def read(self, size: int, /) -> bytes:
        raise OSError(errno.EIO, "gone")


def streamed(data: bytes) -> StreamedFile:
    return StreamedFile(len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.requirement("FS-7")
def test_a_stream_is_written_whole_or_not_at_all(ws, place):
    data = os.urandom(700_000)
    assert ws.write_from("d/a", io.BytesIO(data), streamed(data), LIMITS) == streamed(data)
    assert (place / "d" / "a").read_bytes() == data
    endless = Endless()
    sources = [io.BytesIO(b""), io.BytesIO(data[:-1]), io.BytesIO(data + b"x"), endless]
    sources.append(io.BytesIO(b"x" * len(data)))
    for source in sources:
        code = refused_code(ws.write_from, "d/a", source, streamed(data), LIMITS)
        assert code == "CW-CONTENT-CHANGED"
    assert endless.taken <= 2 << 20
    refused_code(ws.write_from, "d/a", Broken(), streamed(data), LIMITS)
    large = StreamedFile(LIMITS.max_file_bytes + 1, "")
    assert refused_code(ws.write_from, "d/a", Endless(), large, LIMITS) == "CW-FILE-TOO-LARGE"
    small = replace(LIMITS, max_total_bytes=800_000)
    assert (
        refused_code(ws.write_from, "b", io.BytesIO(data), streamed(data), small)
        == "CW-WORKSPACE-FULL"
    )
    assert (place / "d" / "a").read_bytes() == data
    assert (os.listdir(place), os.listdir(place / "d")) == (["d"], ["a"])


@pytest.mark.requirement("FS-7")
def test_a_file_is_read_into_a_sink_up_to_a_limit(ws, place):
    data = os.urandom(3_000_000)
    (place / "a").write_bytes(data)
    sink = io.BytesIO()
    assert ws.read_into("a", sink, max_bytes=len(data)) == streamed(data)
    assert sink.getvalue() == data
    code = refused_code(ws.read_into, "a", io.BytesIO(), max_bytes=len(data) - 1)
    assert code == "CW-FILE-TOO-LARGE"
    (place / "d").mkdir()
    os.mkfifo(place / "pipe")
    for name in ("d", "pipe"):
        assert refused_code(ws.read_into, name, sink, max_bytes=9) == "CW-NOT-A-FILE"


# Ordinary work.


@pytest.mark.requirement("FS-7")
def test_what_is_written_is_read_back_byte_for_byte(ws, place):
    data = bytes(range(256)) * 100
    ws.write("deep/er/ü\n.bin", data, LIMITS)
    assert ws.read("/workspace/deep/er/ü\n.bin", max_bytes=len(data)) == data
    assert (place / "deep/er/ü\n.bin").read_bytes() == data
    assert [p.name for p in (place / "deep/er").iterdir()] == ["ü\n.bin"]


@pytest.mark.requirement("FS-7")
def test_list_and_stat_tell_names_kinds_and_sizes_in_order(ws, place):
    ws.make_dir("d", max_files=10)
    ws.write("b.txt", b"12345", LIMITS)
    (place / "a").symlink_to("b.txt")
    os.mkfifo(place / "c")
    for name in ("b.txt", "c", "d"):
        os.utime(place / name, (7, 7))
    os.utime(place / "a", (7, 7), follow_symlinks=False)
    modes = {name: stat.S_IMODE(os.lstat(place / name).st_mode) for name in os.listdir(place)}
    size = os.lstat(place / "d").st_size
    expected = (
        FileEntry("a", "a", "symlink", 5, modes["a"], 7.0),
        FileEntry("b.txt", "b.txt", "file", 5, modes["b.txt"], 7.0),
        FileEntry("c", "c", "other", 0, modes["c"], 7.0),
        FileEntry("d", "d", "dir", size, modes["d"], 7.0),
    )
    assert ws.list() == expected
    assert tuple(ws.stat(entry.path) for entry in expected) == expected
    assert ws.stat("missing") is None
    assert not ws.exists("b.txt/below")
    assert ws.exists("/workspace/d")


@pytest.mark.requirement("FS-7")
def test_move_and_remove(ws, place):
    ws.write("a/b.txt", b"x", LIMITS)
    ws.move("a/b.txt", "c.txt")
    assert ws.read("c.txt", max_bytes=1) == b"x"
    ws.move("a", "z")
    ws.remove("z")
    ws.remove("c.txt")
    assert os.listdir(place) == []
    assert refused_code(ws.remove, "c.txt") == "CW-NOT-FOUND"
    assert refused_code(ws.move, "c.txt", "d") == "CW-NOT-FOUND"


def test_a_full_directory_is_removed_only_recursively(ws, place):
    ws.write("a/b/c", b"x", LIMITS)
    assert refused_code(ws.remove, "a") == "CW-NOT-EMPTY"
    ws.remove("a", recursive=True)
    assert os.listdir(place) == []


def test_an_existing_file_keeps_its_mode_but_no_set_id_bit(ws, place):
    (place / "run").write_bytes(b"old")
    (place / "run").chmod(0o4751)
    ws.write("run", b"new", LIMITS)
    assert stat.S_IMODE((place / "run").stat().st_mode) == 0o751


@as_root
def test_roots_new_files_belong_to_the_owner_of_the_directory(ws, place):
    os.chown(place, 1234, 2345)
    ws.write("d/a", b"", LIMITS)
    found = [os.stat(place / name) for name in ("d", "d/a")]
    assert [(status.st_uid, status.st_gid) for status in found] == [(1234, 2345)] * 2


def test_a_link_that_stays_inside_is_written_through(ws, place):
    (place / "real").mkdir()
    (place / "real" / "file").write_bytes(b"old")
    (place / "link").symlink_to("hop")
    (place / "hop").symlink_to("./real/../real/file")
    ws.write("link", b"new", LIMITS)
    assert (place / "real" / "file").read_bytes() == b"new"
    assert (place / "link").is_symlink()
    assert (place / "hop").is_symlink()


# Escapes.


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize(
    "path",
    [
        "../outside/canary",
        "d/../../outside/canary",
        "/workspace/../outside/canary",
        "/etc/passwd",
        "/workspacex/a",
        "//etc/passwd",
        "/",
        "absolute",
        "relative",
        "chain",
        "dir/canary",
        "proc/outside",
        "magic/etc/passwd",
    ],
)
def test_no_path_and_no_link_leads_out(ws, place, outside, path):
    (place / "d").mkdir()
    (place / "absolute").symlink_to(outside / "canary")
    (place / "relative").symlink_to("../outside/canary")
    (place / "chain").symlink_to("relative")
    (place / "dir").symlink_to("../outside")
    (place / "proc").symlink_to("/proc/self/cwd")
    (place / "magic").symlink_to("/proc/self/root")
    naive = place / path if not path.startswith("/") else place.parent / path
    assert path == "proc/outside" or naive.exists() or "workspace" in path  # the trap is armed
    expected = "CW-PATH-OUTSIDE"
    assert refused_code(ws.read, path, max_bytes=100) == expected
    assert refused_code(ws.write, path, b"!", LIMITS) == expected
    assert refused_code(ws.list, path) == expected


@pytest.mark.requirement("FS-1")
def test_magic_links_below_a_root_are_not_followed():
    with FileTree.open("/proc/self") as ws:
        os.close(os.open("/proc/self/cwd", os.O_PATH))  # the control
        with pytest.raises(OSError) as caught:
            ws.open_below("cwd", os.O_PATH)
    assert caught.value.errno == errno.ELOOP  # by the kernel's word for such links alone


@pytest.mark.requirement("FS-1")
def test_a_link_that_leads_out_is_moved_and_removed_itself(ws, place, outside):
    (place / "file").symlink_to(outside / "canary")
    (place / "dir").symlink_to(outside)
    ws.move("file", "moved")
    ws.remove("moved")
    ws.remove("dir", recursive=True)
    assert os.listdir(place) == []


@pytest.mark.requirement("FS-1")
def test_recursive_removal_keeps_what_links_point_to(ws, place, outside):
    (place / "t" / "u").mkdir(parents=True)
    (place / "t" / "u" / "dir").symlink_to(outside)
    (place / "t" / "file").symlink_to(outside / "canary")
    os.link(outside / "canary", place / "t" / "hard")
    ws.remove("t", recursive=True)
    assert os.listdir(place) == []


@pytest.mark.requirement("FS-1")
def test_a_write_to_a_hard_link_leaves_the_other_name_alone(ws, place, outside):
    os.link(outside / "canary", place / "hard")
    ws.write("hard", b"new", LIMITS)
    assert (place / "hard").read_bytes() == b"new"


@pytest.mark.requirement("FS-1")
@pytest.mark.slow
def test_a_tree_deeper_than_descriptors_and_paths_is_removed(ws, place):
    fd = os.open(place, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=fd)
        deeper = os.open("deep", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    assert refused_code(ws.usage, max_entries=5000) == "CW-PATH-INVALID"
    ws.remove("deep", recursive=True)
    assert os.listdir(place) == []


def test_a_tree_closed_to_its_owner_is_removed(ws, place):
    ws.write("t/a/b/c", b"", LIMITS)
    for name in ("t/a/b", "t/a", "t"):
        (place / name).chmod(0)
    ws.remove("t", recursive=True)
    assert os.listdir(place) == []


class Flipper:
    """Swaps `d` between a directory and a link to the outside as fast as it can."""

    def __init__(self, place, outside):
        self.place, self.stop = os.fsencode(place), threading.Event()
        (place / "d").mkdir()
        (place / "d" / "canary").write_bytes(b"inside")
        (place / "link").symlink_to(outside)
        self.thread = threading.Thread(target=self.flip)

    def flip(self):
        exchange = ctypes.CDLL(None).renameat2
        one, other = self.place + b"/d", self.place + b"/link"
        while not self.stop.is_set():
            exchange(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


@pytest.mark.requirement("FS-1")
@pytest.mark.slow
def test_a_parent_swapped_for_a_link_in_a_race_never_leads_out(ws, place, outside):
    seen, naive = set(), set()
    with Flipper(place, outside):
        for turn in range(2000):
            path = "d/canary" if turn % 2 else "d/../d/canary"
            try:
                seen.add(ws.read(path, max_bytes=100))
            except WorkspaceError as error:
                seen.add(error.code)
            for call in (
                lambda: ws.write("d/canary", b"inside", LIMITS),
                lambda: ws.write("d/new", b"planted", LIMITS),
                lambda: ws.remove("d/new"),
                lambda: ws.stat("d/canary"),
            ):
                try:
                    call()
                except WorkspaceError as error:
                    seen.add(error.code)
        # The control: the same race does get a naive join out.
        for _ in range(200_000):
            try:
                with open(os.path.join(place, "d/canary"), "rb") as file:
                    naive.add(file.read())
            except OSError:
                continue
            if CANARY in naive:
                break
    assert CANARY in naive
    assert CANARY not in seen
    assert {b"inside", "CW-PATH-OUTSIDE"} <= seen


@pytest.mark.requirement("FS-1")
def test_recursive_removal_in_a_race_never_leads_out(ws, place, outside):
    with Flipper(place, outside):
        for _ in range(300):
            try:
                ws.write("d/sub/file", b"x", LIMITS)
                ws.remove("d/sub", recursive=True)
            except WorkspaceError:
                pass


# Things that are not files.


@pytest.mark.requirement("FS-7")
def test_only_regular_files_are_read_and_written(ws, place):
    os.mkfifo(place / "fifo")
    (place / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(place / "socket"))
        for name in ("fifo", "dir", "socket"):
            assert refused_code(ws.read, name, max_bytes=1) == "CW-NOT-A-FILE"
            assert refused_code(ws.write, name, b"", LIMITS) == "CW-NOT-A-FILE"
    assert stat.S_ISFIFO(os.lstat(place / "fifo").st_mode)


@pytest.mark.parametrize("path", ["", "a\0b", "a" * 256, "ü" * 128, "a/" * 2049, "\ud800"])
def test_impossible_paths_are_refused(ws, path):
    for call in (ws.stat, ws.list, ws.exists, ws.remove):
        assert refused_code(call, path) == "CW-PATH-INVALID"


@pytest.mark.parametrize("path", [".", "/workspace", "a/..", "..", "new/../x"])
def test_the_root_and_dots_are_no_names_to_write_move_or_remove(ws, place, path):
    (place / "a").mkdir()
    calls = [lambda: ws.write(path, b"", LIMITS), lambda: ws.remove(path, recursive=True)]
    calls += [lambda: ws.move(path, "z"), lambda: ws.make_dir(path, max_files=9)]
    codes = {refused_code(call) for call in calls}
    assert codes == ({"CW-NOT-FOUND"} if path == "new/../x" else {"CW-PATH-INVALID"})
    assert os.listdir(place) == ["a"]


def test_names_that_are_no_text_are_listed_readably(ws, place):
    (place / os.fsdecode(b"bad\xff")).write_bytes(b"")
    assert [entry.path for entry in ws.list("/workspace")] == ["bad\\xff"]
    assert ws.usage(max_entries=1)[1] == 1


def test_messages_name_what_the_user_typed_and_no_host_path(ws, place):
    (place / "out").symlink_to("/etc/passwd")
    with pytest.raises(WorkspaceError) as caught:
        ws.read("/workspace/out", max_bytes=1)
    assert (caught.value.message, caught.value.hint) == (
        "'/workspace/out' leads out of its directory",
        "Use a path below /workspace or /tmp, without links that lead out.",
    )


@pytest.mark.requirement("ERR-1")
def test_every_error_of_the_kernel_has_a_hint():
    for number in (0, *errno.errorcode):
        error = from_os_error("a", OSError(number, ""))
        assert (error.message.startswith("'a' "), bool(error.hint)) == (True, True), number
    assert "/workspace" in from_os_error("a", FileNotFoundError(errno.ENOENT, "")).hint


def test_a_missing_root_is_told_without_its_path(tmp_path):
    with pytest.raises(WorkspaceError) as caught:
        FileTree.open(tmp_path / "secret-name")
    assert caught.value.code == "CW-WORKSPACE-MISSING"
    assert "secret-name" not in str(caught.value)


# Limits.


@pytest.mark.requirement("FS-3")
def test_size_count_and_extension_are_bounded_on_the_way_in(ws, place):
    def write(path, data=b"12345", **changed):
        limits = {"max_file_bytes": 5, "max_total_bytes": 1 << 20, "max_files": 3}
        limits |= {"blocked_extensions": {".exe", "tar.gz"}} | changed
        ws.write(path, data, WriteLimits(**limits))

    write("a/b/ok.txt")
    write("a/b/ok.txt", b"54321")  # replacing takes no room
    assert refused_code(write, "a/big", b"123456") == "CW-FILE-TOO-LARGE"
    assert refused_code(write, "c") == "CW-WORKSPACE-FULL"
    assert refused_code(ws.make_dir, "c", max_files=3) == "CW-WORKSPACE-FULL"
    assert refused_code(ws.make_dir, "c", max_files=2) == "CW-WORKSPACE-TOO-LARGE"
    assert refused_code(write, "c", max_files=9, max_total_bytes=100) == "CW-WORKSPACE-FULL"
    for name in ("x.exe", "X.EXE", "x.exe. .", "y.tar.gz", ".exe"):
        assert refused_code(write, name, max_files=9) == "CW-EXTENSION-BLOCKED"
        code = refused_code(ws.move, "a/b/ok.txt", name, blocked_extensions={"exe", "tar.gz"})
        assert code == "CW-EXTENSION-BLOCKED"
    (place / "link").symlink_to("x.exe")
    assert refused_code(write, "link", max_files=9) == "CW-EXTENSION-BLOCKED"
    assert sorted(step.path for step in ws.walk(max_entries=99)) == [
        "a",
        "a/b",
        "a/b/ok.txt",
        "link",
    ]


@pytest.mark.requirement("FS-7")
def test_reads_listings_and_walks_are_bounded(ws):
    ws.write("a", b"12345", LIMITS)
    ws.write("b", b"", LIMITS)
    assert ws.read("a", max_bytes=5) == b"12345"
    assert refused_code(ws.read, "a", max_bytes=4) == "CW-FILE-TOO-LARGE"
    assert refused_code(ws.list, ".", max_entries=1) == "CW-WORKSPACE-TOO-LARGE"
    assert refused_code(lambda: list(ws.walk(max_entries=1))) == "CW-WORKSPACE-TOO-LARGE"


def test_usage_counts_blocks_not_claims(ws, place):
    with open(place / "sparse", "wb") as file:
        file.truncate(1 << 30)
    used_bytes, count = ws.usage(max_entries=10)
    assert (used_bytes < 1 << 20, count) == (True, 1)


@pytest.mark.parametrize(
    ("name", "extensions", "blocked"),
    [
        ("a.exe", {"exe"}, True),
        ("a.exe.txt", {"exe"}, False),
        ("exe", {"exe"}, False),
        ("a.EXE ", {".exe"}, True),
        ("a.txt", (), False),
    ],
)
def test_extension_is_the_end_of_the_name(name, extensions, blocked):
    assert is_blocked(name, extensions) is blocked


WRITER = """
import sys
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits
ws = FileTree.open(sys.argv[1])
limits = WriteLimits(max_file_bytes=1 << 20, max_total_bytes=1 << 30, max_files=99)
print("ready", flush=True)
while True:
    for letter in (b"a", b"b"):
        ws.write("file", letter * 500_000, limits)
"""


@pytest.mark.requirement("FS-7")
@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(ws, place):
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, place], stdout=subprocess.PIPE
        ) as writer:
            writer.stdout.readline()
            seen = set()
            while len(seen) < 2:  # both versions were there: it is in the middle of its work
                try:
                    data = ws.read("file", max_bytes=1 << 20)
                except WorkspaceError:
                    continue
                seen.add(data)
            writer.send_signal(signal.SIGKILL)
        assert seen | {ws.read("file", max_bytes=1 << 20)} == {b"a" * 500_000, b"b" * 500_000}


def test_a_failed_write_leaves_nothing_behind(ws, place, monkeypatch):
    ws.write("file", b"old", LIMITS)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cellwall.sandbox.files.file_tree.write_all", full)
    assert refused_code(ws.write, "file", b"new", LIMITS) == "CW-DISK-FULL"
    assert {name: (place / name).read_bytes() for name in os.listdir(place)} == {"file": b"old"}


# Protected names (FS-4) in the file API.


@pytest.mark.requirement("FS-4")
def test_protected_names_are_kept_from_the_file_api_behind_any_link(place):
    (place / ".git" / "hooks").mkdir(parents=True)
    (place / ".env").write_bytes(b"KEY=1")
    (place / "plain").symlink_to(".env")
    (place / "g").symlink_to(".git")
    (place / "x" / "hooks").mkdir(parents=True)
    with FileTree.open(place, access_check=access_check_for(load())) as ws:
        assert [entry.name for entry in ws.list()] == [".git", "g", "plain", "x"]
        calls = [lambda p=p: ws.read(p, max_bytes=9) for p in (".env", "plain", "x/../.env")]
        calls += [
            lambda p=p: ws.write(p, b"", LIMITS)
            for p in ("plain", "g/hooks/post", ".git/config", ".claude/settings.json", "a/.ssh/k")
        ]
        calls += [lambda p=p: ws.remove(p, recursive=True) for p in (".git", ".env", "g/hooks")]
        calls += [lambda: ws.move(".git", "y"), lambda: ws.move("x", "g/modules")]
        calls += [lambda: ws.move("x", ".git2") or ws.move(".git2", ".git/modules")]
        codes = [refused_code(call) for call in calls[:-2]]
        assert set(codes) == {"CW-PATH-PROTECTED"}
        ws.move("x", "y")
        ws.write("y/free.txt", b"ok", LIMITS)
    assert sorted(os.listdir(place)) == [".env", ".git", "g", "plain", "y"]


@pytest.mark.requirement("FS-4")
def test_a_directory_is_not_moved_to_where_its_content_would_be_protected(place):
    (place / "x" / "hooks").mkdir(parents=True)
    (place / "x" / "hooks" / "pre-commit").write_bytes(b"")
    with FileTree.open(place, access_check=access_check_for(load())) as ws:
        assert refused_code(ws.move, "x", ".git") == "CW-PATH-PROTECTED"
        assert refused_code(ws.move, "x/hooks", "x/.husky") == "CW-PATH-PROTECTED"
        ws.move("x", "y")


# Paths as pure text.


@given(st.text(max_size=60))
def test_any_text_is_a_plain_relative_path_or_a_refusal(text):
    try:
        inner = inner_path(text)
    except WorkspaceError as error:
        assume(error.code not in {"CW-PATH-INVALID", "CW-PATH-OUTSIDE"})
        raise
    assert not inner.startswith("/")
    assert inner == "." or not {"", "."} & set(inner.split("/"))
    assert inner_path(inner) == inner_path("/workspace/" + inner) == inner
