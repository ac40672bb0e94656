"""Lists of processes are read in whole numbers: a cut one is somebody else's process (ISO-13)."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import termios
import threading
from pathlib import Path

import pytest

import cellwall
from cellwall.sandbox.linux import run_cgroup
from conftest import need

pytestmark = pytest.mark.requirement("ISO-8", "ISO-13")

_CELL = Path(cellwall.__file__).parent / "sandbox/linux/cell"
_MAIN = """
#include <stdio.h>
#include <sys/types.h>
void kill_listed(const char *path);
int kill(pid_t pid, int number) { printf("%d %d\\n", (int)pid, number); return 0; }
int main(int argc, char **argv) { if (argc > 1) kill_listed(argv[1]); return 0; }
"""


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C function with a `kill` that only tells."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    need(compiler, "a C compiler")
    folder = tmp_path_factory.mktemp("pids")
    (folder / "main.c").write_text(_MAIN)
    command = [str(compiler), f"-I{_CELL}", str(folder / "main.c"), str(_CELL / "pids.c")]
    subprocess.run([*command, "-o", str(folder / "killer")], check=True)
    return folder / "killer"


def killed(killer: Path, path: Path) -> list[int]:
    done = subprocess.run([str(killer), str(path)], capture_output=True, check=True, text=True)
    pairs = [line.split() for line in done.stdout.splitlines()]
    assert {number for _pid, number in pairs} <= {"9"}
    return [int(pid) for pid, _number in pairs]


@pytest.mark.parametrize("end", ["\n", " "])
@pytest.mark.parametrize("count", [1, 583, 584, 585, 586, 5000])
def test_a_list_of_any_length_is_read_whole(
    killer: Path, tmp_path: Path, count: int, end: str
) -> None:
    # With 4,096 bytes at once and 7 for each, some number lies over the edge.
    pids = [100_000 + number for number in range(count)]
    path = tmp_path / "procs"
    path.write_text("".join(f"{pid}{end}" for pid in pids))
    assert killed(killer, path) == pids


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("12345\n678", [12345]),
        ("678", []),
        ("", []),
        ("0\n1\n2\n", [2]),
        ("-5\n7\n", [7]),
        ("12x\n8\n", [8]),
        ("99999999999999999999999\n9\n", [9]),
        ("4194305\n4194304\n", [4194304]),
        ("\n\n 5  6\n", [5, 6]),
    ],
)
def test_only_numbers_with_an_end_are_killed(
    killer: Path, tmp_path: Path, text: str, pids: list[int]
) -> None:
    path = tmp_path / "procs"
    path.write_text(text)
    assert killed(killer, path) == pids


def write_in_parts(path: Path, parts: list[bytes]) -> threading.Thread:
    """Each part is read alone: the next is written when the pipe is empty again."""

    def work() -> None:
        with open(path, "wb", buffering=0) as file:
            for part in parts:
                file.write(part)
                while _waiting(file.fileno()):
                    os.sched_yield()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def _waiting(descriptor: int) -> bool:
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0] > 0


def test_numbers_that_come_in_two_reads_are_one(killer: Path, tmp_path: Path) -> None:
    path = tmp_path / "procs"
    os.mkfifo(path)
    thread = write_in_parts(path, [b"12", b"345\n67", b"\n8"])
    assert killed(killer, path) == [12345, 67]
    thread.join()


def test_python_reads_to_the_end_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "procs"
    os.mkfifo(path)
    thread = write_in_parts(path, [b"12", b"345\n67", b"\n"])
    assert run_cgroup.read_text(str(path)) == "12345\n67\n"
    thread.join()
    path.unlink()
    path.write_text("".join(f"{pid}\n" for pid in range(100_000, 130_000)))
    assert len(run_cgroup.read_text(str(path)).split()) == 30_000
    monkeypatch.setattr(run_cgroup, "_MAX_TEXT_BYTES", 65_536)
    assert {len(word) for word in run_cgroup.read_text(str(path)).split()} == {6}
