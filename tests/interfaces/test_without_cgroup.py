"""A host that gives no cgroup, as a default container does: refused, or measured by a setting."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from conftest import need

# The cgroup mounts become read-only in a mount namespace of the test's own, as in a container.
_READ_ONLY = """
for place in $(sed -n 's/^[^ ]* [^ ]* [^ ]* [^ ]* \\([^ ]*\\) .* - cgroup.*/\\1/p' /proc/self/mountinfo)
do mount -o remount,bind,ro "$place"; done
exec "$@"
"""
_PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")


@pytest.fixture
def cellwall(tmp_path):
    """Runs the program on such a host; `weaker` is the setting."""
    need(os.geteuid() == 0, "root, to make cgroups read-only")
    config = tmp_path / "config.toml"

    def run(
        *words: str, weaker: bool = True, limits: str = "", program: str = _PROGRAM
    ) -> subprocess.CompletedProcess[str]:
        setting = f"dangerously_without_cgroup = {str(weaker).lower()}"
        config.write_text(f"[sandbox]\n{setting}\n[limits]\n{limits}\n")
        environ = {
            **os.environ,
            "CELLWALL_CONFIG": str(config),
            "CELLWALL_HOME": str(tmp_path / "home"),
            "CELLWALL_SUPERVISOR": "off",
        }
        command = ["unshare", "-m", "sh", "-c", _READ_ONLY, "sh", program, *words]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=100, check=False
        )

    return run


GROW = "x = []\nwhile True: x.append(bytearray(1_000_000))"
GROW_TOGETHER = """
import os, time
for _ in range(7):
    if os.fork() == 0:
        break
x = bytearray(b'x' * 15_000_000)
time.sleep(25)
"""
FILL = "open('/dev/shm/x', 'wb').write(bytes(15_000_000)); y = bytearray(b'x' * 55_000_000)\nimport time; time.sleep(25)"

# Words all the time are no reason not to look.
GROW_AND_PRINT = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = bytearray(b'x' * 20_000_000)
        time.sleep(25)
        os._exit(0)
for _ in range(4000):
    print('.', flush=True)
    time.sleep(0.005)
"""
UNSEEN = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(call, *args):
    return getattr(libc, call)(*args) == -1 and ctypes.get_errno()
print(refused('memfd_create', b'x', 0), refused('shmget', 0, 4096, 0o1600),
      refused('msgget', 0, 0o1600), refused('semget', 0, 1, 0o1600))
"""


@pytest.mark.requirement("ISO-4", "LIM-3")
def test_without_the_setting_a_run_is_refused_and_the_file_to_change_is_named(cellwall):
    done = cellwall("run", "--", "true", weaker=False)
    assert done.returncode == 125
    assert "CW-LAYER-CGROUP" in done.stderr
    assert "dangerously_without_cgroup" in done.stderr
    assert "config.toml" in done.stderr


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize("code", [GROW, GROW_TOGETHER, FILL, GROW_AND_PRINT])
def test_measured_memory_ends_a_run_by_name(cellwall, code):
    done = cellwall("code", "--memory", "64m", "--json", "-c", code)
    outcome = json.loads(done.stdout)
    assert (outcome["limit"], done.returncode) == ("memory", 137)
    assert "without-cgroup" in [each["rule"] for each in outcome["findings"]]


@pytest.mark.requirement("LIM-3")
def test_measured_processor_time_of_all_processes_ends_a_run_by_name(cellwall):
    spin = "import os\nos.fork()\nwhile True: pass"
    done = cellwall("code", "--json", "-c", spin, limits="cpu_s = 1")
    outcome = json.loads(done.stdout)
    assert (outcome["limit"], outcome["usage"]["cpu_s"] > 1) == ("cpu", True)


@pytest.mark.requirement("LIM-3")
def test_programs_that_reserve_much_and_use_little_run(cellwall):
    reserve = "import mmap\nx = mmap.mmap(-1, 1 << 36, prot=0, flags=mmap.MAP_PRIVATE | 0x4000)"
    done = cellwall("code", "--memory", "128m", "-c", f"{reserve}\nprint('reserved')")
    assert (done.stdout, done.returncode) == ("reserved\n", 0)
    assert cellwall("doctor").returncode == 0


@pytest.mark.requirement("LIM-3")
def test_memory_that_cannot_be_measured_is_not_to_be_had(cellwall):
    assert cellwall("code", "-c", UNSEEN).stdout == "38 38 38 38\n"
    with_cgroup = subprocess.run(
        [_PROGRAM, "code", "-c", UNSEEN], capture_output=True, text=True, timeout=100, check=False
    )
    assert with_cgroup.stdout == "False False False False\n"  # the control: a cgroup counts it


_BACKGROUND = """
import cellwall
with cellwall.Sandbox.create(memory="64m") as sandbox:
    idle = sandbox.commands.run(["sleep", "1000"], background=True)
    print(idle.wait(3).exit_code)
    grow = "import os, time; os.fork(); os.fork(); x = bytearray(b'x' * 20_000_000); time.sleep(1000)"
    print(sandbox.commands.run(["python3", "-c", grow], background=True).wait(50).exit_code)
"""


@pytest.mark.requirement("LIM-3")
def test_what_runs_between_calls_is_measured_too(cellwall):
    done = cellwall("-c", _BACKGROUND, program=sys.executable)
    assert done.stdout == "None\n137\n", done.stderr
