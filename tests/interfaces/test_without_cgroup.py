"""A host that gives no cgroup, as a default container does: refused, or measured by a setting."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from conftest import need
from interfaces import prepared_program, test_cli_process

# The cgroup mounts become read-only in a mount namespace of the process, as in a container.
_READ_ONLY = """
import ctypes, re, subprocess, sys
assert ctypes.CDLL(None).unshare(0x20000) == 0  # CLONE_NEWNS
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
with open("/proc/self/mountinfo") as file:
    places = re.findall(r"^(?:[^ ]* ){4}([^ ]*) .* - cgroup", file.read(), re.MULTILINE)
for place in places:
    subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
"""
_MAIN = """
from cellwall.interfaces.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def cellwall(tmp_path):
    """Runs the program on such a host; `weaker` is the setting."""
    need(os.geteuid() == 0, "root, to make cgroups read-only")
    config = tmp_path / "config.toml"

    def run(
        *words: str, weaker: bool = True, limits: str = "", code: str = _MAIN
    ) -> subprocess.CompletedProcess[bytes]:
        setting = f"dangerously_without_cgroup = {str(weaker).lower()}"
        config.write_text(f"[sandbox]\n{setting}\n[limits]\n{limits}\n")
        environ = {
            **os.environ,
            "CELLWALL_CONFIG": str(config),
            "CELLWALL_HOME": str(tmp_path / "home"),
            "CELLWALL_SUPERVISOR": "off",
        }
        return prepared_program.run(
            words, code=_READ_ONLY + code, stdin=b"", env=environ, timeout_s=100
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
    assert b"CW-LAYER-CGROUP" in done.stderr
    assert b"dangerously_without_cgroup" in done.stderr
    assert b"config.toml" in done.stderr


@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize("code", [GROW, GROW_TOGETHER, FILL, GROW_AND_PRINT])
def test_measured_memory_ends_a_run_by_name(cellwall, code):
    done = cellwall("code", "--memory", "64m", "--json", "-c", code)
    outcome = json.loads(done.stdout)
    assert (outcome["limit"], done.returncode) == ("memory", 137)
    assert "without-cgroup" in [each["rule"] for each in outcome["findings"]]


@pytest.mark.requirement("LIM-3")
def test_memory_that_was_refused_before_a_sample_ends_the_run_by_name_too(cellwall):
    late = (
        "from cellwall.sandbox.linux.proc_usage import UsageSampler\n"
        "UsageSampler._memory = lambda *_: 0\n"
    )
    done = cellwall("code", "--memory", "64m", "--json", "-c", GROW, code=late + _MAIN)
    assert (json.loads(done.stdout)["limit"], done.returncode) == ("memory", 137)
    # The control: an error of a program that stays within its memory is its own.
    done = cellwall(
        "code", "--memory", "64m", "--json", "-c", "raise MemoryError", code=late + _MAIN
    )
    assert (json.loads(done.stdout)["limit"], done.returncode) == (None, 1)


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
    assert (done.stdout, done.returncode) == (b"reserved\n", 0)
    assert cellwall("doctor").returncode == 0


@pytest.mark.requirement("LIM-3")
def test_memory_that_cannot_be_measured_is_not_to_be_had(cellwall):
    assert cellwall("code", "-c", UNSEEN).stdout == b"38 38 38 38\n"
    with_cgroup = test_cli_process.cellwall("code", "-c", UNSEEN)
    assert with_cgroup.stdout == b"False False False False\n"  # the control: a cgroup counts it


_BACKGROUND = """
import cellwall
with cellwall.Sandbox.create(memory="64m") as sandbox:
    idle = sandbox.commands.run(["sleep", "1000"], background=True)
    print(idle.wait(1).exit_code)
    grow = "import os, time; os.fork(); os.fork(); x = bytearray(b'x' * 20_000_000); time.sleep(1000)"
    print(sandbox.commands.run(["python3", "-c", grow], background=True).wait(50).exit_code)
"""


@pytest.mark.requirement("LIM-3")
def test_what_runs_between_calls_is_measured_too(cellwall):
    done = cellwall(code=_BACKGROUND)
    assert done.stdout == b"None\n137\n", done.stderr


_LIVE = """
import cellwall
with cellwall.Sandbox.create() as sandbox:
    given = [sandbox.run_code("import sys; sys.stdin.read()", stdin=text).value for text in ("a", "")]
print(given)
"""


@pytest.mark.requirement("LIM-3")
def test_live_code_reads_its_standard_input_where_memory_files_are_refused(cellwall):
    done = cellwall(code=_LIVE)
    assert (done.returncode, done.stdout) == (0, b"['a', '']\n"), done.stderr
