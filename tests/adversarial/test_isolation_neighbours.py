"""Two sandboxes beside each other, and one after the other (ISO-7)."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import Verdicts, attack_names, given, judge, outside, source, system_calls

Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]
_PERSISTENT = ["file-in-tmp", "file-in-dev-shm", "file-in-workspace", "system-v-memory"]
_PERSISTENT += ["system-v-semaphore", "system-v-queue", "posix-queue"]


def _facts() -> dict[str, object]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    key = 0x48470000 | (os.getpid() & 0xFFFF)
    return {"mark": f"cellwall-held-{os.getpid()}", "port": port, "ipc_key": key}


@contextmanager
def _held_outside(facts: dict[str, object]) -> Iterator[str]:
    """The holder without walls; what it leaves on the host is removed at the end."""
    with tempfile.TemporaryDirectory() as workspace:
        holder = subprocess.Popen(
            [sys.executable, "-I", "-c", source("holder")],
            env=given(workspace=workspace, **facts),
            stdout=subprocess.PIPE,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            yield workspace
        finally:
            Path(workspace, "end").touch()
            holder.wait(10)
            holder.stdout.close()
            _tidy(facts)


def _tidy(facts: dict[str, object]) -> None:
    libc, mark, key = ctypes.CDLL(None), str(facts["mark"]), facts["ipc_key"]
    for path in (f"/tmp/{mark}", f"/tmp/{mark}.sock", f"/dev/shm/{mark}"):
        with suppress(FileNotFoundError):
            os.unlink(path)
    libc.shmctl(libc.shmget(key, 1, 0), 0, None)
    libc.semctl(libc.semget(key, 1, 0), 0, 0)
    libc.msgctl(libc.msgget(key, 0), 0, None)
    libc.syscall(ctypes.c_long(system_calls()["mq_unlink"]), mark.encode())


def _verdicts(ran: cellwall.Execution) -> Verdicts:
    assert (ran.status.value, ran.stderr) == ("ok", "")
    return {name: (kind, word) for name, (kind, word) in json.loads(ran.stdout).items()}


@contextmanager
def _held_inside(facts: dict[str, object]) -> Iterator[cellwall.Sandbox]:
    ready = threading.Event()
    with cellwall.Sandbox.create(timeout=60) as sandbox, ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            sandbox.run_code,
            source("holder"),
            envs={**given(**facts), "HELD": f"{facts['mark']}-variable"},
            on_stdout=lambda _text: ready.set(),
        )
        running.add_done_callback(lambda _: ready.set())  # it failed: do not wait for it
        assert ready.wait(20)
        assert not running.done(), running.result()
        try:
            yield sandbox
        finally:
            sandbox.files.write("end", "")
            ran = running.result(20)
        assert (ran.status.value, ran.stdout) == ("ok", "ready\n"), ran.stderr


@pytest.mark.requirement("ISO-7")
@pytest.mark.parametrize("name", attack_names("neighbours"))
@pytest.mark.table("name")
def test_concurrent_sandbox_sees_nothing_of_its_neighbour(
    name: str, path: str, remember: Remember
) -> None:
    facts = _facts()

    def without_walls() -> Verdicts:
        with _held_outside(facts) as workspace:
            return outside("neighbours", workspace=workspace, **facts)

    def beside() -> Verdicts:
        with _held_inside(facts):
            return _verdicts(cellwall.run_code(source("neighbours"), envs=given(**facts)))

    control = remember("neighbours", without_walls)
    judge(name, control, remember(("neighbours beside", path), beside))


@pytest.mark.requirement("ISO-7")
@pytest.mark.parametrize("name", _PERSISTENT)
def test_later_run_sees_no_leftover_of_an_earlier_one(
    name: str, path: str, remember: Remember
) -> None:
    """The control is the neighbour's: these things outlive their maker outside."""
    facts = _facts()

    def without_walls() -> Verdicts:
        with _held_outside(facts) as workspace:
            Path(workspace, "end").touch()
            return outside("neighbours", workspace=workspace, **facts)

    def after() -> Verdicts:
        with _held_inside(facts):
            pass
        return _verdicts(cellwall.run_code(source("neighbours"), envs=given(**facts)))

    judge(name, remember("leftover", without_walls), remember(("leftover after", path), after))


def _look(facts: dict[str, object]) -> dict[str, object]:
    """A program of the cell's own, which starts while the interpreter is busy."""
    return {"command": ["python3", "-c", source("neighbours")], "envs": given(**facts)}


def _through(ran: cellwall.Execution) -> set[str]:
    return {name for name, (kind, _) in _verdicts(ran).items() if kind == "through"}


@pytest.mark.requirement("ISO-7")
def test_only_the_same_sandbox_finds_what_another_command_of_it_has() -> None:
    """A sandbox is one cell for all its commands; every other cell is another world."""
    facts = _facts()
    with _held_inside(facts) as sandbox, cellwall.Sandbox.create() as other:
        within = _through(sandbox.commands.run(**_look(facts)))
        beside = {
            "a command of another sandbox": other.commands.run(**_look(facts)),
            "code of another sandbox": other.run_code(source("neighbours"), envs=given(**facts)),
            "a one-shot command": cellwall.run_command(**_look(facts)),
            "one-shot code": cellwall.run_code(source("neighbours"), envs=given(**facts)),
        }
        found = {who: _through(ran) for who, ran in beside.items()}
    # The control; a cell has no posix queue, see the holder.
    assert within == set(attack_names("neighbours")) - {"posix-queue"}
    assert found == {who: set() for who in beside}


@pytest.mark.requirement("ISO-7")
def test_one_shot_runs_beside_each_other_see_nothing_of_each_other(tmp_path: Path) -> None:
    """The holder is a one-shot run as well: cells of the same recipe, from the same template."""
    facts, ready = _facts(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(
            cellwall.run_code,
            source("holder"),
            envs={**given(**facts), "HELD": f"{facts['mark']}-variable"},
            workspace=f"{tmp_path}:rw",  # only by it can the holder be told to end
            on_stdout=lambda _text: ready.set(),
        )
        holding.add_done_callback(lambda _: ready.set())
        assert ready.wait(20)
        assert not holding.done(), holding.result()
        found = _through(cellwall.run_code(source("neighbours"), envs=given(**facts)))
        (tmp_path / "end").touch()
        held = holding.result(20)
    assert (held.status.value, held.stdout) == ("ok", "ready\n"), held.stderr
    assert found == set()


@pytest.mark.requirement("ISO-7", "ISO-10")
@pytest.mark.only_on("cold", reason="cells of one template share its host uid, as documented")
def test_concurrent_sandboxes_run_under_different_host_uids() -> None:
    """One uid for two cells would share quotas, and whatever the kernel keeps by uid."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has only one uid")
    code = "import time\nprint(open('/proc/self/uid_map').read().split()[1], flush=True)\ntime.sleep(0.5)\n"
    with ThreadPoolExecutor(3) as pool:
        seen = [ran.stdout for ran in pool.map(lambda _: cellwall.run_code(code), range(3))]
    assert len(set(seen)) == 3
    assert all(int(uid) >= 65_536 for uid in seen)


_INOTIFY = "import ctypes\nmake = lambda: ctypes.CDLL(None).inotify_init1(0) >= 0"
_IN_FLIGHT = """
import socket
pairs = []
def make():
    if len(pairs) % 20 == 0: pairs.append(socket.socketpair())
    pairs.append(pairs[-1])
    try: return socket.send_fds(pairs[-1][0], [b"x"], [0] * 50) > 0
    except OSError: return False
"""


_ALONE = pytest.mark.xdist_group("numbers of users")
"""Two state folders lend the same numbers of users, and what the kernel counts is counted by number:
another worker's greedy sandbox would leave nothing for this one's."""


def _used_up(make: str) -> tuple[int, int, int]:
    """How many a greedy sandbox gets, then another one, and then a one-shot run beside both."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has only one uid")
    code = f"{make}\nmade = 0\nwhile made < 2000 and make(): made += 1\nmade"
    with cellwall.Sandbox.create() as greedy, cellwall.Sandbox.create() as other:
        ran = greedy.run_code(code), other.run_code(code), cellwall.run_code(code)
    first, second, third = (each.value for each in ran)
    assert 0 < first < 2000, "the control: it took all there is"
    return first, second, third


@_ALONE
@pytest.mark.requirement("ISO-7", "LIM-2", "LIM-6")
def test_a_sandbox_cannot_use_up_the_inotify_instances_of_another() -> None:
    # Once (warm): cells of one template are one user to the kernel; the others get none at all.
    # A cell's own user namespace could have a bound: /proc/sys/user/max_inotify_instances.
    _, second, third = _used_up(_INOTIFY)
    assert (second > 0, third > 0) == (True, True)


@_ALONE
@pytest.mark.requirement("ISO-7", "LIM-2")
@pytest.mark.only_on("cold", reason="cells of one template share what is counted by uid, as documented")  # fmt: skip
def test_a_sandbox_cannot_use_up_the_descriptors_in_flight_of_another() -> None:
    _, second, third = _used_up(_IN_FLIGHT)
    assert (second > 0, third > 0) == (True, True)
