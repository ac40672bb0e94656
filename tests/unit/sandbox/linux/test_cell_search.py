"""The search for cells: what a forged ledger can make it believe, and cells without a shim (OBS-3)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cellwall.core.ids import new_id
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.cell_ending import end_cells, freeze_cells, is_frozen, thaw_cells
from cellwall.sandbox.linux.cell_search import CellSearch, find_cells
from cellwall.sandbox.linux.process_table import start_time
from cellwall.sandbox.linux.programs import cell_program
from cellwall.sandbox.linux.run_cgroup import write_control
from cellwall.sandbox.run_ledger import cell_tag
from conftest import need, ordinary_user

pytestmark = pytest.mark.requirement("OBS-3")


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that is no cell."""
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


def enter(ledger: Path, pid: int, started: int) -> str:
    name = new_id("act")
    (ledger / name).write_text(json.dumps({"shim": [pid, started], "groups": ["/"]}))
    return name


def test_an_entry_that_names_another_process_finds_nothing(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    enter(tmp_path, program.pid, start_time(program.pid))
    enter(tmp_path, os.getpid(), start_time(os.getpid()))
    enter(tmp_path, 1, start_time(1))
    enter(tmp_path, -1, 0)
    enter(tmp_path, 0, 0)
    assert find_cells(str(tmp_path), cell_tag(str(tmp_path))) == ()


@contextmanager
def waiting_shim(tag: str, *starter: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shim that waits for a plan. The kernel shows its arguments a moment after it started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = str(theirs.fileno())
    words = [*starter, cell_program(), "keep", number, number, tag]
    with ours, theirs, subprocess.Popen(words, pass_fds=[theirs.fileno()]) as shim:
        try:
            arguments = Path(f"/proc/{shim.pid}/cmdline")
            program = cell_program().encode()  # not the starter, which has the tag as well
            while not (shown := arguments.read_bytes()).startswith(program) or (
                tag.encode() not in shown
            ):
                assert shim.poll() is None
            yield shim
        finally:
            ours.close()  # a child of the shim ends with it
            shim.kill()


def test_a_shim_is_found_by_its_entry_and_by_its_tag_alone(tmp_path: Path) -> None:
    ledger, tag = str(tmp_path), cell_tag(str(tmp_path))
    with waiting_shim(tag) as shim:
        started = start_time(shim.pid)
        assert [cell.id for cell in find_cells(ledger, tag)] == [f"shim-{shim.pid}"]
        assert find_cells(ledger, "0" * 16) == ()  # another state folder's
        reused = enter(tmp_path, shim.pid, started + 1)
        assert [cell.id for cell in find_cells(ledger, tag)] == [f"shim-{shim.pid}"]
        (tmp_path / reused).unlink()
        name = enter(tmp_path, shim.pid, started)
        assert [cell.id for cell in find_cells(ledger, tag)] == [name]
        assert [cell.id for cell in find_cells(ledger, "0" * 16)] == [name]


# A child that has not executed bubblewrap yet has the name and the arguments of its shim.
SHIM_WITH_CHILD = """
import os, sys
os.fork()
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_child_of_a_shim_is_no_cell_of_its_own(tmp_path: Path) -> None:
    ledger, tag = str(tmp_path), cell_tag(str(tmp_path))
    with waiting_shim(tag, sys.executable, "-c", SHIM_WITH_CHILD) as shim:
        child = start_of_child(shim.pid)
        found = find_cells(ledger, tag)
        assert [cell.id for cell in found] == [f"shim-{shim.pid}"]
        assert [each.pid for cell in found for each in cell.processes] == [child]


def start_of_child(pid: int) -> int:
    """The pid of the only child, once it executes the program of the shim."""
    place = Path(f"/proc/{pid}/task/{pid}/children")
    while True:
        for child in place.read_text().split():
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(cell_program().encode()):
                return int(child)


def test_links_pipes_and_damaged_entries_are_skipped(tmp_path: Path) -> None:
    entry = tmp_path / "outside"
    entry.write_text(json.dumps({"shim": [os.getpid(), start_time(os.getpid())]}))
    ledger = tmp_path / "runs"
    ledger.mkdir()
    (ledger / new_id("act")).symlink_to(entry)
    (ledger / new_id("act")).symlink_to("/dev/zero")
    os.mkfifo(ledger / new_id("act"))
    (ledger / new_id("act")).mkdir()
    (ledger / new_id("act")).write_bytes(b"\xff{")
    (ledger / new_id("act")).write_text('{"shim": [true, "x", {}]}')
    (ledger / "name\nwith a newline").write_text('{"shim": [2, 0]}')
    assert find_cells(str(ledger), cell_tag(str(tmp_path))) == ()
    assert find_cells(str(tmp_path / "missing"), cell_tag(str(tmp_path))) == ()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A v2 group with the name of a cell of `tmp_path`, as the shim of a killed Cellwall leaves."""
    mounts = cgroups.gather().mounts
    unified = next((mount.point for mount in mounts if mount.version == 2), "")
    need(os.geteuid() == 0 and unified and os.access(unified, os.W_OK), "cgroup v2 for root")
    place = Path(unified, "cellwall", f"act_unit.{cell_tag(str(tmp_path))}")
    place.mkdir(parents=True)
    yield place
    with suppress(OSError):
        place.rmdir()


def test_cells_without_a_shim_are_found_by_their_cgroup(
    tmp_path: Path, group: Path, program: subprocess.Popen[bytes]
) -> None:
    need((group / "cgroup.freeze").exists(), "cgroup.freeze")
    forever = ["sh", "-c", "trap '' TERM INT; while :; do sleep 1; done"]
    with (
        subprocess.Popen(forever) as inside,
        CellSearch(str(tmp_path), cell_tag(str(tmp_path))) as search,
    ):
        write_control(str(group / "cgroup.procs"), str(inside.pid))
        (found,) = search.find()
        assert (found.id, found.shim, found.unified_groups) == ("act_unit", None, (str(group),))
        done = freeze_cells(search, within_s=30.0, before_each=lambda: None)
        assert (done.ids, done.left) == (("act_unit",), ())
        assert "frozen 1" in (group / "cgroup.events").read_text()
        assert all(map(is_frozen, search.find()))
        assert thaw_cells(search) == ("act_unit",)
        assert "frozen 0" in (group / "cgroup.events").read_text()
        freeze_cells(search, within_s=30.0, before_each=lambda: None)
        ended = end_cells(search, within_s=30.0, before_each=lambda: None)  # frozen as it is
        assert (ended.ids, ended.left) == (("act_unit",), ())
        assert inside.wait(30) == -signal.SIGKILL
    assert program.poll() is None  # in no group of ours
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
def test_a_cgroup_of_another_user_with_our_tag_is_no_cell_of_ours(
    tmp_path: Path, group: Path, program: subprocess.Popen[bytes]
) -> None:
    write_control(str(group / "cgroup.procs"), str(program.pid))
    search = (
        "import sys; from cellwall.sandbox.linux.cell_search import find_cells;"
        "print([cell.id for cell in find_cells('/nonexistent', sys.argv[1])])"
    )
    words = [sys.executable, "-c", search, cell_tag(str(tmp_path))]
    found = subprocess.check_output(words, cwd="/", text=True)
    assert found == "['act_unit']\n"  # the control: root may end it
    assert subprocess.check_output(words, cwd="/", text=True, **ordinary_user()) == "[]\n"
