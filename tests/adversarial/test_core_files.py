"""A process that has opened a vault: no core file, no tracer, no reader of its memory (ISO-13)."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellwall
from conftest import ORDINARY_UID, need, ordinary_user

pytestmark = pytest.mark.requirement("ISO-13", "SEC-2")

_HOLDER = """
import ctypes, json, os, resource, sys
import cellwall
held = None
if sys.argv[1] == "vault":
    vault = cellwall.Vault.open(create=True, key="file", key_file=os.environ["CELLWALL_HOME"] + "/key")
    vault.set("TOKEN", "a-secret-value-nobody-sees-0001")
else:
    held = "a-secret-value-" + "nobody-sees-0001"
about = {"dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
         "core": resource.getrlimit(resource.RLIMIT_CORE)}
if sys.argv[2:] == ["run"]:
    with open("a", "w") as file: file.write("x")
    done = [cellwall.run_code("6 * 7").value,
            cellwall.run_command("cat a", workspace=os.getcwd()).stdout]
    with cellwall.Sandbox.create(workspace=f"{os.getcwd()}:rw") as sandbox:
        done += [sandbox.run_code("open('b', 'w').write('y')").value, sandbox.files.read("b")]
    about["done"] = done
    about["inside"] = cellwall.run_code("import resource; list(resource.getrlimit(4))").value
print(json.dumps(about), flush=True)
sys.stdin.readline()
os.abort()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        path = Path(name)
        for part in ("state", "work"):
            (path / part).mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(path / part, ORDINARY_UID, ORDINARY_UID)
        path.chmod(0o755)
        yield path


def hold(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """As a user without any right, so that CAP_SYS_PTRACE is nobody's."""
    config = folder / "cellwall.toml"
    config.write_text("[sandbox]\ndangerously_without_cgroup = true\n")
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, *words],
        env={
            "PATH": os.environ["PATH"],
            "CELLWALL_HOME": str(folder / "state"),
            "CELLWALL_CONFIG": str(config),
            "CELLWALL_PATH": os.environ["CELLWALL_PATH"],
            "XDG_CONFIG_HOME": str(folder),
        },
        cwd=folder / "work",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2
        ),
        **ordinary_user(),
    )


_READER = """
import sys
pid, found = sys.argv[1], "no"
try:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            ends, access = line.split()[:2]
            start, end = (int(part, 16) for part in ends.split("-"))
            if access.startswith("rw") and end - start < 64 << 20:
                try:
                    memory.seek(start)
                    if b"a-secret-value-" + b"nobody-sees-0001" in memory.read(end - start):
                        found = "read"
                except (OSError, ValueError, OverflowError): pass
except PermissionError: found = "refused"
print(found)
"""


def read_memory(pid: int) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _READER, str(pid)],
        capture_output=True,
        check=True,
        **ordinary_user(),
    )
    return done.stdout.decode().strip()


@pytest.mark.only_on("cold", reason="no cell takes part")
@pytest.mark.parametrize(("what", "told"), [("control", ("read", 1)), ("vault", ("refused", 0))])
def test_memory_and_core_of_a_process_with_an_open_vault(
    folder: Path, what: str, told: tuple[str, int]
) -> None:
    if what == "control":
        pattern = Path("/proc/sys/kernel/yama/ptrace_scope")
        need(not pattern.exists() or pattern.read_text().strip() == "0", "ptrace by siblings")
    with hold(folder, what) as holder:
        assert holder.stdout is not None
        about = json.loads(holder.stdout.readline())
        assert (read_memory(holder.pid), about["dumpable"]) == told
        if what == "vault":
            assert about["core"] == [1, 1]
        holder.communicate(b"abort\n")
    assert holder.returncode == -signal.SIGABRT
    cores = [path.name for path in (folder / "work").iterdir() if path.name.startswith("core")]
    if what == "vault":
        assert cores == []
    else:
        pattern = Path("/proc/sys/kernel/core_pattern")
        need(pattern.read_text().startswith("core"), "core files in the directory")
        # A test that opened a vault in this process has lowered the limit that children inherit, for
        # good. That the control's memory can be read, which is asserted above, still holds then.
        is_lowered = 0 <= resource.getrlimit(resource.RLIMIT_CORE)[1] < 1 << 20  # -1 is no limit
        assert len(cores) == (0 if is_lowered else 1)


def test_sandboxes_still_work_for_an_ordinary_user(folder: Path) -> None:
    """Files of /proc/self belong to root then; id maps are written by programs of their own."""
    with hold(folder, "vault", "run") as holder:
        told = holder.communicate(b"")[0]
    about = json.loads(told)
    assert about == {"dumpable": 0, "core": [1, 1], "done": [42, "x", 1, "y"], "inside": [1, 1]}


_LIMITS = """
import ctypes, os, resource, struct
libc = ctypes.CDLL(None, use_errno=True)
told = [list(resource.getrlimit(resource.RLIMIT_CORE))]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # prlimit64(2)
told.append(libc.syscall({"x86_64": 160, "aarch64": 164}[os.uname().machine], 4, struct.pack("QQ", 0, 0)))
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
if (child := os.fork()) == 0: os.kill(os.getpid(), 11)
told.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
told += [list(resource.getrlimit(each)) for each in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]
told
"""


@pytest.mark.requirement("ISO-5")
def test_a_crash_inside_starts_no_program_of_the_host() -> None:
    """A limit of 1, and no other, keeps the kernel from starting a collector of cores, core(5)."""
    need(resource.getrlimit(resource.RLIMIT_CORE)[1] != 0, "a limit that can be set to 1")
    done = cellwall.run_code(_LIMITS)
    assert (done.value, done.stderr) == ([[1, 1], 0, -11, [1, 1], [100, 100]], "")
