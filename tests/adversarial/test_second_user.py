"""Attacks by and on the second user of a sandbox, `root` (ISO-1, ISO-5, ISO-6, ISO-7, ISO-8, ISO-10).

It has the uid 0 inside, and must have nothing else of root: no capability, no file, process or
setting of the host, no hold on init. File modes keep the two users apart, in both directions.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cellwall
from adversarial.conftest import (
    Verdicts,
    attack_names,
    enter_home,
    given,
    judge,
    outside,
    source,
    throwaway,
)
from adversarial.leftovers import UID_BASE, alive, left, nothing
from adversarial.test_isolation_files import COPY_OF_THE_HOST
from cellwall.core.errors import CellwallError
from cellwall.runtime import wiring
from cellwall.sandbox.linux import cgroups
from conftest import ORDINARY_UID, need, new_home

pytestmark = pytest.mark.only_on("cold", reason="one uid is mapped into a template")
Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]
STORED_UID = UID_BASE + 19_999
USERS = ("sandbox", "root")


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")
    need(os.geteuid() == 0, "root: an ordinary user maps one uid")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "cellwall.toml"
    path.write_text(f'[sandbox]\nsecond_user = "allow"\nuid_base = {UID_BASE}\n')
    return str(path)


def _create(config: str, **options: Any) -> cellwall.Sandbox:
    return cellwall.Sandbox.create(config=config, second_user=True, timeout=60, **options)


@pytest.fixture
def sandbox(config: str) -> Iterator[cellwall.Sandbox]:
    with _create(config) as made:
        yield made


def _run(sandbox: cellwall.Sandbox, command: str, user: str = "root", **options: Any) -> str:
    ran = sandbox.commands.run(command, user=user, **options)
    assert ran.exit_code == 0, (command, ran.stdout, ran.stderr, ran.error)
    return str(ran.stdout)


def _python(sandbox: cellwall.Sandbox, code: str, user: str = "root") -> Any:
    """The JSON that a program prints."""
    ran = sandbox.commands.run(["python3", "-I", "-c", code], user=user)
    assert ran.exit_code == 0, (ran.stdout, ran.stderr, ran.error)
    return json.loads(ran.stdout)


def _status(pid: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _processes() -> dict[str, dict[str, str]]:
    """Pid outside -> status, of the processes of these sandboxes."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = _status(pid)
        except (OSError, ValueError):
            continue
        uids = [int(word) for word in status["Uid"].split()]
        if any(UID_BASE <= uid < UID_BASE + 40_000 for uid in uids) and status["State"][0] != "Z":
            found[pid] = status
    return found


# --- who they are

_WHO = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "walls": {name: status[name].strip() for name in
              ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")},
    "map": open("/proc/self/uid_map").read().split(),
    "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")},
}))
"""
_NO_CAPABILITY = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)


@pytest.mark.requirement("ISO-1", "ISO-10")
def test_both_users_are_unprivileged_and_behind_the_same_walls(sandbox: cellwall.Sandbox) -> None:
    first, second = (_python(sandbox, _WHO, user) for user in USERS)
    assert first["ids"] == [[1000] * 3, [1000] * 3, []]
    assert second["ids"] == [[0] * 3, [0] * 3, []]
    assert first["walls"] == second["walls"]
    assert second["walls"] == {**_NO_CAPABILITY, "NoNewPrivs": "1", "Seccomp": "2"}
    assert first["namespaces"] == second["namespaces"]
    one, on_host, _, two, other, _, nobody, stored, _ = (int(word) for word in second["map"])
    assert (one, two, nobody, stored) == (1000, 0, 65534, STORED_UID)
    assert UID_BASE <= on_host < other < UID_BASE + 40_000


@pytest.mark.requirement("ISO-1", "ISO-5")
def test_init_holds_both_identities_and_no_capability(sandbox: cellwall.Sandbox) -> None:
    _run(sandbox, "true")
    inits = [s for s in _processes().values() if len(set(s["Uid"].split())) == 2]
    assert len(inits) == 1, inits
    (init,) = inits
    real, effective, saved, file_system = (int(word) for word in init["Uid"].split())
    assert effective == saved == file_system
    assert real == effective + 20_000
    assert init["Gid"].split() == init["Uid"].split()
    assert {name: init[name] for name in _NO_CAPABILITY} == _NO_CAPABILITY
    assert (init["NoNewPrivs"], init["Seccomp"]) == ("1", "2")


@pytest.mark.requirement("ISO-1")
def test_code_runs_as_the_first_user(sandbox: cellwall.Sandbox) -> None:
    assert sandbox.run_code("import os; (*os.getresuid(), *os.getresgid())").value == [1000] * 6
    assert sandbox.run_code("process.getuid()", language="javascript").text in ("1000", None)
    assert _run(sandbox, "whoami; echo $HOME") == "root\n/root\n"


# --- the attacks of the red team, as root inside

# Lists of init's that are empty, not refused: `test_nothing_of_init_is_listed_read_or_signalled`.
_EMPTY = frozenset({"list-init-descriptors", "list-init-mapped-files"})
_PROGRAMS = ("processes", "kernel_calls", "set_id", "writes")


@pytest.mark.requirement("ISO-5", "ISO-6")
@pytest.mark.parametrize(
    ("program", "name"),
    [(each, name) for each in _PROGRAMS for name in attack_names(each) if name not in _EMPTY],
)
@pytest.mark.table("name")
def test_no_attack_of_an_ordinary_cell_works_for_root_inside(
    program: str,
    name: str,
    config: str,
    host_things: dict[str, object],
    remember: Remember,
) -> None:
    facts = host_things if program == "processes" else {}

    def without_walls() -> Verdicts:
        if program == "processes":
            return outside(program, target=facts["victim"], **facts)
        copy = ("sh", "-c", COPY_OF_THE_HOST, "sh") if program == "writes" else ()
        return outside(program, prefix=(*throwaway(), *copy), disposable=True)

    def within() -> Verdicts:
        with _create(config) as sandbox:
            sandbox.files.write("/tmp/attack.py", source(program))
            ran = sandbox.commands.run(
                ["python3", "-I", "/tmp/attack.py"],
                cwd="/tmp",
                user="root",
                envs=given(cell=True, **({**facts, "target": 1} if facts else {})),
            )
        assert (ran.exit_code, ran.stderr) == (0, ""), (ran.exit_code, ran.stderr, ran.limit)
        return {key: (kind, word) for key, (kind, word) in json.loads(ran.stdout).items()}

    control = remember(("second-control", program), without_walls)
    judge(name, control, remember(("second", program), within))


# --- init, and settings that belong to uid 0 of a namespace

_SETTINGS = (
    "/proc/sys/net/core/tstamp_allow_data",
    "/proc/sys/net/core/optmem_max",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/net/ipv4/ping_group_range",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/shmmax",
    "/proc/1/oom_score_adj",
    "/proc/1/coredump_filter",
    "/proc/1/clear_refs",
)


@pytest.mark.requirement("ISO-5", "ISO-6")
@pytest.mark.parametrize("path_inside", _SETTINGS)
def test_what_the_kernel_gives_to_uid_0_stays_closed(
    path_inside: str, sandbox: cellwall.Sandbox
) -> None:
    seen = _python(
        sandbox,
        f"import json, os\npath = {path_inside!r}\nstat = os.stat(path)\n"
        "try: os.open(path, os.O_WRONLY); got = 'open'\n"
        "except OSError as error: got = error.strerror\n"
        "print(json.dumps([stat.st_uid, stat.st_mode & 0o200, got]))",
    )
    # The control: what lies in /proc/1 belongs to it, and it may write there by the file's mode.
    if path_inside.startswith(("/proc/1/", "/proc/sys/net/")):
        assert seen[:2] == [0, 0o200]
    assert seen[2] in ("Permission denied", "Read-only file system")


@pytest.mark.requirement("ISO-5")
@pytest.mark.parametrize("user", USERS)
def test_nothing_of_init_is_listed_read_or_signalled(user: str, sandbox: cellwall.Sandbox) -> None:
    listed = _python(
        sandbox,
        """
import json, os, signal
found = {}
for name in ("fd", "fdinfo", "map_files", "task"):
    try: found[name] = os.listdir("/proc/1/" + name)
    except OSError: found[name] = []
for name in ("environ", "maps", "mem", "auxv", "io", "stack", "syscall", "pagemap", "personality"):
    try: found[name] = len(open("/proc/1/" + name, "rb").read(1))
    except OSError: found[name] = 0
for name in ("exe", "cwd", "root", "ns/user"):
    try: found[name] = os.readlink("/proc/1/" + name)
    except OSError: found[name] = ""
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGUSR1):
    try: os.kill(1, number)
    except OSError: pass
own = len(os.listdir("/proc/self/fd")), os.readlink("/proc/self/exe") != ""
print(json.dumps([sorted(name for name, got in found.items() if got), own]))
""",
        user,
    )
    assert listed[0] == []
    assert listed[1][0] >= 3, "the control: a process sees its own"
    assert listed[1][1]
    assert _run(sandbox, "echo lives", user) == "lives\n"


# --- between the two

_TRY_IDS = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
got = []
for other in {others}:
    for name, arguments in (
        ("setuid", [other]), ("seteuid", [other]), ("setreuid", [other, other]), ("setgid", [other]),
        ("setresuid", [other] * 3), ("setresuid", [-1, other, -1]), ("setresgid", [other] * 3),
        ("setregid", [other, -1]), ("setgroups", [1, (ctypes.c_uint * 1)(other)]),
    ):
        if getattr(libc, name)(*arguments) == 0: got.append([name, other])
    libc.setfsuid(other), libc.setfsgid(other)
    if libc.setfsuid(-1) == other or libc.setfsgid(-1) == other: got.append(["setfs", other])
print(json.dumps(got))
"""


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("user", USERS)
def test_neither_user_becomes_the_other_or_a_third(user: str, sandbox: cellwall.Sandbox) -> None:
    other = 1000 if user == "root" else 0
    assert _python(sandbox, _TRY_IDS.format(others=[other, 65534, 1]), user) == []
    # The control: with the right to, each call works.
    control = subprocess.run(
        [sys.executable, "-c", _TRY_IDS.format(others=[1000])],
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert ["setuid", 1000] in json.loads(control.stdout)


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize(("owner", "thief"), [("root", "sandbox"), ("sandbox", "root")])
@pytest.mark.parametrize("folder", ["/workspace", "/tmp", "/dev/shm"])
def test_file_modes_keep_the_two_apart(
    owner: str, thief: str, folder: str, sandbox: cellwall.Sandbox
) -> None:
    _run(sandbox, "chmod 1777 /workspace", "sandbox")
    _run(
        sandbox,
        f"umask 077; echo secret > {folder}/own; mkdir {folder}/d; echo s > {folder}/d/f",
        owner,
    )
    assert _run(sandbox, f"cat {folder}/own {folder}/d/f", owner) == "secret\ns\n"
    for attempt in (
        f"cat {folder}/own",
        f"echo more >> {folder}/own",
        f"cat {folder}/d/f",
        f"chmod 777 {folder}/own",
        f"ln {folder}/own {folder}/link && cat {folder}/link",
        f"cp {folder}/own {folder}/copy",
        f"mv {folder}/d/f {folder}/moved",
    ):
        ran = sandbox.commands.run(attempt, user=thief)
        assert ran.exit_code not in (0, None), attempt
        assert "secret" not in ran.stdout, attempt
    for attempt in (  # the names, beside the content
        f"rm -f {folder}/own",
        f"mv {folder}/own {folder}/moved",
        f"mv {folder}/d {folder}/moved && mkdir {folder}/d && echo evil > {folder}/d/f",
        f"echo evil > {folder}/mine && mv {folder}/mine {folder}/own",
    ):
        if folder != "/workspace":  # whose owner may remove any name in it
            assert sandbox.commands.run(attempt, user=thief).exit_code != 0, attempt
    if folder != "/workspace" or thief == "root":
        assert _run(sandbox, f"cat {folder}/own {folder}/d/f", owner) == "secret\ns\n"
        assert _run(sandbox, f"mv {folder}/own {folder}/x; cat {folder}/x", owner) == "secret\n"


@pytest.mark.requirement("ISO-1")
def test_the_home_of_root_is_closed_to_the_first_user_and_has_a_size(
    sandbox: cellwall.Sandbox,
) -> None:
    _run(sandbox, "echo secret > ~/own")
    assert _run(sandbox, "cat /root/own") == "secret\n"
    assert sandbox.commands.run("ls /root", user="sandbox").exit_code == 2
    assert sandbox.run_code("open('/root/own').read()").error is not None
    filled = sandbox.commands.run("head -c 900m /dev/zero > ~/big", user="root")
    assert filled.limit == "disk"
    sandbox.files.remove("/root/big")  # the file API acts there as root
    assert _run(sandbox, "ls /root") == "own\n"


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize(("owner", "thief"), [("root", "sandbox"), ("sandbox", "root")])
def test_neither_signals_traces_or_reads_processes_of_the_other(
    owner: str, thief: str, sandbox: cellwall.Sandbox
) -> None:
    sleeper = sandbox.commands.run(
        ["python3", "-c", "import time; time.sleep(60)"], background=True, user=owner
    )
    pid = int(_run(sandbox, "pgrep -x python3"))
    attempt = f"""
import ctypes, json, os
pid, got = {pid}, []
def step(name, do):
    try: do(); got.append(name)
    except OSError: pass
step("stop", lambda: os.kill(pid, 19)); step("kill", lambda: os.kill(pid, 9))
step("environ", lambda: open(f"/proc/{{pid}}/environ", "rb").read())
step("maps", lambda: open(f"/proc/{{pid}}/maps", "rb").read())
step("mem", lambda: open(f"/proc/{{pid}}/mem", "rb"))
step("cwd", lambda: os.readlink(f"/proc/{{pid}}/cwd"))
step("fd", lambda: os.listdir(f"/proc/{{pid}}/fd"))
step("limits", lambda: __import__("resource").prlimit(pid, 7, (8, 8)))
step("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 10))
print(json.dumps(got))
"""
    assert _python(sandbox, attempt, thief) == []
    assert sleeper.info().is_running
    assert "kill" in _python(sandbox, attempt, owner), "the control: its own user may"


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize(("owner", "other"), [("root", "sandbox"), ("sandbox", "root")])
def test_a_set_uid_program_of_one_gives_the_other_nothing(
    owner: str, other: str, sandbox: cellwall.Sandbox
) -> None:
    _run(sandbox, "cp /usr/bin/id /tmp/id && chmod 0755 /tmp/id", owner)
    sandbox.commands.run("chmod 6755 /tmp/id", user=owner)
    uid = "1000\n" if other == "sandbox" else "0\n"
    assert _run(sandbox, "/tmp/id -u", other) == uid
    assert _run(sandbox, "/tmp/id -ru", other) == uid
    mounts = _run(sandbox, "cat /proc/self/mountinfo")
    writable = [
        line for line in mounts.splitlines() if line.split()[4] in ("/tmp", "/root", "/workspace")
    ]
    assert len(writable) == 3
    assert all("nosuid" in line.split()[5] for line in writable)


# --- the host


@pytest.mark.requirement("ISO-2", "ISO-10")
def test_files_of_the_host_with_the_second_uid_are_out_of_reach(
    config: str, open_folder: Path
) -> None:
    """Even if the host had files of a uid that no user has: a given directory maps its owner."""
    (open_folder / "own").write_text("secret")
    (open_folder / "theirs").write_text("secret")
    (open_folder / "theirs").chmod(0o600)
    with _create(config, workspace=f"{open_folder}:ro") as sandbox:
        uid = int(_python(sandbox, _WHO)["map"][4])
        os.chown(open_folder / "theirs", uid, uid)
        control = subprocess.run(
            ["cat", open_folder / "theirs"], user=uid, group=uid, capture_output=True, check=True
        )
        assert control.stdout == b"secret", "outside, that uid reads the file"
        for user in USERS:
            assert _run(sandbox, "cat own", user) == "secret"
            ran = sandbox.commands.run("cat theirs", user=user)
            assert (ran.exit_code, ran.stdout) == (1, "")


@pytest.mark.requirement("ISO-2")
def test_root_sees_and_writes_no_more_of_the_host(sandbox: cellwall.Sandbox) -> None:
    first, second = (
        _run(sandbox, "ls -a / /etc /dev /usr/bin 2>&1; cat /etc/shadow 2>&1; true", user)
        for user in USERS
    )
    assert first == second
    for path in (
        "/etc/passwd",
        "/usr/bin/x",
        "/dev/null2",
        "/x",
        "/code/x",
        "/.cellwall/x",
        "/var",
    ):
        assert sandbox.commands.run(f"echo x >> {path}", user="root").exit_code != 0, path
    refused = sandbox.commands.run(
        "chown sandbox /tmp; chown 1000 ~; chmod 777 /workspace; id -u", user="root"
    )
    assert refused.stdout == "0\n"
    assert _run(sandbox, "stat -c %u%a /workspace /root /tmp").split() == [
        "1000755",
        "0700",
        "655341777",
    ]


@pytest.mark.requirement("ISO-2")
@pytest.mark.parametrize("user", USERS)
def test_both_read_what_the_sandbox_has_for_programs(user: str, sandbox: cellwall.Sandbox) -> None:
    """Certificates of the proxy, the name `python`, templates of git."""
    done = _run(sandbox, "ls /.cellwall /.cellwall/empty; git init -q /tmp/r 2>&1; umask", user)
    assert "nothing" in done
    assert done.endswith("\n0022\n")
    assert "warning" not in done
    assert sandbox.commands.run("touch /.cellwall/x", user=user).exit_code == 1


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize("how", ["kill", "wall", "disk", "leave"])
def test_no_process_of_either_outlives_its_end(how: str, config: str) -> None:
    detached = "for i in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP; sleep 500' >/dev/null 2>&1 & done; sleep 0.2"
    with _create(config) as sandbox:
        for user in USERS:
            _run(sandbox, detached, user)
        before = {status["Uid"].split()[0] for status in _processes().values()}
        assert len(before) == 2, "the control: processes of both users live"
        if how == "wall":
            assert sandbox.commands.run("sleep 60", user="root", timeout=1).limit == "wall"
        elif how == "disk":
            assert sandbox.commands.run("cat /dev/zero > /tmp/big", user="root").limit == "disk"
            deadline = time.monotonic() + 10  # init reports the end of the program first
            while (left_over := [s for s in _processes().values() if s["Name"] == "sleep"]) and (
                time.monotonic() < deadline
            ):
                time.sleep(0.01)
            assert left_over == [], "a full disk ends the processes of both"
        elif how == "kill":
            sandbox.kill()
    assert alive() == []
    assert _processes() == {}


@pytest.mark.requirement("ISO-8")
def test_nothing_is_left_when_the_supervisor_is_killed(
    config: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = enter_home(new_home(tmp_path_factory), "cold", monkeypatch)
    code = (
        f"import cellwall, time\ns = cellwall.Sandbox.create(config={config!r}, second_user=True)\n"
        "for user in ('root', 'sandbox'):\n"
        "    s.commands.run('setsid sleep 500 & sleep 300', background=True, user=user)\n"
        "print('ready', flush=True)\ntime.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len({s["Uid"].split()[0] for s in _processes().values()}) == 2
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while _processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _processes() == {}
    # The next start removes what a killed one had on the disk, files of both users among it.
    with _create(config):
        pass
    wiring.close_shared(home)
    assert left(home) == nothing()


@pytest.mark.requirement("ISO-7")
def test_second_users_of_concurrent_sandboxes_share_nothing(config: str) -> None:
    ready = threading.Barrier(4, timeout=60)

    def use(number: int) -> tuple[tuple[str, ...], str, str]:
        with _create(config) as sandbox:
            uids = tuple(_python(sandbox, _WHO)["map"][1:6:3])
            _run(
                sandbox,
                f"echo {number} > /root/n; echo {number} > /tmp/n; echo {number} > /dev/shm/n",
            )
            own = sandbox.commands.run("sleep 61", background=True, user="root")
            ready.wait()
            seen = _run(
                sandbox, "cat /root/n /tmp/n /dev/shm/n; ls /root /tmp /dev/shm; pgrep -c sleep"
            )
            _run(sandbox, "kill -9 -1 2>/dev/null; true", "sandbox")
            ready.wait()
            assert own.info().is_running
            return uids, seen, str(number)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(use, range(4)))
    all_uids = [uid for uids, _, _ in found for uid in uids]
    assert len(all_uids) == 8
    assert len(set(all_uids)) == 8
    for _, seen, number in found:
        assert seen.split()[:3] == [number] * 3
        assert seen.split()[3:] == ["/dev/shm:", "n", "/root:", "n", "/tmp:", "n", "1"]


@pytest.mark.requirement("LIM-1", "LIM-2")
def test_limits_count_both_users_together(config: str) -> None:
    bomb = "for i in $(seq 12); do sleep 30 & done; wait"
    with _create(config, limits={"processes": 20}) as sandbox:
        sandbox.commands.run(bomb, background=True, user="sandbox")
        while _run(sandbox, "pgrep -c sleep || true") != "12\n":
            continue
        assert sandbox.commands.run(bomb, user="root", timeout=10).limit == "processes"
    with _create(config, limits={"file_size_bytes": 1 << 20}) as sandbox:
        ran = sandbox.commands.run(
            "mkdir -m 700 /tmp/p; python3 -c 'import signal; signal.signal(25, signal.SIG_IGN)\n"
            'try: open("/tmp/p/big", "wb", 0).write(bytes(3 << 20))\n'
            "except OSError: pass'; head -c 3m /dev/zero >> /tmp/p/big",
            user="root",
        )
        assert ran.limit == "file_size"
    with _create(config, limits={"open_files": 40}) as sandbox:
        many = "import os; [os.dup(1) for _ in range(60)]; os.fstat(50)"
        assert sandbox.commands.run(["python3", "-c", many], user="root").limit == "open_files"
        few = "import os; os.dup2(1, 60); os.write(60, b'high')"
        assert sandbox.commands.run(["python3", "-c", few], user="root").stdout == "high"


# --- files that outlive a cell


@pytest.mark.requirement("FS-8", "ISO-1")
def test_a_snapshot_keeps_who_owns_a_file(config: str) -> None:
    with _create(config) as sandbox:
        _run(sandbox, "chmod 1777 .", "sandbox")
        _run(sandbox, "umask 077; echo secret > own; mkdir d; echo s > d/f")
        taken = sandbox.snapshot()
        for kept in (sandbox, _create(config, from_snapshot=taken.id)):
            with kept:
                assert _run(kept, "stat -c %u%a own d") == "0600\n0700\n"
                assert _run(kept, "cat own d/f; echo more >> own") == "secret\ns\n"
                assert kept.commands.run("cat own d/f", user="sandbox").stdout == ""
            with _create(config, from_snapshot=taken.id) as moving:  # from a lower layer: by copies
                _run(moving, "mkdir empty", "sandbox")
                moving.files.move("d", "empty/e")
                moving.files.move("own", "empty/own")
                assert _run(moving, "cd empty; stat -c %u%a own e e/f") == "0600\n0700\n0600\n"
                moving.files.write("empty/own", "of the file API")  # replaces the file of root
                ran = moving.commands.run("cat empty/own empty/e/f", user="sandbox")
                assert (ran.stdout, ran.exit_code) == ("", 1)
                assert _run(moving, "cat empty/own empty/e/f") == "of the file APIs\n"
    with cellwall.Sandbox.create(config=config, from_snapshot=taken.id) as one_user:
        assert one_user.commands.run("cat own d/f").stdout == "", "never one user for two"
        assert one_user.files.exists("own")


@pytest.mark.requirement("FS-8", "ISO-1")
def test_a_sticky_directory_stays_one_in_snapshots_and_moves(config: str) -> None:
    steal = "rm -f mine; rm -f shared/mine; cat mine shared/mine"  # each fails
    with _create(config) as sandbox:
        _run(
            sandbox, "mkdir shared; chmod 1777 . shared; echo m | tee mine > shared/mine", "sandbox"
        )
        assert _run(sandbox, steal, "root") == "m\nm\n"
        taken = [sandbox.snapshot(), sandbox.snapshot(end_processes=True)]
        for found in (sandbox, *(_create(config, from_snapshot=each.id) for each in taken)):
            with found:
                assert _run(found, steal) == "m\nm\n"
                _run(found, "mkdir -m 1777 below", "sandbox")
                found.files.move("shared", "below/shared")
                assert _run(found, "cd below; rm -f shared/mine; cat shared/mine") == "m\n"
                assert _run(found, "stat -c %a below below/shared") == "1777\n" * 2
                removed = "rm -f mine; ls"  # the control: the owner may
                assert _run(found, removed, "sandbox") == "below\n"


@pytest.mark.requirement("FS-8", "ISO-8")
def test_a_copy_on_write_directory_has_both_and_the_original_neither(
    config: str, open_folder: Path
) -> None:
    (open_folder / "given").write_text("given")
    open_folder.chmod(0o777)
    with _create(config, workspace=f"{open_folder}:cow") as sandbox:
        _run(sandbox, "chmod 1777 .", "sandbox")
        _run(sandbox, "umask 077; echo secret > own; cat given; echo more > given2")
        assert sandbox.commands.run("cat own", user="sandbox").exit_code == 1
        _run(sandbox, "echo x > first", "sandbox")
        names = {each.name for each in sandbox.files.list(".")}
        assert names == {"given", "own", "given2", "first"}
        assert sandbox.files.read("first") == "x\n"
    assert [each.name for each in open_folder.iterdir()] == ["given"]


# --- refusals in words


def _code(call: Callable[[], object]) -> str:
    with pytest.raises(CellwallError) as refused:
        call()
    assert refused.value.hint
    return refused.value.code


@pytest.mark.requirement("ISO-4")
def test_where_there_can_be_no_second_user_nothing_runs(
    config: str, tmp_path: Path, open_folder: Path
) -> None:
    assert _code(lambda: cellwall.Sandbox.create(second_user=True)) == "CW-SECOND-USER-OFF"
    with cellwall.Sandbox.create(config=config) as one_user:
        assert _code(lambda: one_user.commands.run("id", user="root")) == "CW-NO-USER"
    with _create(config) as sandbox:
        for name in ("nobody", "1", "root ", "Root", "0x0", "sandbox\0", "../root", "💥"):
            assert _code(lambda name=name: sandbox.commands.run("id", user=name)) == "CW-NO-USER"
    with _create(config, workspace=f"{open_folder}:rw") as sandbox:
        ran = sandbox.commands.run("id", user="sandbox")
        assert (ran.exit_code, ran.refusal.code) == (None, "CW-SECOND-USER-WORKSPACE")
    weaker = tmp_path / "containers.toml"
    weaker.write_text('[sandbox]\nsecond_user = "allow"\nbackend = "container"\n')
    assert _code(lambda: _create(str(weaker))) == "CW-SECOND-USER-HOST"


@pytest.mark.requirement("ISO-4", "ISO-10")
def test_an_ordinary_user_is_refused_in_words(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = new_home(tmp_path_factory)
    folder = Path("/var/tmp", f"cellwall-second-{os.getpid()}")
    folder.mkdir(mode=0o755)
    try:
        (folder / "c.toml").write_text(
            '[sandbox]\nsecond_user = "allow"\ndangerously_without_cgroup = true\n'
        )
        state = folder / "state"
        state.mkdir(mode=0o700)
        os.chown(state, ORDINARY_UID, ORDINARY_UID)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                (
                    "import cellwall\ntry: cellwall.Sandbox.create(second_user=True)\n"
                    "except cellwall.CellwallError as error: print(error.code)"
                ),
            ],
            env={
                "PATH": os.environ["PATH"],
                "CELLWALL_HOME": str(state),
                "CELLWALL_CONFIG": str(folder / "c.toml"),
            },
            user=ORDINARY_UID,
            group=ORDINARY_UID,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
        need(b"Permission" not in done.stderr, "a clone that other users can read")
        assert done.stdout == b"CW-SECOND-USER-HOST\n", done.stderr
    finally:
        shutil.rmtree(folder)
    assert home.exists()
