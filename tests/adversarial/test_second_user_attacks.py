"""What one of the two users of a sandbox gets of the other, call by call (ISO-1, ISO-5, ISO-6).

The control is the same program as the user whom the victim belongs to: all that the other one is
refused works there. What both get is what any two users of one Linux machine get of each other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import system_calls
from adversarial.leftovers import UID_BASE
from cellwall.core.errors import CellwallError
from cellwall.core.packages import PACKAGES_IN_WORKSPACE
from cellwall.sandbox.linux import cgroups
from conftest import need

pytestmark = pytest.mark.only_on("cold", reason="one uid is mapped into a template")


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")
    need(os.geteuid() == 0, "root: an ordinary user maps one uid")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "cellwall.toml"
    path.write_text(f'[sandbox]\nsecond_user = "allow"\nuid_base = {UID_BASE}\n')
    return str(path)


@pytest.fixture
def sandbox(config: str) -> Iterator[cellwall.Sandbox]:
    with cellwall.Sandbox.create(config=config, second_user=True, timeout=60) as made:
        yield made


_VICTIM = """
import ctypes, os, socket, sys, time
libc, own = ctypes.CDLL(None), os.getuid()
os.umask(0o077)
os.mkdir(f"/tmp/dir-{own}")
listeners = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for each, name in zip(listeners, (f"/tmp/dir-{own}/socket", f"/tmp/socket-{own}", f"\\0socket-{own}")):
    each.bind(name); each.listen()
os.mkfifo(f"/tmp/fifo-{own}")
for name in (f"/dev/shm/file-{own}", f"/tmp/file-{own}"): open(name, "w").write("secret")
memory = libc.shmget(0x1000 + own, 4096, 0o1600)
semaphore = libc.semget(0x1000 + own, 1, 0o1600)
queue = libc.msgget(0x1000 + own, 0o1600)
libc.msgsnd(queue, ctypes.create_string_buffer(b"\\1" + bytes(7) + b"secret"), 6, 0)
master, slave = os.openpty()
print(os.getpid(), own, memory, semaphore, queue, os.ttyname(slave), flush=True)
time.sleep(300)
"""
_THIEF = """
import ctypes, fcntl, json, os, signal, socket, struct, sys
pid, victim, memory, semaphore, queue = map(int, sys.argv[1:6])
terminal, numbers = sys.argv[6], json.loads(sys.argv[7])
libc, got, own = ctypes.CDLL(None, use_errno=True), [], os.getuid()
libc.shmat.restype = ctypes.c_void_p
proc, here = f"/proc/{pid}/", f"own-{os.getpid()}"

def step(name, do):
    try: result = do()
    except (OSError, PermissionError): return
    if result != -1: got.append(name)

def call(name, *arguments):
    return libc.syscall(numbers[name], *arguments)

for name in ("environ", "maps", "smaps", "auxv", "io", "syscall", "pagemap", "personality", "timers",
             "cmdline", "stat", "limits"):
    step("read " + name, lambda: open(proc + name, "rb").read(1))
for name in ("fd", "fdinfo", "map_files", "cwd", "root/tmp"):
    step("list " + name, lambda: os.listdir(proc + name))
for name in ("exe", "cwd", "root", "ns/mnt", "ns/user"):
    step("link " + name, lambda: os.readlink(proc + name))
step("memory", lambda: open(proc + "mem", "rb"))
step("memory of a thread", lambda: open(proc + f"task/{pid}/mem", "rb"))
for number in (0, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH):
    step(f"signal {int(number)}", lambda: os.kill(pid, number))
step("signal of a thread", lambda: call("tgkill", pid, pid, int(signal.SIGURG)))
step("signal by descriptor", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGURG))
step("descriptor", lambda: call("pidfd_getfd", os.pidfd_open(pid), 1, 0))
step("robust list", lambda: call("get_robust_list", pid, ctypes.byref(ctypes.c_void_p()),
                                 ctypes.byref(ctypes.c_size_t())))
step("processors", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
step("scheduler", lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)))
step("io priority", lambda: call("ioprio_set", 1, pid, 2 << 13 | 7))
step("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 1))
for name in (f"/tmp/dir-{victim}/socket", f"/tmp/socket-{victim}", f"\\0socket-{victim}"):
    step("connect " + name[1:].replace(str(victim), ""),
         lambda: socket.socket(socket.AF_UNIX).connect(name))
step("fifo", lambda: os.open(f"/tmp/fifo-{victim}", os.O_RDWR | os.O_NONBLOCK))
step("shared file", lambda: open(f"/dev/shm/file-{victim}").read())
file = f"/tmp/file-{victim}"
step("file", lambda: open(file).read())
step("file by another name", lambda: open("/proc/self/fd/%d" % os.open(file, os.O_PATH)).read())
step("file by a link", lambda: (os.link(file, f"/tmp/link-{own}"), open(f"/tmp/link-{own}").read()))
step("mode", lambda: os.chmod(file, 0o600))
step("times", lambda: os.utime(file, (1, 1)))
step("attribute", lambda: os.setxattr(file, "user.x", b"1"))
step("append", lambda: open(file, "a").write("x"))
step("truncate", lambda: os.truncate(file, 3))
step("take a file", lambda: os.chown(file, own, -1))
open(f"/tmp/{here}", "w").close()
step("give a file", lambda: os.chown(f"/tmp/{here}", victim, -1))
step("file capability", lambda: os.setxattr(
    f"/tmp/{here}", "security.capability", struct.pack("<5I", 0x02000001, 0xFF, 0, 0, 0)))
step("memory segment", lambda: -1 if libc.shmat(memory, 0, 0) == 2**64 - 1 else 0)
step("semaphore", lambda: libc.semop(semaphore, struct.pack("HhH", 0, 1, 0), 1))
step("message", lambda: libc.msgrcv(queue, ctypes.create_string_buffer(64), 16, 0, 0o4000))
step("terminal", lambda: os.open(terminal, os.O_RDWR | os.O_NOCTTY))
left, right = socket.socketpair(socket.AF_UNIX)
for name, ids in (("credentials", (os.getpid(), victim, victim)), ("pid", (pid, own, own))):
    step("forge " + name, lambda: left.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("iII", *ids))]))
print(json.dumps(got))
"""
_CALLS = ("tgkill", "pidfd_getfd", "get_robust_list", "ioprio_set")

# Of any process of a machine, by any user; an abstract socket has no mode.
_SHOWN = ["read cmdline", "read stat", "read limits", "connect socket-"]
# Refused to everybody, by the filter of system calls or for want of a capability.
_FOR_NOBODY = ["descriptor", "file capability", "forge pid"]


def _start_victim(sandbox: cellwall.Sandbox, owner: str) -> list[str]:
    sandbox.files.write("/tmp/victim.py", _VICTIM)
    ran = sandbox.commands.run(
        "python3 -I /tmp/victim.py > /tmp/facts 2>&1 & while ! grep -q pts /tmp/facts; do :; done;"
        "cat /tmp/facts; rm -f /tmp/facts",
        user=owner,
    )
    assert ran.exit_code == 0, (ran.stdout, ran.stderr, ran.error)
    return str(ran.stdout).split()


def _steal(sandbox: cellwall.Sandbox, user: str, facts: list[str]) -> list[str]:
    numbers = json.dumps({name: system_calls()[name] for name in _CALLS})
    sandbox.files.write("/tmp/thief.py", _THIEF)
    ran = sandbox.commands.run(["python3", "-I", "/tmp/thief.py", *facts, numbers], user=user)
    assert (ran.exit_code, ran.stderr) == (0, ""), (ran.stdout, ran.stderr, ran.error)
    got: list[str] = json.loads(ran.stdout)
    return got


@pytest.mark.requirement("ISO-1", "ISO-5", "ISO-6", "ISO-10")
@pytest.mark.parametrize(("owner", "thief"), [("root", "sandbox"), ("sandbox", "root")])
def test_a_user_gets_of_the_other_what_anybody_is_shown_and_no_more(
    owner: str, thief: str, sandbox: cellwall.Sandbox
) -> None:
    facts = _start_victim(sandbox, owner)
    stolen = _steal(sandbox, thief, facts)
    assert stolen == _SHOWN
    control = _steal(sandbox, owner, facts)
    assert set(stolen) < set(control)
    assert len(control) > 40, control
    assert not set(control) & set(_FOR_NOBODY)


@pytest.fixture
def closed_umask() -> Iterator[None]:
    """As `cellwall serve` and the supervisor set it."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def _modes(sandbox: cellwall.Sandbox, user: str = "root") -> str:
    sandbox.files.write("folder/file", "text")
    ran = sandbox.commands.run(
        "stat -c '%a %u %n' . folder folder/file; cat folder/file", user=user
    )
    assert ran.exit_code == 0, (ran.stderr, ran.error)
    return str(ran.stdout)


@pytest.mark.requirement("ISO-1", "FS-9")
def test_root_enters_a_workspace_whatever_the_umask_of_the_service(
    config: str, closed_umask: None, open_folder: Path
) -> None:
    shown = "755 1000 .\n755 1000 folder\n644 1000 folder/file\ntext"
    with cellwall.Sandbox.create(config=config, second_user=True) as sandbox:
        assert _modes(sandbox) == shown
        taken = sandbox.snapshot()
    for options in ({"from_snapshot": taken.id}, {"workspace": f"{open_folder}:cow"}):
        with cellwall.Sandbox.create(config=config, second_user=True, **options) as sandbox:
            assert _modes(sandbox) == shown


def _one_shot(tmp_path: Path, backend: str, second_user: str) -> tuple[str, str]:
    """The code of the refusal, or the output."""
    file = tmp_path / f"{backend}-{second_user}.toml"
    file.write_text(f'[sandbox]\nsecond_user = "{second_user}"\nbackend = "{backend}"\n')
    ran = cellwall.run_command("id -u", user="root", config=str(file))
    if ran.refusal is None:
        return "", str(ran.stdout)
    assert ran.refusal.hint
    return ran.refusal.code, str(ran.stdout)


@pytest.mark.requirement("ISO-4", "POL-11")
@pytest.mark.parametrize("backend", ["native", "container", "gvisor", "kvm"])
def test_no_run_is_of_the_first_user_in_the_name_of_the_second(
    backend: str, tmp_path: Path
) -> None:
    assert _one_shot(tmp_path, backend, "refuse") == ("CW-SECOND-USER-OFF", "")
    allowed = _one_shot(tmp_path, backend, "allow")
    # The control: where there can be one, the program is that user's.
    assert allowed == (("", "0\n") if backend == "native" else ("CW-SECOND-USER-HOST", ""))


# --- what the first user can put in the way of the second one

_PLANTED = "open('/dev/shm/ran-' + str(__import__('os').getuid()), 'w').close()\n"


@pytest.mark.requirement("ISO-1")
def test_root_imports_nothing_that_the_first_user_wrote(config: str, open_folder: Path) -> None:
    """Python packages of a directory are found by a variable, and a user base has a start file."""
    (open_folder / ".cellwall-packages").mkdir(mode=0o777)
    (open_folder / ".cellwall-packages").chmod(0o777)
    with cellwall.Sandbox.create(
        config=config, second_user=True, workspace=f"{open_folder}:cow"
    ) as sandbox:
        place = ".cellwall-packages/lib/python$(python3 -c 'import sys; print(sys.version[:4])')"
        sandbox.files.write("/tmp/usercustomize.py", _PLANTED)
        for base in (place, place.replace(".cellwall-packages", "/tmp/.local")):
            planted = sandbox.commands.run(
                f"mkdir -p {base}/site-packages && cp /tmp/usercustomize.py {base}/site-packages/"
            )
            assert planted.exit_code == 0, planted.stderr
        for user in ("sandbox", "root"):
            assert sandbox.commands.run("python3 -c 1", user=user, cwd="/").exit_code == 0
        ran = sandbox.commands.run("ls /dev/shm").stdout.split()
        assert ran == ["ran-1000"], "the control: the first user's own Python does"


_WATCH = """
import ctypes, os
libc = ctypes.CDLL(None)
line = libc.inotify_init()
libc.inotify_add_watch(line, b"/tmp", 0x100 | 0x80)  # IN_CREATE, IN_MOVED_TO
print("ready", flush=True)
while True:
    print(os.read(line, 4096)[16:].strip(b"\\0").decode("latin-1"), flush=True)
"""


@pytest.mark.requirement("ISO-1")
def test_no_script_and_no_temporary_file_of_root_lies_where_the_first_user_renames(
    sandbox: cellwall.Sandbox,
) -> None:
    watch = sandbox.commands.run(["python3", "-I", "-u", "-c", _WATCH], background=True)

    def seen_until(mark: str) -> str:
        seen = ""
        while mark not in seen:
            seen += watch.follow().stdout
        return seen

    seen_until("ready")
    script = f"mktemp >/dev/null; mktemp -d >/dev/null; : {'x' * 140_000}"
    seen = {}
    for user in ("root", "sandbox"):
        ran = sandbox.commands.run(script, user=user)
        assert ran.exit_code == 0, ran.stderr
        sandbox.commands.run(f"touch /tmp/after-{user}", user=user)
        seen[user] = seen_until(f"after-{user}")
    assert seen["root"].split() == ["after-root"]
    assert ".cellwall-script-" in seen["sandbox"], "the control"
    assert seen["sandbox"].count("tmp.") == 2


# Replaces the script of a command that is too long for an argument, between its file and its start.
_REPLACE_SCRIPTS = """
import os
number = 0
bases = ("/tmp", os.environ["HOME"])
while True:
    for folder in (*bases, *(f"{base}/{name}" for base in bases for name in os.listdir(base))):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            path = folder + "/" + name
            if "script" in path and os.path.isfile(path):
                number += 1
                own = f"{os.path.dirname(path)}/own-{number}"
                try:
                    open(own, "w").write("echo replaced as $(id -un)\\n"); os.chmod(own, 0o644)
                    os.rename(own, path)
                except OSError:
                    pass
"""
_LONG = ["sh", "-c", "echo as it was\n" + "#" * 140_000]


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize(("owner", "thief"), [("root", "sandbox"), ("sandbox", "root")])
def test_neither_replaces_a_long_script_of_the_other(
    owner: str, thief: str, sandbox: cellwall.Sandbox
) -> None:
    sandbox.commands.run(["python3", "-I", "-c", _REPLACE_SCRIPTS], background=True, user=thief)
    for _ in range(12):
        ran = sandbox.commands.run(_LONG, user=owner)
        assert (ran.exit_code, ran.stdout) == (0, "as it was\n")
    for _ in range(200):  # the control: the user's own scripts can be replaced
        ran = sandbox.commands.run(_LONG, user=thief)
        if ran.stdout == f"replaced as {thief}\n":
            return
    pytest.fail("the attack replaces nothing")


@pytest.mark.requirement("ISO-1")
def test_root_imports_no_package_that_the_first_user_installed(
    config: str, open_folder: Path
) -> None:
    (open_folder / PACKAGES_IN_WORKSPACE).mkdir()
    with cellwall.Sandbox.create(
        config=config, second_user=True, workspace=f"{open_folder}:cow"
    ) as sandbox:
        plant = (
            "folder=$(python3 -m site --user-site); mkdir -p $folder;"
            "echo 'import os; print(os.getuid())' > $folder/usercustomize.py; python3 -c 0"
        )
        planted = sandbox.commands.run(plant, user="sandbox")
        assert planted.stdout == "1000\n"  # the control
        ran = sandbox.commands.run("python3 -c 0; echo $PATH", user="root")
        assert ran.exit_code == 0
        assert ran.stdout.startswith("/")
        assert "/workspace" not in ran.stdout


@pytest.mark.requirement("FS-7")
def test_the_file_api_in_shared_memory_directories_acts_as_the_first_user(
    sandbox: cellwall.Sandbox,
) -> None:
    made = sandbox.commands.run(
        "mkdir -m 777 /tmp/open /dev/shm/open; umask 077; echo own > /tmp/open/own; echo own > /tmp/own",
        user="root",
    )
    assert made.exit_code == 0
    for place in ("/tmp", "/tmp/open", "/dev/shm", "/dev/shm/open"):
        sandbox.files.write(f"{place}/new", "text")
        sandbox.files.write(f"{place}/a/b", "text")
        sandbox.files.make_dir(f"{place}/made/below")
        shown = sandbox.commands.run(
            f"cd {place}; stat -c '%u %a' new a a/b made made/below", user="root"
        )
        assert shown.stdout == "1000 644\n1000 755\n1000 644\n1000 755\n1000 755\n"
    for path in ("/tmp/own", "/tmp/open/own"):
        for refused in (sandbox.files.read, sandbox.files.remove):
            if (refused, path) != (sandbox.files.remove, "/tmp/open/own"):  # anybody's directory
                with pytest.raises(CellwallError):
                    refused(path)
        with pytest.raises(CellwallError):
            sandbox.files.write(path, "changed")
        assert sandbox.commands.run(f"cat {path}", user="root").stdout == "own\n"


@pytest.mark.requirement("POL-11", "ISO-1")
@pytest.mark.parametrize(
    ("command", "denied_to"),
    [
        ("cat ~/secret", ["root"]),
        ("cat $HOME/secret", ["root"]),
        ("cd && cat secret", ["root"]),
        ("cat /root/secret", ["sandbox", "root"]),
        ("cat ~/.keys/one", ["sandbox", "root"]),
        ("cat /root/.keys/one", ["root"]),
        ("cat /workspace/.keys/one", ["sandbox", "root"]),
        ("cat ~/other", []),  # the control
    ],
)
def test_a_rule_about_files_holds_in_the_home_of_each_user(
    command: str, denied_to: list[str], config: str, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[permissions]\nallow = ["Bash(*)"]\ndeny = ["Read(/root/secret)", "Read(~/.keys/**)"]\n'
    )
    with cellwall.Sandbox.create(config=config, second_user=True, policy=str(policy)) as sandbox:
        ran = {user: sandbox.commands.run(command, user=user) for user in ("sandbox", "root")}
        denied = [user for user, each in ran.items() if each.status == "denied"]
    assert denied == denied_to


# Stops each process that appears, between its fork by init and its program.
_STOP_STARTS = """
import os, signal
while True:
    last = max(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in range(last, last + 3):
        try:
            if pid != os.getpid(): os.kill(pid, signal.SIGSTOP)
        except OSError: pass
"""


@pytest.mark.requirement("ISO-1", "ISO-5")
@pytest.mark.parametrize(("owner", "thief"), [("root", "sandbox"), ("sandbox", "root")])
def test_neither_stops_a_program_of_the_other_that_is_started(
    owner: str, thief: str, config: str
) -> None:
    with cellwall.Sandbox.create(config=config, second_user=True, timeout=3) as sandbox:
        sandbox.commands.run(["python3", "-I", "-c", _STOP_STARTS], background=True, user=thief)
        for _ in range(25):
            assert sandbox.commands.run(["true"], user=owner).exit_code == 0
        for _ in range(100):  # the control: the user's own programs are stopped
            if sandbox.commands.run(["true"], user=thief).limit == "wall":
                return
    pytest.fail("the attack stops nothing")
