"""What all programs of a host share in its kernel, and a cell cannot hide in or use up (LIM-6).

Each attack has a control: a smaller amount of the same ends by itself, or it works outside.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellwall
from cellwall.sandbox.linux import cgroups
from conftest import need

MIB = 1 << 20


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


# --- locks in a table of descriptors that is handed on


@pytest.mark.requirement("LIM-6")
def test_no_other_process_can_keep_a_table_of_descriptors() -> None:
    # CLONE_FILES | SIGCHLD: the child makes locks and ends, the table stays; then a child of it, …
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"pid = libc.syscall({clone}, FLAGS, 0, 0, 0, 0)\n"
        "if pid == 0: os._exit(0)\nprint(pid > 0)"
    )
    assert outside(code.replace("FLAGS", "0x411")) == "True\n"
    told = [cellwall.run_code(code.replace("FLAGS", flags)).stdout for flags in ("0x411", "0x11")]
    assert told == ["False\n", "True\n"]


_HANDED_ON = """
import ctypes, fcntl, os, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
fds = [os.open(f'lock{n}', os.O_RDWR | os.O_CREAT) for n in range(200)]
made, until, done = 0, time.monotonic() + PAUSE, threading.Event()
def work():
    global made
    if not made: assert libc.syscall(436, 4000, 4001, 2) == 0  # CLOSE_RANGE_UNSHARE: a table of its own
    for _ in range(100):
        made += 1
        if made > AMOUNT: break
        fcntl.fcntl(fds[made % 200], fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, (1 << 40) - 4 * made, 1, 0))
    if made > AMOUNT: time.sleep(0.0005)
    if time.monotonic() < until: threading.Thread(target=work).start()
    else: done.set()
threading.Thread(target=work).start(); done.wait(); print('made')
"""


@pytest.mark.requirement("LIM-6")
@pytest.mark.only_on("warm", reason="counted from outside, in both alike")
def test_locks_in_a_table_that_threads_hand_on_are_counted() -> None:
    def run(amount: int, pause_s: float) -> cellwall.Result:
        code = _HANDED_ON.replace("AMOUNT", str(amount)).replace("PAUSE", str(pause_s))
        return cellwall.run_code(code, timeout=60, limits={"cpu_s": 60})

    below = run(4000, 0.3)
    assert (below.status, below.stdout) == ("ok", "made\n"), below.stderr
    over = run(45_000, 50)
    assert (over.status, over.limit) == ("limit", "memory")


# --- signals and timers

_SIGNALS = """
import ctypes, os, signal, struct, time
libc, made, timer = ctypes.CDLL(None, use_errno=True), 0, ctypes.c_int()
create = {'x86_64': 222, 'aarch64': 107}[os.uname().machine]
while made < 20000 and libc.syscall(create, 0, 0, ctypes.byref(timer)) == 0: made += 1
print(made)
"""


@pytest.mark.requirement("LIM-6")
def test_a_cell_cannot_take_all_timers_and_pending_signals_of_its_uid() -> None:
    assert int(outside(_SIGNALS)) > 8192
    assert 8000 < int(cellwall.run_code(_SIGNALS).stdout) <= 8192


# --- the cache of files


def _cached_pages(descriptor: int) -> int:
    """cachestat(2), of all of the file."""
    span, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(451, descriptor, ctypes.byref(span), ctypes.byref(found), 0)
    need(done == 0, "cachestat (Linux 6.5)")
    return found[0]


@pytest.mark.requirement("LIM-6")
def test_a_cell_cannot_throw_files_of_the_host_out_of_its_cache(on_disk: Path) -> None:
    file = on_disk / "shared" / "program"
    file.parent.mkdir()
    file.write_bytes(bytes(4 * MIB))
    code = "import os\nfd = os.open('PLACEprogram', os.O_RDONLY)\nos.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)"
    with open(file, "rb") as opened:
        os.sync()  # only clean pages are thrown out; `os.fsync` waits for nothing in tests
        opened.read()
        cached = _cached_pages(opened.fileno())
        done = cellwall.run_code(code.replace("PLACE", ""), workspace=f"{file.parent}:ro")
        assert (done.status, _cached_pages(opened.fileno())) == ("ok", cached)
        outside(code.replace("PLACE", f"{file.parent}/"))
        assert _cached_pages(opened.fileno()) < cached
