"""Starts: the import, the command line with a warm supervisor, the first run of a fresh process.

Processor time is that of the started process and its children, by the kernel's account; wall time
is beside it. All ways are interleaved in one run.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

_PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
_FIRST_RUN = (
    "import time; began = time.perf_counter(); import cellwall; "
    "cellwall.run_command(['/bin/true']).raise_for_status(); "
    "print((time.perf_counter() - began) * 1000)"
)
_WAYS = {
    "python": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import cellwall"],
    "import_sandbox": [sys.executable, "-c", "from cellwall import Sandbox, run_code"],
    "cli_version": [_PROGRAM, "--version"],
    "cli_help": [_PROGRAM, "--help"],
    "cli_run_true": [_PROGRAM, "run", "--", "true"],
    "cli_code": [_PROGRAM, "code", "-c", "print(1)"],
    "first_run": [sys.executable, "-c", _FIRST_RUN],
}


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    del quiet  # short: nothing to say before the end
    walls: dict[str, list[float]] = {name: [] for name in _WAYS}
    processor: dict[str, list[float]] = {name: [] for name in _WAYS}
    first_runs = []
    _ended([_PROGRAM, "supervisor", "start"])
    try:
        for words in _WAYS.values():
            _ended(words)
        for _ in range(rounds):
            for name, words in _WAYS.items():
                wall, cpu, out = _ended(words)
                walls[name].append(wall)
                processor[name].append(cpu)
                if name == "first_run":
                    first_runs.append(float(out))
    finally:
        _ended([_PROGRAM, "supervisor", "stop"])
    figures: dict[str, Any] = {}
    for name in _WAYS:
        figures[f"{name}_p50_ms"] = _ms(walls[name])
        figures[f"{name}_cpu_p50_ms"] = _ms(processor[name])
    figures["first_run_inside_p50_ms"] = round(statistics.median(first_runs), 2)
    figures["import_added_cpu_ms"] = _difference(figures, "import")
    figures["import_sandbox_added_cpu_ms"] = _difference(figures, "import_sandbox")
    for name in ("cli_run_true", "cli_code"):
        ratio = figures[f"{name}_p50_ms"] / figures["cli_version_p50_ms"]
        figures[f"{name}_over_version"] = round(ratio, 3)
    return figures


def _difference(figures: dict[str, Any], name: str) -> float:
    return round(float(figures[f"{name}_cpu_p50_ms"] - figures["python_cpu_p50_ms"]), 2)


def _ms(times_s: list[float]) -> float:
    return round(statistics.median(times_s) * 1e3, 2)


def _ended(words: list[str]) -> tuple[float, float, str]:
    """Wall time, processor time, output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{words} ended with {done.returncode}: {done.stderr}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return wall, cpu, done.stdout
