"""The checks of cells, run inside a machine that has nothing but cgroup v2.

Software emulation is slow: every limit that a check is not about is generous.
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess as Process

from tap import PATIENCE, Check, equal, run_checks, within

import cellwall
from cellwall.sandbox.linux import pool
from cellwall.sandbox.linux.layers import HostLayers
from cellwall.sandbox.linux.prepared_cell import spare_cells

os.environ["CELLWALL_PATH"] = "cold"  # the checks of warm cells say so
HOME = f"{os.path.expanduser('~')}/cellwall-state"
CGROUP = "/sys/fs/cgroup"
MIN_UID = 1_900_000_000
WALL_S = 120 * PATIENCE
ROOM = {"timeout": WALL_S, "memory": "128m"}
SLEEPER = "import time; print('up', flush=True); time.sleep(600)"

forks = multiprocessing.get_context("forkserver")

_checks: dict[str, list[tuple[str, Check]]] = {
    "root-v2": [],
    "root-systemd": [],
    "user-systemd": [],
}
WIDE = ("root-v2", "user-systemd")  # what systemd around root makes no difference to


def check(name: str, *scenarios: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        for scenario in scenarios or _checks:
            _checks[scenario].append((name, function))
        return function

    return register


def groups() -> list[str]:
    """Every cgroup of a run, in either way of making one."""
    return [
        os.path.join(top, name)
        for top, names, _ in os.walk(CGROUP)
        for name in names
        if os.path.basename(top) == "cellwall" or name.startswith("cellwall-")
        if name.startswith(("act_", "cellwall-act_"))
    ]


def processes() -> dict[int, str]:
    """Every process that a run starts outside of its program. The reaper of placeholders belongs to
    this process and outlives its runs."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            name = pathlib.Path(f"/proc/{entry}/comm").read_text(encoding="utf-8").strip()
            words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[1:2] == [b"hold"]:
            continue
        if name in ("cellwall-cell", "bwrap", "systemd-run") or name.startswith("cellwall"):
            found[int(entry)] = name
    return found


def members(group: str) -> dict[int, int]:
    """pid -> uid on the host, for every process in or below a group."""
    found = {}
    for top, _, _ in os.walk(group):
        for line in pathlib.Path(f"{top}/cgroup.procs").read_text(encoding="ascii").split():
            status = pathlib.Path(f"/proc/{line}/status").read_text(encoding="utf-8")
            uid = next(row.split()[1] for row in status.splitlines() if row.startswith("Uid:"))
            found[int(line)] = int(uid)
    return found


def nothing_left() -> None:
    spare_cells.close()  # it waits for the next run, and ends with this process
    pool.close_all()  # templates wait for more of them
    within(
        20,
        lambda: not groups() and not processes(),
        lambda: f"left: {groups()} {[_describe(each) for each in processes()]}",
    )


def _describe(pid: int) -> str:
    """Its state, parent and arguments."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"{pid} is gone"
    return f"{pid} {stat.split()[:2]} {b' '.join(words[1:]).decode()}"


def _sleep_in_sandbox(told: Connection, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    cellwall.run_code(SLEEPER, on_stdout=told.send, **ROOM)


def _run_in_sandbox(told: Connection, environment: dict[str, str], uid: int) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    os.environ.clear()
    os.environ.update(environment)
    done = cellwall.run_code("print(1)", **ROOM)
    told.send((str(done.status), done.stdout, getattr(done.error, "code", None)))


def _start_again(told: Connection) -> None:
    cellwall.Sandbox.create().kill()
    told.send("swept")


@contextmanager
def aside(work: Callable[..., None], *arguments: object) -> Iterator[tuple[Process, Connection]]:
    """Another process with Cellwall already imported, which alone would take ten seconds here."""
    ours, theirs = forks.Pipe(duplex=False)
    process = forks.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


def answer(work: Callable[..., None], *arguments: object) -> object:
    with aside(work, *arguments) as (_, told):
        if not told.poll(WALL_S):
            raise AssertionError(f"no answer within {WALL_S} s")
        return told.recv()


@contextmanager
def supervisor(environment: dict[str, str] | None = None) -> Iterator[Process]:
    """Another process that runs the sleeper, from the moment at which it sleeps."""
    with aside(_sleep_in_sandbox, environment or dict(os.environ)) as (process, told):
        equal(told.poll(WALL_S) and told.recv(), "up\n")
        yield process


def cell_of(group: str) -> str:
    """In a user's scope the limits are on a leaf below it."""
    return f"{group}/cell" if os.path.isdir(f"{group}/cell") else group


@check("the way to a cgroup is found")
def way() -> None:
    wanted = "v2-root" if os.geteuid() == 0 else "systemd-user"
    equal(HostLayers.detect().cgroup.way, wanted)


@check("code runs, and its use of processor and memory is told")
def runs() -> None:
    # The first scan of the guard loads its patterns, longer than its time under emulation.
    within(120, lambda: cellwall.run_code("print(1)", **ROOM).stdout == "1\n", "the output")
    done = cellwall.run_code("print(1)", **ROOM)
    equal((done.status, done.stdout, done.exit_code, done.error), ("ok", "1\n", 0, None))
    usage = done.outcome.usage
    assert usage.cpu_s > 0, usage
    assert usage.memory_peak > 1024 * 1024, usage


@contextmanager
def warm() -> Iterator[None]:
    os.environ["CELLWALL_PATH"] = "warm"
    try:
        yield
    finally:
        os.environ["CELLWALL_PATH"] = "cold"


@check("a warm cell runs code and a command, with its own limits")
def warm_runs() -> None:
    # A workspace in memory: an ordinary user cannot hand one on disk into a warm cell.
    room = {**ROOM, "limits": {"disk_bytes": 64 << 20}}
    with warm():
        done = cellwall.run_code("print(1)", **room)
        equal((done.status, done.stdout, done.outcome.sandbox_path), ("ok", "1\n", "warm"))
        told = cellwall.run_command(["echo", "hi"], **room)
        equal((told.stdout, told.outcome.sandbox_path), ("hi\n", "warm"))
        bomb = cellwall.run_code("x = bytearray(400 << 20)", **room)
        equal((bomb.status, bomb.limit), ("limit", "memory"))


@check("a live sandbox keeps its state, on either path")
def live() -> None:
    for path in ("cold", "warm"):
        os.environ["CELLWALL_PATH"] = path
        try:
            with cellwall.Sandbox.create(**ROOM) as sandbox:
                sandbox.run_code("x = 41")
                done = sandbox.run_code("x + 1")
                equal((done.value, done.state), (42, "kept"))
                shown = sandbox.commands.run("echo hi > f; cat f")
                equal((shown.stdout, shown.outcome.error), ("hi\n", None))
        finally:
            os.environ["CELLWALL_PATH"] = "cold"


@check("a memory bomb ends at the memory limit")
def memory_bomb() -> None:
    held = "held = []\nwhile True: held.append(b'x' * 1_000_000)"
    done = cellwall.run_code(held, **{**ROOM, "memory": "64m"})
    equal((done.status, done.limit), ("limit", "memory"))


@check("a fork bomb ends at the process limit", *WIDE)
def fork_bomb() -> None:
    done = cellwall.run_code("import os\nwhile True: os.fork()", **ROOM, limits={"processes": 24})
    equal((done.status, done.limit), ("limit", "processes"))


@check("a spinner ends at the processor limit", *WIDE)
def spinner() -> None:
    done = cellwall.run_code("while True: pass", **ROOM, limits={"cpu_s": 1})
    equal((done.status, done.limit), ("limit", "cpu"))
    assert done.outcome.usage.cpu_s < 10, done.outcome.usage


@check("inside, the cgroup is the root and no other is in sight", *WIDE)
def own_cgroup_namespace() -> None:
    done = cellwall.run_code(
        "import os\nprint(open('/proc/self/cgroup').read(), os.path.exists('/sys/fs'))", **ROOM
    )
    equal(done.stdout, "0::/\n False\n")


def limits_of(cell: str) -> dict[str, str]:
    names = ("memory.max", "pids.max", "cpu.max")
    return {
        name: pathlib.Path(f"{cell}/{name}").read_text(encoding="ascii").strip() for name in names
    }


ASKED = {"memory.max": str(128 * 1024 * 1024), "pids.max": "130", "cpu.max": "100000 100000"}


@check("from outside, the program has an unprivileged uid and the limits that were asked for")
def seen_from_outside() -> None:
    with supervisor():
        (group,) = groups()
        cell = cell_of(group)
        found = members(cell)
        assert len(found) >= 2, found
        if os.geteuid() == 0:
            assert all(uid >= MIN_UID for uid in found.values()), found
        else:
            equal(set(found.values()), {os.geteuid()})
        equal(limits_of(cell), ASKED)


@check("systemd leaves groups of ours alone when it reads its units again", "root-systemd")
def daemon_reload() -> None:
    with supervisor():
        (group,) = groups()
        for words in (["daemon-reload"], ["start", "systemd-tmpfiles-clean.service"]):
            subprocess.run(["systemctl", *words], check=True, timeout=WALL_S)
        equal(limits_of(group), ASKED)
        assert len(members(group)) >= 2, members(group)
    equal(cellwall.run_code("print(1)", **ROOM).status, "ok")


@check("a workspace on a disk gets a bandwidth", "root-v2")
def bandwidth() -> None:
    place = _workspace("io")
    seen: list[str] = []

    def look(_text: str) -> None:
        (group,) = groups()
        seen.append(pathlib.Path(f"{group}/io.max").read_text(encoding="ascii"))

    done = cellwall.run_code(
        "print('up', flush=True)", workspace=f"{place}:rw", on_stdout=look, **ROOM
    )
    equal(done.status, "ok")
    most = 512 * 1024 * 1024
    device = os.stat(place).st_dev
    equal(
        seen,
        [f"{os.major(device)}:{os.minor(device)} rbps={most} wbps={most} riops=max wiops=4096\n"],
    )


def _workspace(name: str) -> str:
    place = f"{os.path.expanduser('~')}/{name}"
    os.makedirs(place, exist_ok=True)
    pathlib.Path(place, "old.txt").write_text("old", encoding="ascii")
    return place


WRITER = """
import os
open('new.txt', 'w').write('new')
open('old.txt', 'w').write('changed')
print(open('old.txt').read(), os.stat('new.txt').st_uid == os.getuid() == 1000)
"""


@check("what is made in a writable workspace belongs to the workspace's owner", *WIDE)
def read_write() -> None:
    place = _workspace("project-rw")
    done = cellwall.run_code(WRITER, workspace=f"{place}:rw", **ROOM)
    equal((done.status, done.stdout, done.error), ("ok", "changed True\n", None))
    equal(pathlib.Path(place, "old.txt").read_text(encoding="ascii"), "changed")
    made = os.stat(f"{place}/new.txt")
    equal((made.st_uid, made.st_gid), (os.geteuid(), os.getegid()))
    equal(sorted(os.listdir(place)), ["new.txt", "old.txt"])


@check("a copy-on-write workspace leaves the original as it was", *WIDE)
def copy_on_write() -> None:
    place = _workspace("project-cow")
    done = cellwall.run_code(WRITER, workspace=f"{place}:cow", **ROOM)
    equal((done.status, done.stdout, done.error), ("ok", "changed True\n", None))
    equal(pathlib.Path(place, "old.txt").read_text(encoding="ascii"), "old")
    equal(os.listdir(place), ["old.txt"])


@check("several runs at once each have a group of their own", *WIDE)
def at_once() -> None:
    seen: list[int] = []
    results: list[str] = []

    def one() -> None:
        done = cellwall.run_code(
            "import time; print('up', flush=True); time.sleep(3)",
            on_stdout=lambda _text: seen.append(len(groups())),
            **ROOM,
        )
        results.append(str(done.status))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(results, ["ok", "ok", "ok"])
    assert max(seen) > 1, seen


@check("kill -9 of the supervisor leaves no process and no cgroup")
def killed_supervisor() -> None:
    with supervisor() as process:
        (group,) = groups()
        inside = members(group)
        assert inside, group
        assert processes(), inside
        process.kill()
        process.join()
        nothing_left()
        assert not any(os.path.exists(f"/proc/{pid}") for pid in inside), inside


@check("kill -9 of the shim leaves no process and no cgroup", *WIDE)
def killed_keeper() -> None:
    with supervisor() as process:
        inside = members(cell_of(groups()[0]))
        shim = next(
            pid
            for pid, name in processes().items()
            if name == "cellwall-cell" and pid not in inside
        )
        os.kill(shim, signal.SIGKILL)
        within(20, lambda: not any(os.path.exists(f"/proc/{pid}") for pid in inside), str(inside))
        process.join(60)
        equal(process.exitcode, 0)
    nothing_left()


@check("kill -9 of shim and supervisor: the next start removes the rest", *WIDE)
def killed_both() -> None:
    with supervisor() as process:
        group = groups()[0]
        inside = members(cell_of(group))
        shim = next(pid for pid, name in processes().items() if pid not in inside)
        for pid in (process.pid, shim):
            os.kill(pid or 0, signal.SIGKILL)
        process.join()
    equal(answer(_start_again), "swept")
    nothing_left()


@check("an ordinary user without a systemd of their own is refused", *WIDE)
def refused() -> None:
    home = "/tmp/refused"
    os.makedirs(home, mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(home, 1000, 1000)
    environment = {"PATH": "/usr/bin:/bin", "HOME": home, "XDG_RUNTIME_DIR": "/run/user/none"}
    equal(answer(_run_in_sandbox, environment, 1000), ("error", "", "CW-LAYER-CGROUP"))


@check("a user's manager that does not answer is a refusal, not a hang", "user-systemd")
def deaf_manager() -> None:
    os.makedirs("/tmp/deaf/systemd", exist_ok=True)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind("/tmp/deaf/systemd/private")
        deaf.listen(8)
        environment = {**os.environ, "XDG_RUNTIME_DIR": "/tmp/deaf"}
        equal(answer(_run_in_sandbox, environment, 1000), ("error", "", "CW-SANDBOX-BUILD"))


@check("it works without XDG_RUNTIME_DIR, as from cron", "user-systemd")
def without_variable() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
    equal(answer(_run_in_sandbox, environment, 1000), ("ok", "1\n", None))


def _elsewhere(*words: str, script: str) -> str:
    done = subprocess.run(
        [*words, sys.executable, "-c", f"import cellwall\nROOM = {ROOM!r}\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=WALL_S,
    )
    return done.stdout + done.stderr


@check("it works from below the user's own manager", "user-systemd")
def in_user_scope() -> None:
    script = "print(cellwall.run_code('print(1)', **ROOM).status)"
    equal(_elsewhere("systemd-run", "--user", "--scope", "--quiet", script=script), "ok\n")


IN_CONTAINER = """
import subprocess
first = cellwall.run_code('print(1)', **ROOM)
print(first.status, first.error.code)
subprocess.run(first.error.hint.partition(': ')[2], shell=True, check=True)
print(cellwall.run_code('print(1)', **ROOM).status)
"""


@check("in a container's cgroup namespace, the hint that the refusal names works", "root-v2")
def in_container() -> None:
    container = f"{CGROUP}/container"
    os.mkdir(container)
    view = f"umount {CGROUP} && mount -t cgroup2 none {CGROUP}"
    enter = (
        f"echo $$ > {container}/cgroup.procs; "
        f'exec unshare --cgroup --mount sh -c \'{view} && exec "$@"\' - "$@"'
    )
    said = _elsewhere("sh", "-c", enter, "-", script=IN_CONTAINER)
    equal(said, "error CW-LAYER-CGROUP\nok\n")
    nothing_left()


@check("after all of these, no process and no cgroup remains")
def clean() -> None:
    nothing_left()


def main() -> None:
    os.environ["CELLWALL_HOME"] = HOME
    forks.set_forkserver_preload(["cellwall.interfaces.sdk.blocking"])
    forkserver.ensure_running()  # it imports on the other processor meanwhile
    run_checks(_checks[sys.argv[1]])


if __name__ == "__main__":
    main()
