"""How attack programs are run: inside a cell by the public SDK, and outside as their control.

Every test here runs twice, with `path` cold and warm: the walls must be the same. One that is about
something that only one path has says so: `@pytest.mark.only_on("cold", reason="…")`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path

import pytest

from cellwall.redteam.catalog import program_text
from cellwall.runtime import wiring
from cellwall.sandbox.linux import pool
from cellwall.sandbox.linux.prepared_cell import spare_cells
from conftest import ORDINARY_UID, leave_home, need, new_home, ordinary_user
from interfaces import prepared_program

PATHS = ("cold", "warm")
ATTACKS = Path(str(resources.files("cellwall.redteam"))) / "attacks" / "programs"
WHO = ("as-root", "as-ordinary-user")
Verdicts = Mapping[str, tuple[str, str]]
_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE, _REMOVE = 0o1000, 0

# What an ordinary user's process runs: one call of the SDK, as JSON in and out.
_CALL = """
import json, sys, cellwall
job = json.load(sys.stdin)
ran = cellwall.run_code(job["code"], **job["options"])
error = ran.outcome.error
print(json.dumps({"status": ran.status.value, "exit_code": ran.exit_code, "stdout": ran.stdout,
                  "stderr": ran.stderr, "error": error and [error.code, error.message],
                  "path": ran.outcome.sandbox_path}))
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_on(path, reason): the other path has no such thing")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.definition.get_closest_marker("only_on")
    if only is not None:
        assert only.kwargs["reason"], "say why the other path has no such thing"
    metafunc.parametrize("path", PATHS if only is None else only.args)


@pytest.fixture(scope="session")
def warm_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all warm tests of a worker: a template for each would cost 0.2 s and a zygote."""
    home = tmp_path_factory.mktemp("cellwall-warm-home")
    home.chmod(0o700)
    yield home
    wiring.close_shared(str(home))
    pool.close_all()
    # The command line has had a supervisor started, which would wait for more for a while.
    environment = {**os.environ, "CELLWALL_HOME": str(home), "CELLWALL_PATH": "warm"}
    command = [str(Path(sys.executable).with_name("cellwall")), "supervisor", "stop"]
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)


@pytest.fixture(autouse=True)
def state_home(
    path: str,
    warm_home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """In place of the one that all tests share: it chooses the path as well."""
    home = warm_home if path == "warm" else new_home(tmp_path_factory)
    yield enter_home(home, path, monkeypatch)
    if path == "cold":
        leave_home(home)


def enter_home(home: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    home.chmod(0o700)
    monkeypatch.setenv("CELLWALL_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "no-config"))
    monkeypatch.delenv("CELLWALL_CONFIG", raising=False)
    monkeypatch.setenv("CELLWALL_PATH", path)
    return str(home)


def end_what_waits() -> None:
    """Cells raised ahead, templates, and cells forked from them: alive, and of no run."""
    spare_cells.close()
    pool.close_all()


@functools.cache
def source(name: str) -> str:
    """The program with its stage before it."""
    return program_text(name)


@functools.cache
def attack_names(name: str) -> list[str]:
    """What the program would try on this machine; nothing is tried."""
    scene: dict[str, object] = {"__name__": name}
    exec(compile(source(name), name, "exec"), scene)
    return list(scene["ATTACKS"])  # type: ignore[call-overload]  # a dict, by stage.py


@functools.cache
def system_calls() -> Mapping[str, int]:
    table = resources.files("cellwall.sandbox.linux").joinpath("syscall_numbers.toml")
    return tomllib.loads(table.read_text())[platform.machine()]


def given(**facts: object) -> dict[str, str]:
    """The variable by which an attack learns what to attack."""
    return {"ATTACK": json.dumps({"calls": system_calls(), **facts})}


def outside(name: str, *, prefix: tuple[str, ...] = (), **facts: object) -> Verdicts:
    """The control: the same text, without walls."""
    done = subprocess.run(
        [*prefix, os.path.realpath(sys.executable), "-I", "-c", source(name)],
        env={"PATH": os.environ["PATH"], **given(**facts)},
        capture_output=True,
        timeout=100,
        check=True,
    )
    return _verdicts(done.stdout.decode())


def throwaway() -> tuple[str, ...]:
    """Namespaces in which a control may do its worst; an ordinary user is root in them, too."""
    need(shutil.which("unshare"), "unshare of util-linux")
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    words = ("unshare", *user, "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
    return (*words, "sh", "-c", 'mount -t tmpfs tmpfs /tmp && exec "$@"', "sh")


def inside(name: str, *, who: str, options: Mapping[str, object], **facts: object) -> Verdicts:
    ran = run_as(who, source(name), {"timeout": 90, "envs": given(cell=True, **facts), **options})
    assert (ran["status"], ran["stderr"]) == ("ok", ""), ran
    # An ordinary user cannot hand a mount into another namespace: a given directory is cold.
    cold = who == "as-ordinary-user" and "workspace" in options
    assert ran["path"] == ("cold" if cold else os.environ["CELLWALL_PATH"])
    return _verdicts(str(ran["stdout"]))


def _verdicts(text: str) -> Verdicts:
    return {name: (kind, word) for name, (kind, word) in json.loads(text).items()}


def run_as(who: str, code: str, options: Mapping[str, object]) -> dict[str, object]:
    """One `cellwall.run_code` in a process of its own, as root or as somebody without any right."""
    if who == "as-root":
        need(os.geteuid() == 0, "root")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home = Path(folder, "state")
        home.mkdir(mode=0o700)
        environment = {
            "PATH": os.environ["PATH"],
            "CELLWALL_HOME": str(home),
            "XDG_CONFIG_HOME": folder,
            "CELLWALL_PATH": os.environ["CELLWALL_PATH"],
        }
        user = None
        if who == "as-ordinary-user":
            # Nobody delegates a cgroup to this uid; the other walls are what is attacked here.
            config = Path(folder, "cellwall.toml")
            config.write_text("[sandbox]\ndangerously_without_cgroup = true\n")
            environment["CELLWALL_CONFIG"] = str(config)
            if os.geteuid() == 0:
                Path(folder).chmod(0o755)
                os.chown(home, ORDINARY_UID, ORDINARY_UID)
                ordinary_user()  # who can read this clone
                user = ORDINARY_UID
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        job = json.dumps({"code": code, "options": options}).encode()
        with prepared_program.Popen(
            [], code=_CALL, env=environment, cwd="/", user=user, **pipes
        ) as process:
            try:
                out, err = process.communicate(job, timeout=110)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def judge(name: str, control: Verdicts, verdicts: Verdicts) -> None:
    """Through outside, refused inside; what this host does not have cannot be judged here."""
    kind, _word = control[name]
    if kind == "lacks":
        # The host has no such thing to attack; then the cell must not have it either.
        assert verdicts[name][0] != "through"
        return
    if control[name] == ("refused", "ENOSYS"):
        # This kernel has no such call and would answer ENOSYS: EPERM and SIGSYS come from the filter.
        is_filtered = verdicts[name] in (("refused", "EPERM"), ("refused", "SIGSYS"))
        need(is_filtered, f"the system call behind {name}")
        return
    if os.geteuid() != 0:
        need(kind == "through", f"root, for the control of {name}")
    found = {"outside": control[name], "inside": verdicts[name]}
    assert {place: kind for place, (kind, _) in found.items()} == {
        "outside": "through",
        "inside": "refused",
    }, found


@pytest.fixture(scope="session")
def remember() -> Callable[..., Verdicts]:
    """One program runs many attacks at once, and each is a test of its own: so run it once."""
    known: dict[object, Verdicts] = {}

    def recall(key: object, work: Callable[[], Verdicts]) -> Verdicts:
        if key not in known:
            known[key] = work()
        return known[key]

    return recall


def _call(name: str, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _LIBC.syscall(ctypes.c_long(system_calls()[name]), *words)


@pytest.fixture(scope="module")
def host_things() -> Iterator[dict[str, object]]:
    """A process, a key, and System V and POSIX memory and queues, all of the host."""
    mark = f"cellwall-{os.getpid()}"
    sleeper = [sys.executable, "-c", "import signal; signal.pause()", f"{mark}-victim"]
    victim = subprocess.Popen(sleeper, env={"TOKEN": mark})
    name, ipc_key = ctypes.c_char_p(mark.encode()), 0x48460000 | (os.getpid() & 0xFFFF)
    key = _call("add_key", ctypes.c_char_p(b"user"), name, ctypes.c_char_p(b"secret"), 6, -4)
    memory = _LIBC.shmget(ipc_key, 4096, _CREATE | 0o666)
    semaphore = _LIBC.semget(ipc_key, 1, _CREATE | 0o666)
    queue = _LIBC.msgget(ipc_key, _CREATE | 0o666)
    os.close(_call("mq_open", name, os.O_CREAT | os.O_RDWR, 0o666, 0))
    shared = Path("/dev/shm", mark)
    shared.write_bytes(b"x" * 4096)
    try:
        yield {"victim": victim.pid, "mark": mark, "key": key, "ipc_key": ipc_key}
    finally:
        shared.unlink()
        _call("mq_unlink", name)
        _LIBC.shmctl(memory, _REMOVE, None)
        _LIBC.semctl(semaphore, 0, _REMOVE)
        _LIBC.msgctl(queue, _REMOVE, None)
        if key > 0:  # -1 would name another keyring
            _call("keyctl", 9, key, -4)  # KEYCTL_UNLINK
        victim.kill()
        victim.wait()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that other users can enter, as pytest's own cannot be."""
    with tempfile.TemporaryDirectory(prefix="cellwall-open-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
