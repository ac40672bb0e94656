"""The conformance suite: what every backend must prove from inside its own walls (ISO-11).

Each check is data: what it proves, what is run, and the fields that its outcome must have. Code
that looks for weaknesses returns those it found, so `[]` is the good answer. None of it does harm
where a wall is missing: it opens without writing, and takes away what it made.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from holdfast.core.errors import HoldfastError
from holdfast.core.limits import MIB, Limits
from holdfast.core.types import Action, Json, Outcome, Principal, RunCode, RunCommand, new_id

Run = Callable[[Action], Awaitable[Outcome]]
"""One action, carried out by the backend under test; a refusal is a value or a HoldfastError."""

_BAIT = "HOLDFAST_SELFCHECK_BAIT"
_GIVEN = "SELFCHECK"
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold."""

    name: str
    requirement: str
    proves: str
    want: RunCode | RunCommand
    expected: Mapping[str, object]
    """Fields of the outcome, and what they must be."""
    before: RunCode | None = None
    """Run first: in another cell, or in the same one where it lives on."""
    limits: Mapping[str, float] = field(default_factory=dict)
    stdin: bytes | None = None
    lives_on: bool = False


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check; `found` tells what was wrong."""

    name: str
    requirement: str
    proves: str
    passed: bool
    found: str = ""

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "requirement": self.requirement,
            "proves": self.proves,
            "passed": self.passed,
            "found": self.found,
        }


async def selfcheck(
    run: Run, *, principal: Principal, session_id: str, limits: Limits | None = None
) -> list[CheckResult]:
    """Every check, one after the other. `session_id` names a live sandbox that may be used up."""
    with _bait() as given:
        env = {_GIVEN: json.dumps(given)}
        base = Action(principal=principal, want=CHECKS[0].want, limits=limits or Limits(), env=env)
        return [await _carry_out(run, check, base, session_id) for check in CHECKS]


async def _carry_out(run: Run, check: Check, base: Action, session_id: str) -> CheckResult:
    action = replace(
        base,
        want=check.want,
        stdin=check.stdin,
        limits=replace(base.limits, **check.limits),
        session_id=session_id if check.lives_on else None,
    )
    told = (check.name, check.requirement, check.proves)
    try:
        if check.before is not None:
            # No mark that it leaves behind is worth anything if it could not leave one.
            before = await run(replace(action, id=new_id("act"), want=check.before, stdin=None))
            if before.error is not None:
                return CheckResult(*told, False, f"before it: {before.error.message}")
        outcome = await run(replace(action, id=new_id("act")))
    except HoldfastError as error:
        return CheckResult(*told, False, str(error))
    wrong = differences(check.expected, outcome)
    return CheckResult(*told, not wrong, "; ".join(wrong))


def differences(expected: Mapping[str, object], outcome: Outcome) -> list[str]:
    """What is not as expected, in words. An error of the sandbox itself is never as expected."""
    wrong = [] if outcome.error is None else [f"{outcome.error.message} [{outcome.error.code}]"]
    for name, value in expected.items():
        found = getattr(outcome, name)
        # Not only equal: 1 is no True, and a text is no limit.
        if found != value or isinstance(found, bool) != isinstance(value, bool):
            wrong.append(f"{name} is {found!r:.300}, not {value!r:.300}")
    return wrong


@contextmanager
def _bait() -> Iterator[dict[str, Json]]:
    """Things of the host's that no cell may find; each can be found from outside."""
    token = hashlib.sha256(os.urandom(16)).hexdigest()[:24]
    with ExitStack() as stack:
        files: list[str] = []
        for folder in (
            "/tmp",
            "/var/tmp",
            "/dev/shm",
            os.path.expanduser("~"),
        ):  # the host's own, on purpose
            with suppress(OSError):
                made = tempfile.NamedTemporaryFile(prefix=f".selfcheck-{token}-", dir=folder)
                stack.enter_context(made)
                files.append(made.name)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(f"\0{token}")
        unix.listen()
        os.environ[_BAIT] = token
        stack.callback(os.environ.pop, _BAIT, None)
        yield {
            "token": token,
            "bait": _BAIT,
            "files": files,
            "port": tcp.getsockname()[1],
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
            "hostname": os.uname().nodename,
        }


def _finds_nothing(code: str) -> RunCode:
    return RunCode("python", (_PRELUDE + code + "\nfound").encode())


def _python(code: str) -> RunCode:
    return RunCode("python", code.encode())


def _shell(command: str) -> RunCommand:
    return RunCommand(("/bin/sh", "-c", command))


_PRELUDE = """
import json, os, socket
given = json.loads(os.environ["SELFCHECK"])
found = []
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
def tries(name, deed):
    try: deed()
    except OSError: return
    found.append(name)
def makes(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    os.unlink(path)
"""
_MARKS = """
import os
for place in ("/tmp", "/dev/shm", "/workspace"):
    try: open(place + "/selfcheck-mark", "x").close()
    except OSError: pass
"""
_FORKS = """
import os
gone, held = os.pipe()
for _ in range(60):
    if os.fork() == 0:
        os.close(held)
        os.read(gone, 1)
        os._exit(0)
"""
_NO_WALL = {"status": "ok", "value": []}


def _wall(name: str, requirement: str, proves: str, code: str) -> Check:
    return Check(
        name=name,
        requirement=requirement,
        proves=proves,
        want=_finds_nothing(code),
        expected=_NO_WALL,
    )


def _limit(name: str, limits: Mapping[str, float], want: RunCode | RunCommand) -> Check:
    return Check(
        name=f"limit {name}",
        requirement="LIM-2",
        proves=f"what goes over its {name} limit ends, and is told so",
        want=want,
        limits=limits,
        expected={"status": "limit", "limit": name},
    )


# fmt: off
CHECKS: tuple[Check, ...] = (
    _wall("namespaces", "ISO-1", "code is in namespaces of its own", """
found += [n for n, link in given["namespaces"].items() if os.readlink("/proc/self/ns/" + n) == link]"""),
    _wall("uid", "ISO-1", "code is not root, and in no group of anybody's", """
found += [w for w in (*os.getresuid(), *os.getresgid()) if w == 0] + [g for g in os.getgroups() if g != os.getgid()]
tries("becomes root", lambda: os.setuid(0))"""),
    _wall("capabilities", "ISO-1", "no capability is held or can be had", """
found += [n for n in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[n], 16)]"""),
    _wall("no new privileges", "ISO-1", "a set-uid program gives nothing", """
found += [] if status["NoNewPrivs"].strip() == "1" else ["NoNewPrivs is off"]"""),
    _wall("seccomp", "ISO-1", "a filter judges every system call", """
found += [] if status["Seccomp"].strip() == "2" else ["Seccomp is " + status["Seccomp"].strip()]
tries("unshare", lambda: getattr(os, "unshare", lambda _: open("/", "w"))(0x10000000))"""),
    _wall("read-only root", "ISO-2", "nothing but its own places can be written", """
for place in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/var"):
    if os.path.isdir(place): tries(place, lambda: makes(place + "/selfcheck-" + given["token"]))"""),
    _wall("files of the host", "ISO-2", "no home, no key, no socket of the host is there", """
found += [path for path in given["files"] if os.path.lexists(path)]
for path in ("/root", "/home", "/etc/shadow", "/run/docker.sock", "/var/run/docker.sock", "/run/user"):
    tries(path, lambda: os.listdir(path) and None if os.path.isdir(path) and os.listdir(path) else open(path).close())"""),
    _wall("environment", "ISO-3", "no variable of the parent reaches the code", """
found += [given["bait"]] if given["bait"] in os.environ else []
for name in filter(str.isdigit, os.listdir("/proc")):
    try: words = open(f"/proc/{name}/environ", "rb").read()
    except OSError: continue
    if given["bait"].encode() + b"=" in words: found.append(name)"""),
    _wall("network", "NET-1", "not even the host's loopback is reached", """
found += [name for _, name in socket.if_nameindex() if name != "lo"]
tries("loopback", lambda: socket.create_connection(("127.0.0.1", given["port"]), 2).close())
tries("abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + given["token"]))"""),
    _wall("processes", "ISO-5", "only its own processes are seen or reached", """
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
found += [pids] if len(pids) > 6 else []
found += [] if os.readlink("/proc/self") == str(os.getpid()) else ["/proc is not of this namespace"]
for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/maps"): tries(path, lambda: open(path, "rb").read(1))"""),
    _wall("kernel settings", "ISO-6", "/proc/sys and its like cannot be written", """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/kcore"):
    tries(path, lambda: os.close(os.open(path, os.O_RDONLY if "kcore" in path else os.O_WRONLY)))
found += [n for n in ("/proc/irq", "/proc/bus", "/sys/kernel") if os.path.isdir(n) and os.listdir(n)]"""),
    _wall("host name", "ISO-1", "the host's name is not told", """
found += [given["hostname"]] if os.uname().nodename == given["hostname"] else []"""),
    _wall("private places", "ISO-2", "/tmp, /dev/shm and /workspace are its own, empty and writable", """
for place in ("/tmp", "/dev/shm", "/workspace"):
    found += [f"{place}/{name}" for name in os.listdir(place)]
    try: makes(place + "/selfcheck-" + given["token"])
    except OSError as error: found.append(f"{place}: {error}")"""),
    _wall("descriptors", "ISO-9", "no descriptor of the supervisor came along", """
for number in range(4, 4096):
    try: os.fstat(number)
    except OSError: continue
    found.append(number)"""),
    Check(
        name="earlier cells", requirement="ISO-7", proves="nothing that another cell left is found",
        before=_python(_MARKS),
        want=_finds_nothing("""
found += [p for p in ("/tmp", "/dev/shm", "/workspace") if os.path.exists(p + "/selfcheck-mark")]"""),
        expected=_NO_WALL,
    ),
    _limit("wall", {"wall_s": 0.5}, _shell("sleep 20")),
    _limit("cpu", {"cpu_s": 0.5, "wall_s": 20}, _python("import time\nwhile time.process_time() < 8: pass")),
    _limit("memory", {"memory_bytes": 64 * MIB}, _python("x = bytearray(200 << 20)")),
    _limit("processes", {"processes": 20}, _python(_FORKS)),
    _limit("output", {"output_bytes": 10_000}, _shell("head -c 20000 /dev/zero")),
    _limit("disk", {"disk_bytes": 4 * MIB}, _python(
        "import os\nwith open('big', 'wb') as f:\n    for _ in range(12): f.write(bytes(1 << 20))")),
    _limit("file_size", {"file_size_bytes": MIB}, _python("open('big', 'wb').write(bytes(2 << 20))")),
    _limit("open_files", {"open_files": 64}, _python("x = [open('/dev/null') for _ in range(100)]")),
    Check(
        name="output and exit code", requirement="ERR-2", proves="bytes and code are the program's own",
        want=_shell(r"printf 'a\000b\377'; printf err >&2; exit 7"),
        expected={"status": "failed", "exit_code": 7, "stdout_bytes": b"a\0b\xff", "stderr_bytes": b"err"},
    ),
    Check(
        name="death by signal", requirement="ERR-2", proves="a signal is told as 128 and its number",
        want=_shell("kill -SEGV $$"), expected={"status": "failed", "exit_code": 139, "limit": None},
    ),
    Check(
        name="standard input", requirement="LANG-1", proves="input arrives whole, and ends",
        want=RunCommand(("/bin/cat",)), stdin=bytes(range(256)) * 1000,
        expected={"status": "ok", "exit_code": 0, "stdout_bytes": bytes(range(256)) * 1000},
    ),
    Check(
        name="value", requirement="LANG-2", proves="the last expression comes back as plain data",
        want=_python("import sys\n{'a': [1, 2.5, None, True, 'é'], 'in': sys.stdin.read()}"), stdin=b"x",
        expected={"status": "ok", "value": {"a": [1, 2.5, None, True, "é"], "in": "x"}},
    ),
    Check(
        name="error of the code", requirement="ERR-2", proves="the code's own failure is an outcome",
        want=_python("1 / 0"), expected={"status": "failed", "exit_code": 1, "value": None},
    ),
    Check(
        name="state is kept", requirement="LANG-2", proves="variables of a live sandbox live on",
        before=_python("x = 41"), want=_python("x + 1"), lives_on=True,
        expected={"status": "ok", "value": 42, "state": "kept"},
    ),
    Check(
        name="lost state is told", requirement="LANG-2", proves="an interpreter that ended is named",
        before=_python("x = 41"), want=_python("import os; os._exit(3)"), lives_on=True,
        expected={"status": "failed", "exit_code": 3, "state": "lost"},
    ),
    Check(
        name="after a loss", requirement="LANG-2", proves="a live sandbox goes on, with nothing of before",
        want=_python("'x' in globals()"), lives_on=True,
        expected={"status": "ok", "value": False, "state": "kept"},
    ),
)
# fmt: on
