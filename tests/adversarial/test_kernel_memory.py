"""What the kernel does not charge to a cgroup is bounded as well (LIM-6).

Each attack has a control: the same program under a larger limit, in a smaller amount, or outside of
any cell takes what it says. So it was the limit that ended it, and there was something to end.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

import cellwall
from cellwall.sandbox.linux import cgroups, kernel_memory, run_monitor
from conftest import need

MIB = 1 << 20
_CONTROLS = 3


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A directory behind which there is a disk: /tmp may be memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="cellwall-disk-") as folder:
        need(cgroups.block_device(os.stat(folder).st_dev), "a disk behind /var/tmp")
        yield Path(folder)


def outside(code: str) -> str:
    """The control: the same text, without walls."""
    words = [os.path.realpath(sys.executable), "-I", "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


# --- files without a name

_HOLD = """
import ctypes, mmap, os, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def nameless(count):
    fd = os.open('held', os.O_RDWR | os.O_CREAT)
    os.unlink('held')
    fill(fd, count)
    return fd

def fill(fd, count):
    try:
        for _ in range(count): os.write(fd, bytes(1 << 20))
    except OSError: time.sleep(PAUSE)  # a program that ends gives the space back

def end(): print('held', flush=True); time.sleep(PAUSE)
"""
_HOLDERS = {
    "unlinked": "fd = nameless(AMOUNT); end()",
    "O_TMPFILE": (
        "fd = os.open('.', os.O_RDWR | os.O_TMPFILE)\n"
        "fill(fd, AMOUNT); end()"
    ),
    "many small ones": "fds = [nameless(1) for _ in range(AMOUNT)]; end()",
    "mapped, and closed": "fd = nameless(AMOUNT); m = mmap.mmap(fd, 4096); os.close(fd); end()",
    "in flight in a socket": (
        "a, b = socket.socketpair()\nfor _ in range(AMOUNT // 4):\n"
        "    fd = nameless(4); socket.send_fds(a, [b'x'], [fd]); os.close(fd)\nend()"
    ),
    "in flight in a socket in flight": (
        "a, b = socket.socketpair(); c, d = socket.socketpair()\nfor _ in range(AMOUNT // 4):\n"
        "    fd = nameless(4); socket.send_fds(a, [b'x'], [fd]); os.close(fd)\n"
        "socket.send_fds(c, [b'x'], [b.fileno()]); b.close(); end()"
    ),
    "in a process that cannot be dumped": (
        "if os.fork() == 0:\n    libc.prctl(4, 0, 0, 0, 0); fd = nameless(AMOUNT); end(); os._exit(0)\n"
        "os.wait()"
    ),
    "handed on from process to process": (
        "fd = nameless(AMOUNT); print('held', flush=True); end_at = time.monotonic() + PAUSE\n"
        "if os.fork():\n    os.close(fd); time.sleep(PAUSE); os._exit(0)\n"
        "while time.monotonic() < end_at:\n    if os.fork(): time.sleep(0.001); os._exit(0)"
    ),
    "in a thread with a table of its own": (
        # CLOSE_RANGE_UNSHARE
        "def work():\n    assert libc.syscall(436, 1000, 1001, 2) == 0\n    fd = nameless(AMOUNT); end()\n"
        "t = threading.Thread(target=work); t.start(); t.join()"
    ),
}  # fmt: skip


def _hold(holder: str, amount: int, *, pause_s: float) -> str:
    code = _HOLD + _HOLDERS[holder]
    return code.replace("AMOUNT", str(amount)).replace("PAUSE", str(pause_s))


def _run_holder(
    holder: str, *, workspace: str | None, limit_mib: int, pause_s: float, memory: str = "256m"
) -> tuple[str, str | None]:
    done = cellwall.run_code(
        _hold(holder, 48, pause_s=pause_s),
        workspace=workspace,
        memory=memory,
        timeout=30,
        limits={"disk_bytes": limit_mib * MIB, "cpu_s": 30},
    )
    assert done.status == "limit" or done.stdout == "held\n", (done.stderr, done.error)
    return done.status, done.limit


def _is_ended_by_disk(holder: str, workspace: str) -> bool:
    # The free space of the disk decides about files in flight, and other tests give space back at
    # the same time: one of three tries is quiet.
    tries = _CONTROLS if holder == "in flight in a socket" else 1
    found = (
        _run_holder(holder, workspace=workspace, limit_mib=16, pause_s=60) for _ in range(tries)
    )
    return ("limit", "disk") in found


@pytest.mark.requirement("LIM-6", "LIM-2")
@pytest.mark.parametrize("holder", _HOLDERS)
def test_a_file_without_a_name_counts_as_disk(holder: str, on_disk: Path) -> None:
    place = f"{on_disk}:rw"
    # What is in flight cannot be seen, so the free space of the disk decides, and other tests use
    # that as well: one of three tries is quiet.
    tries = (
        _run_holder(holder, workspace=place, limit_mib=128, pause_s=0.2) for _ in range(_CONTROLS)
    )
    assert ("ok", None) in tries
    assert _is_ended_by_disk(holder, place)


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("holder", ["unlinked", "O_TMPFILE", "in flight in a socket"])
def test_a_file_without_a_name_counts_in_a_copy_on_write_workspace(
    holder: str, on_disk: Path
) -> None:
    place = f"{on_disk}:cow"
    assert _run_holder(holder, workspace=place, limit_mib=128, pause_s=0.2) == ("ok", None)
    assert _is_ended_by_disk(holder, place)


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("memory", ["256m", "15m"], ids=["in memory", "on disk"])
def test_a_file_without_a_name_counts_in_a_private_workspace(memory: str) -> None:
    # Less memory than disk: the workspace is a folder on the disk.
    if memory == "256m":
        assert _run_holder("unlinked", workspace=None, limit_mib=128, pause_s=0.2) == ("ok", None)
    over = _run_holder("unlinked", workspace=None, limit_mib=16, pause_s=60, memory=memory)
    assert over == ("limit", "disk")


@pytest.mark.requirement("LIM-6")
def test_a_file_without_a_name_counts_in_tmp() -> None:
    code = "import os; os.chdir('/tmp')\n" + _hold("unlinked", 48, pause_s=0.1)
    limits = [cellwall.run_code(code, limits={"disk_bytes": n * MIB}).limit for n in (128, 16)]
    assert limits == [None, "disk"]


@pytest.mark.requirement("LIM-6")
def test_a_file_without_a_name_counts_in_a_live_sandbox() -> None:
    limits = {"disk_bytes": 16 * MIB, "cpu_s": 60}
    with cellwall.Sandbox.create(limits=limits, timeout=30) as sandbox:
        assert sandbox.run_code(_hold("unlinked", 8, pause_s=0.1)).status == "ok"
        # The first 8 MiB are still held by a variable of the interpreter: both count together.
        over = sandbox.run_code(_hold("unlinked", 12, pause_s=60).replace("fd =", "other ="))
        assert (over.status, over.limit) == ("limit", "disk")


@pytest.mark.requirement("LIM-6")
def test_a_file_without_a_name_counts_while_nobody_calls() -> None:
    limits = {"disk_bytes": 16 * MIB, "cpu_s": 60}
    with cellwall.Sandbox.create(limits=limits, timeout=30) as sandbox:
        sandbox.files.write("small.py", _hold("unlinked", 4, pause_s=0.1))
        sandbox.files.write("large.py", _hold("unlinked", 48, pause_s=600))
        small = sandbox.commands.run("python3 small.py", background=True)
        assert small.wait().exit_code == 0
        large = sandbox.commands.run("python3 large.py", background=True)
        assert large.wait(timeout=25).exit_code == 128 + 9


@pytest.mark.requirement("LIM-6")
def test_files_that_programs_unlink_and_give_back_are_no_offence(on_disk: Path) -> None:
    code = (
        "import tempfile\nfor _ in range(40):\n"
        "    with tempfile.TemporaryFile(dir='.') as f: f.write(bytes(4 << 20)); f.flush()"
    )
    limits = {"disk_bytes": 16 * MIB, "cpu_s": 30}
    done = cellwall.run_code(code, workspace=f"{on_disk}:rw", limits=limits, timeout=30)
    assert (done.status, done.stderr) == ("ok", "")


_PROMISE = """
import ctypes, os, resource, struct
libc = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
fd, size = os.open(PLACE, os.O_RDWR | os.O_CREAT | os.O_TRUNC), 64 << 20
span = ctypes.create_string_buffer(struct.pack('hhxxxxqqiI16x', 0, 0, 0, size, 0, 0))
print(CALL, os.fstat(fd).st_blocks * 512 >= size)
"""
_PROMISES = {
    "fallocate": "libc.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(size))",  # KEEP_SIZE
    "FS_IOC_RESVSP": "libc.ioctl(fd, ctypes.c_ulong(0x40305828), span)",
    "FS_IOC_RESVSP64": "libc.ioctl(fd, ctypes.c_ulong(0x4030582A), span)",
}


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("name", _PROMISES)
def test_blocks_cannot_be_promised_past_the_file_size_limit(name: str, on_disk: Path) -> None:
    code = _PROMISE.replace("CALL", _PROMISES[name])
    assert outside(code.replace("PLACE", repr(f"{on_disk}/a"))) == "0 True\n"
    place = f"{on_disk}:rw"
    done = cellwall.run_code(code.replace("PLACE", "'b'"), workspace=place)
    assert (done.status, done.stdout) == ("ok", "-1 False\n")
    # Whoever asks through libc gets blocks, written one by one.
    asked = "import os; fd = os.open('c', os.O_RDWR | os.O_CREAT); os.posix_fallocate(fd, 0, 1 << 20); print(os.fstat(fd).st_blocks * 512 >= 1 << 20)"
    assert cellwall.run_code(asked, workspace=place).stdout == "True\n"


# --- locks

_LOCKS = """
import fcntl, os, struct, time
os.chdir(PLACE)
fds = [os.open(f'lock{n}', os.O_RDWR | os.O_CREAT) for n in range(500)]
made, start = 0, 1 << 40
while made < AMOUNT:
    start -= 4  # from the end to the front, so that the kernel finds the place at once
    for fd in fds:
        fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, start, 1, 0))
    made += len(fds)
print('made', flush=True); time.sleep(PAUSE)
"""


def _locks(amount: int, *, place: str = ".", pause_s: float = 0) -> str:
    code = _LOCKS.replace("AMOUNT", str(amount)).replace("PLACE", repr(place))
    return code.replace("PAUSE", str(pause_s))


@pytest.mark.requirement("LIM-6", "LIM-2")
def test_a_million_file_locks_end_with_the_memory_limit(tmp_path: Path) -> None:
    # The kernel has a limit by that name, and does not keep it.
    resource_limit = "import resource; resource.setrlimit(resource.RLIMIT_LOCKS, (10, 10))\n"
    if hasattr(resource, "RLIMIT_LOCKS"):
        assert outside(resource_limit + _locks(1000, place=str(tmp_path))) == "made\n"
    below = cellwall.run_code(_locks(4000), timeout=30)
    assert (below.status, below.stdout) == ("ok", "made\n")
    over = cellwall.run_code(_locks(1_000_000, pause_s=60), timeout=60, limits={"cpu_s": 60})
    assert (over.status, over.limit, over.stdout) == ("limit", "memory", "")


@pytest.mark.requirement("LIM-6")
def test_locks_of_a_live_sandbox_are_bounded() -> None:
    with cellwall.Sandbox.create(timeout=60, limits={"cpu_s": 60}) as sandbox:
        assert sandbox.run_code(_locks(2000)).status == "ok"
        over = sandbox.run_code(_locks(1_000_000, pause_s=60))
        assert (over.status, over.limit) == ("limit", "memory")


@pytest.mark.requirement("LIM-6", "LIM-2")
@pytest.mark.parametrize(
    ("amount", "wait_s", "expected"), [(4_000, 5, ("ok", None)), (400_000, 50, ("limit", "memory"))]
)
def test_locks_in_the_background_are_bounded_whatever_runs_beside_them(
    amount: int,
    wait_s: float,
    expected: tuple[str, str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attack: short runs without pause, of which none lasts until its monitor counts. A run whose
    monitor never counts stands for them."""
    monkeypatch.setattr(run_monitor, "UnchargedMemory", _NeverDue)
    with cellwall.Sandbox.create(timeout=60, limits={"cpu_s": 60}) as sandbox:
        code = _locks(amount, pause_s=60)
        holder = sandbox.commands.run(["python3", "-c", code], background=True)
        beside = sandbox.commands.run(f"sleep {wait_s}")
        assert (beside.status.value, beside.limit) == expected
        if beside.limit is None:
            assert holder.info().is_running
        else:
            assert holder.wait(timeout=20).exit_code == 137


class _NeverDue(kernel_memory.UnchargedMemory):
    def is_due(self) -> bool:
        return False


@pytest.mark.requirement("LIM-6", "LIM-2")
def test_locks_of_somebody_else_end_nobody(tmp_path: Path) -> None:
    code = _locks(60_000, place=str(tmp_path)) + "input()\n"
    words = [sys.executable, "-I", "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        innocent = "import os, time; end = time.time() + 60\nwhile not os.path.exists('stop') and time.time() < end: time.sleep(0.05)"
        with cellwall.Sandbox.create(timeout=90) as sandbox:
            running = sandbox.commands.run(["python3", "-c", innocent], background=True)
            assert other.stdout is not None
            assert other.stdout.readline() == b"made\n"
            assert sandbox.run_code("import time; time.sleep(0.3)").status == "ok"
            sandbox.files.write("stop", "")
            assert running.wait().exit_code == 0
        other.communicate(b"\n", timeout=60)


_ELSEWHERE = {
    "lock of an open file description": (
        "import fcntl, os, struct\nfd = os.open(PLACE, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.fcntl(fd, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 1, 0))"
    ),
    "filter of a socket": (
        "import ctypes, socket, struct\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffff))\n"
        "s.setsockopt(1, 26, struct.pack('HxxxxxxQ', 1, ctypes.addressof(code)))"
    ),
    "lease": (
        "import fcntl, os\nfd = os.open(PLACE, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.fcntl(fd, 1024, fcntl.F_WRLCK)"
    ),
}  # fmt: skip


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("what", _ELSEWHERE)
def test_what_could_not_be_counted_cannot_be_made(what: str, tmp_path: Path) -> None:
    code = _ELSEWHERE[what]
    outside(code.replace("PLACE", repr(str(tmp_path / "a"))))  # raises where it does not work
    done = cellwall.run_code(code.replace("PLACE", "'a'"))
    assert done.status == "failed"
    assert "OSError" in done.stderr or "PermissionError" in done.stderr


# --- sockets

_TCP = """
import socket
listener = socket.create_server(('127.0.0.1', 0), backlog=500)
pairs, sent = [], 0
for _ in range(60):
    one = socket.create_connection(listener.getsockname()); other, _ = listener.accept()
    pairs.append((one, other)); one.setblocking(False)
    try:
        while True: sent += one.send(bytes(1 << 16))
    except BlockingIOError: pass
print(sent)
"""
_UDP = """
import socket
sender, kept, got = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), [], 0
for _ in range(400):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); one.bind(('127.0.0.1', 0)); kept.append(one)
    for _ in range(4): sender.sendto(bytes(40000), one.getsockname())
for one in kept:
    one.setblocking(False)
    try:
        while True: got += len(one.recv(1 << 16))
    except BlockingIOError: pass
print(got)
"""


@pytest.mark.requirement("LIM-6")
@pytest.mark.parametrize("code", [_TCP, _UDP], ids=["tcp", "udp"])
def test_socket_buffers_are_bounded_with_the_memory(code: str) -> None:
    need(cgroups.choose(cgroups.gather()).way == "v1-root", "cgroup v1: v2 counts them as memory")
    small, large = (cellwall.run_code(code, memory=memory, timeout=30) for memory in ("64m", "1g"))
    assert (small.status, large.status) == ("ok", "ok")
    assert int(small.stdout) < 24 * MIB < 36 * MIB < int(large.stdout)


_NETLINK = """
import socket, struct, time
# One answer to each question, which nobody reads: RTM_GETLINK of the loopback.
ask = struct.pack('IHHIIBxHiII', 32, 18, 1, 1, 0, 0, 0, 1, 0, 0)
kept = []
for _ in range(AMOUNT):
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); kept.append(one)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24); one.setblocking(False)
    try:
        for _ in range(3000): one.send(ask)
    except OSError: pass
print('made', flush=True); time.sleep(PAUSE)
"""


@pytest.mark.requirement("LIM-6")
def test_netlink_queues_end_with_the_memory_limit() -> None:
    below = cellwall.run_code(_NETLINK.replace("AMOUNT", "1").replace("PAUSE", "0.2"))
    assert (below.status, below.stdout) == ("ok", "made\n")
    code = _NETLINK.replace("AMOUNT", "200").replace("PAUSE", "60")
    over = cellwall.run_code(code, timeout=60, limits={"cpu_s": 60})
    assert (over.status, over.limit) == ("limit", "memory")


# --- pseudo-terminals

_TERMINALS = """
import os
made = []
try:
    for _ in range(100): made.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
except OSError: pass
print(len(made))
"""


@pytest.mark.requirement("LIM-6")
def test_a_cell_cannot_take_all_terminals_of_the_host() -> None:
    assert outside(_TERMINALS) == "100\n"
    assert cellwall.run_code(_TERMINALS).stdout == "64\n"


# --- forced write-back


def _dirty_pages(descriptor: int) -> int:
    """cachestat(2), of all of the file."""
    span, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(451, descriptor, ctypes.byref(span), ctypes.byref(found), 0)
    need(done == 0, "cachestat (Linux 6.5)")
    return found[1] + found[2]  # dirty, and on the way


@pytest.mark.requirement("LIM-6")
def test_a_cell_cannot_make_the_host_write_back(on_disk: Path) -> None:
    (on_disk / "shared").mkdir()
    code = (
        "import ctypes, json, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "fd = os.open('.', os.O_RDONLY)\n"
        "os.sync(); print(json.dumps([libc.sync(), libc.syncfs(fd)]))"
    )
    with open(on_disk / "other people's", "wb") as file:
        # Somebody else may sync the host just then; nobody does so every time.
        assert any(_stays_dirty(file, code, on_disk / "shared") for _ in range(5))
        file.write(bytes(4 * MIB))
        file.flush()
        os.sync()
        assert _dirty_pages(file.fileno()) == 0


def _stays_dirty(file: BinaryIO, code: str, shared: Path) -> bool:
    file.write(bytes(4 * MIB))
    file.flush()
    if _dirty_pages(file.fileno()) == 0:
        return False
    done = cellwall.run_code(code, workspace=f"{shared}:rw")
    assert (done.status, json.loads(done.stdout)) == ("ok", [0, 0])
    return _dirty_pages(file.fileno()) > 0


_FORCED = """
import os, time
fd, end, count = os.open('a', os.O_RDWR | os.O_CREAT), time.monotonic() + 1.5, 0
while time.monotonic() < end:
    os.pwrite(fd, b'x' * 4096, 0); os.fdatasync(fd); count += 1
print(count)
"""


@pytest.mark.requirement("LIM-6", "LIM-3")
def test_forced_writes_are_bounded_by_number(on_disk: Path) -> None:
    choice = cgroups.choose(cgroups.gather())
    need({"blkio", "io"} & choice.bases.keys(), "a cgroup controller for I/O")

    def forced_writes(mib_per_s: int) -> int:
        limits = {"io_bytes_per_s": mib_per_s * MIB}
        done = cellwall.run_code(_FORCED, workspace=f"{on_disk}:rw", limits=limits)
        assert done.status == "ok"
        return int(done.stdout)

    # While other processes write, the disk itself may be slower than the limit.
    fast = next((n for n in (forced_writes(1024) for _ in range(20)) if n > 600), 0)
    need(fast, "a disk that can do more than a few writes in a second")
    assert forced_writes(8) * 3 < fast


def test_ordinary_locks_and_files_work() -> None:
    code = (
        "import fcntl, sqlite3, tempfile, os\n"
        "db = sqlite3.connect('a.db'); db.execute('create table t (n)')\n"
        "for n in range(50):\n    with db: db.execute('insert into t values (?)', (n,))\n"
        "with tempfile.TemporaryFile() as f: fcntl.lockf(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_SH)\n"
        "os.sync(); print(db.execute('select count(*) from t').fetchone()[0])"
    )
    assert cellwall.run_code(code).stdout == "50\n"
