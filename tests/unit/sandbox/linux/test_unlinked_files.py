"""What processes hold: files without a name, wherever they are and counted once; locks (LIM-6)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest

from cellwall.core.limits import MIB
from cellwall.core.sandbox_ports import UnlinkedFiles
from cellwall.sandbox.linux import cgroups, unlinked_files
from cellwall.sandbox.linux.kernel_memory import count_locks
from cellwall.sandbox.linux.proc_usage import tables_of
from cellwall.sandbox.linux.unlinked_files import BRIEF_SCAN, FULL_SCAN, find_unlinked_files
from conftest import need

_START = """
import array, ctypes, fcntl, mmap, os, signal, socket, struct, sys, threading
os.chdir(sys.argv[1])
def nameless():
    fd = os.open('a', os.O_RDWR | os.O_CREAT); os.unlink('a'); os.write(fd, bytes(1 << 20)); return fd
"""
_READY = "\nprint('ready', flush=True); sys.stdin.read()\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    need(cgroups.block_device(os.stat(tmp_path).st_dev), "a disk behind the temporary folder")
    return tmp_path


def _a_scan(descriptors: int = FULL_SCAN.descriptors) -> unlinked_files._UnlinkedScan:
    return unlinked_files._UnlinkedScan(descriptors, FULL_SCAN.maps_bytes)


@contextmanager
def process(place: Path, code: str) -> Iterator[int]:
    words = [sys.executable, "-I", "-c", _START + code + _READY, str(place)]
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.communicate(timeout=30)


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize(
    ("code", "files", "is_partial"),
    [
        ("", 0, False),
        ("fd = nameless()", 1, False),
        ("fd = nameless(); copy = os.dup(fd); m = mmap.mmap(fd, 4096)", 1, False),
        ("fds = [nameless(), nameless()]", 2, False),
        ("fd = os.open('c', os.O_RDWR | os.O_CREAT); os.write(fd, bytes(1 << 20))", 0, False),
        ("fd = os.memfd_create('x'); os.write(fd, bytes(1 << 20))", 0, False),
        ("m = mmap.mmap(-1, 1 << 20); m.write(bytes(1 << 20))", 0, False),
        ("a, b = socket.socketpair(); a.send(b'x')", 0, False),
        ("a, b = socket.socketpair(); fd = nameless(); socket.send_fds(a, [b'x'], [fd])", 1, True),
        ("a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0]); socket.recv_fds(b, 1, 1)", 0, False),
        ("ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); fd = nameless()", 1, None),
    ],
    ids=[
        "nothing", "one", "one, three times", "two", "with a name", "memfd",
        "anonymous memory", "socket", "in flight and open", "received", "not dumpable",
    ],
)  # fmt: skip
def test_what_a_process_holds(place: Path, code: str, files: int, is_partial: bool | None) -> None:
    if code.startswith("ctypes"):
        need(os.geteuid() == 0, "root")
    with process(place, code) as pid:
        found = find_unlinked_files(lambda: [pid])
    assert (found.count, found.used_bytes) == (files, files * MIB)
    assert is_partial is None or found.is_partial is is_partial


@pytest.mark.requirement("LIM-6")
def test_a_mapping_alone_holds_a_file(place: Path) -> None:
    need(os.geteuid() == 0, "root: others may not look behind a mapping")
    with process(place, "fd = nameless(); m = mmap.mmap(fd, 4096); os.close(fd)") as pid:
        assert find_unlinked_files(lambda: [pid]) == UnlinkedFiles(MIB, 1, is_partial=False)


@pytest.mark.requirement("LIM-6")
def test_a_thread_with_a_table_of_its_own_is_looked_at(place: Path) -> None:
    code = (
        "done, ended = threading.Event(), threading.Event()\n"
        "def work():\n    ctypes.CDLL(None).syscall(436, 1000, 1001, 2)\n"
        "    fd = nameless(); done.set(); ended.wait()\n"
        "threading.Thread(target=work, daemon=True).start(); done.wait()"
    )
    with process(place, code) as pid:
        assert len(list(tables_of(pid))) == 2
        assert find_unlinked_files(lambda: [pid]).used_bytes == MIB


@pytest.mark.requirement("LIM-6")
def test_a_file_that_two_processes_hold_counts_once(place: Path) -> None:
    code = "fd = nameless(); child = os.fork()\nif child == 0: signal.pause()"
    with process(place, code + "\nprint(child, file=open('pid', 'w'))") as pid:
        child = int((place / "pid").read_text())
        found = find_unlinked_files(lambda: [pid, child])
        os.kill(child, 9)
    assert (found.count, found.used_bytes) == (1, MIB)


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("pids", [[0], [2**22 + 1]], ids=["not shown", "gone"])
def test_a_process_that_cannot_be_seen_is_no_error(pids: list[int]) -> None:
    assert find_unlinked_files(lambda: pids) == UnlinkedFiles(0, 0, is_partial=pids == [0])


@pytest.mark.requirement("LIM-6")
def test_a_process_that_comes_during_the_look_is_looked_at(place: Path) -> None:
    with process(place, "") as old, process(place, "fd = nameless()") as new:
        lists = iter([[old], [old, new], [old, new]])
        assert find_unlinked_files(lambda: next(lists)).used_bytes == MIB


@pytest.mark.requirement("LIM-6")
def test_processes_that_are_never_caught_up_with_make_it_partial() -> None:
    gone = iter(range(2**22 + 1, 2**22 + 1000))
    assert find_unlinked_files(lambda: [next(gone)]).is_partial


MOUNTED = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, target, flags):
    assert libc.mount(source.encode(), target.encode(), None, flags, None) == 0, ctypes.get_errno()
assert libc.unshare(0x20000) == 0
mount('none', '/', 0x44000)
for name in ('host', 'mine', 'seen'): os.makedirs(f'usr/{name}')
def bind(source, target, flags):
    mount(source, target, 0x1000); mount('none', target, 0x1020 | flags)
"""


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize(
    ("flags", "others", "files"), [(1, 1, 0), (0, 1, 1), (1, 0, 1)],
    ids=["read-only", "writable", "read-only here, writable there"],
)  # fmt: skip
@pytest.mark.parametrize("last", ["", "m = mmap.mmap(fd, 4096, prot=1); os.close(fd)"])
def test_the_mount_tells_whose_a_replaced_file_is(
    place: Path, flags: int, others: int, files: int, last: str
) -> None:
    need(os.geteuid() == 0, "root: mounts")
    # Only the two mounts count: the test's own root is a writable mount of all that there is.
    code = (
        f"{MOUNTED}open('usr/host/f', 'wb').write(bytes(1 << 20)); os.link('usr/host/f', 'usr/f')\n"
        f"bind('usr/host', 'usr/mine', {flags}); bind('usr/host', 'usr/seen', {others})\n"
        "fd = os.open('usr/mine/f', os.O_RDONLY); os.unlink('usr/host/f'); os.unlink('usr/f')\n"
        f"{last}"
    )
    with process(place, code) as pid:
        real = unlinked_files._parse_mounts(Path(f"/proc/{pid}/mountinfo").read_bytes())
        bound = [mount for mount in real if b"/host/" in mount.root]
        assert len(bound) == 2  # the control
        look = _a_scan()
        look.scanned.append(pid)
        assert look.has_disk(place.stat().st_dev)  # reads the mounts
        look.host_mounts = unlinked_files._host_mounts(bound)
        unlinked_files._scan_tables(look, pid)
        unlinked_files._scan_mappings(look, pid)
    assert len(look.seen) == files


@pytest.mark.requirement("LIM-6")
def test_a_read_only_mount_that_shows_the_workspace_is_not_the_hosts() -> None:
    def mount(number: int, root: bytes, *, writable: bool = False) -> unlinked_files._MountLine:
        return unlinked_files._MountLine(number, 7, root, not writable, b"ext4")

    mounts = [
        mount(1, b"/usr/"), mount(2, b"/opt/"), mount(3, b"/opt/p/", writable=True),
        mount(4, b"/opt/p/.git/config/"), mount(5, b"/libfoo/", writable=True), mount(6, b"/lib/"),
    ]  # fmt: skip
    assert unlinked_files._host_mounts(mounts) == {1, 6}


@pytest.mark.requirement("LIM-6")
def test_more_descriptors_than_are_worth_a_look_make_it_partial(place: Path) -> None:
    with process(place, "fds = [os.dup(0) for _ in range(20)]") as pid:
        look = _a_scan(descriptors=5)
        unlinked_files._scan_tables(look, pid)
    assert look.is_partial


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize(
    "code",
    [
        "fds = [os.dup(0) for _ in range(200)]",
        "a = [mmap.mmap(-1, 4096, prot=1 + n % 2) for n in range(3000)]",
        "for _ in range(7):\n    if os.fork() == 0: signal.pause()",
    ],
    ids=["descriptors", "mappings", "processes"],
)
def test_a_brief_scan_leaves_much_work_to_a_thread(place: Path, code: str) -> None:
    with process(place, "") as little, process(place, code) as much:
        children = Path(f"/proc/{much}/task/{much}/children").read_text().split()
        pids = [much, *map(int, children)]
        assert not find_unlinked_files(lambda: [little], BRIEF_SCAN).is_partial  # the control
        assert find_unlinked_files(lambda: pids, BRIEF_SCAN).is_partial
        assert not find_unlinked_files(lambda: pids).is_partial
        for pid in pids[1:]:
            os.kill(pid, 9)


@pytest.mark.requirement("LIM-6")
def test_locks_are_counted_for_the_process_that_holds_them(place: Path) -> None:
    code = (
        "fds = [os.open(f'l{n}', os.O_RDWR | os.O_CREAT) for n in range(10)]\n"
        "for fd in fds:\n    for n in range(20):\n"
        "        fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 4 * n, 1, 0))\n"
        "fcntl.flock(0, fcntl.LOCK_SH)"
    )
    with process(place, code) as pid, process(place, "") as other:
        assert count_locks([pid, other], most=1000) == 201
        assert count_locks([other], most=1000) == 0
        assert 50 < count_locks([pid], most=50) <= 71
