"""What the host does is not read in a cell: interrupts, disks, pressure, the name of its boot (ISO-5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import cellwall
from conftest import need

pytestmark = pytest.mark.requirement("ISO-5")

_LOOK = """
import fcntl, json, os, tempfile
told, locked = {}, tempfile.TemporaryFile()
fcntl.flock(locked, fcntl.LOCK_EX)
for name in ("stat", "diskstats", "softirqs", "interrupts", "vmstat", "partitions", "zoneinfo",
             "buddyinfo", "schedstat", "cgroups", "crypto", "devices", "misc", "iomem", "slabinfo",
             "vmallocinfo", "swaps", "timer_list", "mdstat", "locks", "sys/fs/file-nr", "sys/fs/inode-nr",
             "sys/fs/inode-state", "sys/fs/dentry-state", "sys/kernel/core_pattern",
             "sys/kernel/pty/nr", "sys/kernel/random/boot_id"):
    try:
        with open(f"/proc/{name}") as file: told[name] = file.read()
    except OSError: told[name] = ""
told["pressure"] = os.listdir("/proc/pressure") if os.path.isdir("/proc/pressure") else []
print(json.dumps(told))
"""


def counts(text: str) -> int:
    """Everything that is counted, without the time of the boot and the one process."""
    lines = [line for line in text.splitlines() if not line.startswith(("btime", "proc"))]
    return sum(int(word) for line in lines for word in line.split()[1:] if word.isdigit())


def test_counters_of_the_host_are_empty_inside() -> None:
    command = [sys.executable, "-I", "-c", _LOOK]
    outside = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    need(counts(outside["stat"]) > 0, "counters in the host's /proc/stat")
    shown = (
        "locks",
        "cgroups",
        "devices",
        "sys/fs/file-nr",
        "sys/fs/dentry-state",
        "sys/kernel/random/boot_id",
    )
    assert all(outside[name] for name in shown)
    inside = json.loads(cellwall.run_code(_LOOK).stdout)
    stat = inside.pop("stat")
    assert {name: text for name, text in inside.items() if text} == {}
    assert counts(stat) == 0


@pytest.mark.requirement("LANG-1")
def test_programs_that_count_processors_still_do() -> None:
    code = "import os\n[os.cpu_count(), os.sysconf('SC_NPROCESSORS_ONLN')]"
    assert cellwall.run_code(code).value == [os.cpu_count()] * 2
    # Settings that programs ask for are still told.
    asked = "kernel/osrelease kernel/pid_max kernel/threads-max kernel/cap_last_cap fs/file-max vm/max_map_count net/core/somaxconn"
    cat = cellwall.run_command(
        f"cd /proc/sys && cat {asked} && cat /proc/filesystems /proc/self/cgroup"
    )
    assert (cat.exit_code, cat.stderr) == (0, "")
    ran = cellwall.run_command("nproc; ps -o pid= -p $$; uptime -p >/dev/null && free >/dev/null")
    assert (ran.exit_code, ran.stdout.split()[0]) == (0, str(os.cpu_count())), ran.stderr


def test_the_file_in_its_place_cannot_be_written_or_taken_away() -> None:
    code = (
        "import os\nfound = []\n"
        "for act in (lambda: open('/proc/stat', 'w'), lambda: os.unlink('/proc/stat'),\n"
        "            lambda: os.rename('/proc/stat', '/proc/x'), lambda: os.chmod('/proc/stat', 0o777)):\n"
        "    try: act(); found.append('done')\n"
        "    except OSError as error: found.append('refused')\n"
        "found"
    )
    assert cellwall.run_code(code).value == ["refused"] * 4
