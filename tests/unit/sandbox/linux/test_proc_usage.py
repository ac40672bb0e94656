"""What is measured where no cgroup counts: whole trees of processes, whatever they call themselves.

Files without a name are found wherever a process holds them, and counted once (LIM-6).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cellwall.core.limits import MIB, Limits
from cellwall.sandbox.linux.proc_usage import UsageSampler

_TREE = """
import ctypes, os, sys, time
if os.fork() == 0:
    ctypes.CDLL(None).prctl(15, NAME, 0, 0, 0)
    kept = bytearray(b'x' * (40 << 20))
    print('held', flush=True)
    time.sleep(60)
os.wait()
"""


@pytest.mark.slow
@pytest.mark.requirement("LIM-3")
@pytest.mark.parametrize("name", [b"plain", b"\xff\xfe", b") R 1 1 1", b"a\nb", b"(((("])
def test_a_tree_is_measured_whatever_its_processes_are_called(name: bytes) -> None:
    code = _TREE.replace("NAME", repr(name))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            tight = UsageSampler(os.getpid(), Limits(memory_bytes=32 * MIB))
            roomy = UsageSampler(process.pid, Limits(memory_bytes=512 * MIB))
            assert process.pid in tight.pids()
            assert len(roomy.pids()) == 1  # the child, not the one that is measured below
            assert tight.counters().out_of_memory == 1
            assert roomy.counters().out_of_memory == 0
            assert (roomy.counters().memory_peak or 0) > 40 * MIB
        finally:
            os.killpg(process.pid, signal.SIGKILL)


# Nobody waits for the children of a process that ignores SIGCHLD.
_UNWAITED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        while time.process_time() < 0.3: pass
        print('burned', flush=True)
        os.read(0, 1)
        os._exit(0)
    try: os.wait()
    except ChildProcessError: pass
"""


@pytest.mark.requirement("LIM-3")
def test_processor_time_of_children_that_nobody_waits_for_counts() -> None:
    command = [sys.executable, "-c", _UNWAITED]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            measured, seen = UsageSampler(process.pid, Limits()), []
            for _ in range(3):
                assert process.stdout.readline() == b"burned\n"
                seen.append(measured.counters().cpu_s or 0)
                process.stdin.write(b".")
                process.stdin.flush()
            assert 0.2 < seen[0] < 0.7
            assert seen[2] >= 0.7  # ticks round down
        finally:
            os.killpg(process.pid, signal.SIGKILL)
