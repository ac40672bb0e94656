"""The emergency stop against 200 live sandboxes, and a SIGKILL to as many bare processes.

A stop ends when no process of a sandbox can run again; the kernel may still take namespaces apart.
Each sandbox has a program in the background; one half was forked from a template, the other has
walls of its own. The command runs in a process of its own, as a person starts it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import cellwall
from cellwall.admin.emergency_stop import EmergencyStop
from cellwall.runtime.home import local_principal
from cellwall.sandbox.linux import pool
from cellwall.sandbox.stop_flag import StopFlag

_SANDBOXES = 200
_MAX_ROUNDS = 3
_CHECKS = 20_000


def measure(rounds: int, *, quiet: bool = False) -> dict[str, float]:
    """Figures by name."""
    stops, freezes, bare, commands, processes = [], [], [], [], 0
    for turn in range(min(rounds, _MAX_ROUNDS)):
        if not quiet:
            print(f"round {turn + 1}: {_SANDBOXES} sandboxes", file=sys.stderr)
        bare.append(_kill_bare())
        frozen_s, stop_s, command_s, processes = _stop_sandboxes()
        freezes.append(frozen_s)
        stops.append(stop_s)
        commands.append(command_s)
    stop_s, bare_s = statistics.median(stops), statistics.median(bare)
    return {
        "sandboxes": _SANDBOXES,
        "processes": processes,
        "freeze_all_s": round(statistics.median(freezes), 3),
        "end_all_s": round(stop_s, 3),
        "end_all_slowest_s": round(max(stops), 3),
        "command_s": round(statistics.median(commands), 3),
        "kill_bare_s": round(bare_s, 4),
        "end_all_over_kill_bare": round(stop_s / bare_s, 1),
        "flag_check_us": round(_check_us(), 2),
    }


def _kill_bare() -> float:
    """One program for each sandbox, killed and waited for by its parent."""
    programs = [subprocess.Popen(["sleep", "600"]) for _ in range(_SANDBOXES)]
    began = time.perf_counter()
    for each in programs:
        os.kill(each.pid, signal.SIGKILL)
    for each in programs:
        each.wait()
    return time.perf_counter() - began


def _stop_sandboxes() -> tuple[float, float, float, int]:
    switch = EmergencyStop.configured(local_principal("cli"))
    with ExitStack() as stack:
        for path in ("warm", "cold"):
            with patch.dict(os.environ, CELLWALL_PATH=path):
                for _ in range(_SANDBOXES // 2):
                    made = cellwall.Sandbox.create(memory="64m", timeout=600)
                    stack.callback(made.kill)
                    made.commands.run("sleep 600", background=True)
        frozen, _ = _command("--freeze")
        switch.thaw()
        ended, command_s = _command()
        assert not ended["left"], ended
    assert switch.status().cells == 0
    switch.lift(reason="measured")
    pool.close_all()
    return frozen["took_s"], ended["took_s"], command_s, ended["processes"]


def _command(*options: str) -> tuple[dict[str, Any], float]:
    """The report of `cellwall stop --all`, and the time from its start to its end."""
    program = os.path.join(os.path.dirname(sys.executable), "cellwall")
    began = time.perf_counter()
    words = [program, "stop", "--all", *options, "--json"]
    done = subprocess.run(words, capture_output=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began


def _check_us() -> float:
    flag = StopFlag(os.environ["CELLWALL_HOME"])
    began = time.perf_counter()
    for _ in range(_CHECKS):
        flag.check()
    return (time.perf_counter() - began) / _CHECKS * 1e6
