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
_FIRST = (
    "import time; began = time.perf_counter(); import cellwall; "
    "cellwall.{call}.raise_for_status(); print((time.perf_counter() - began) * 1000)"
)
_FIRST_RUN = _FIRST.format(call="run_command(['/bin/true'])")
_FIRST_CODE = _FIRST.format(call="run_code('print(1)')")
_ALONE = "import os; os.environ['CELLWALL_SUPERVISOR'] = 'off'; "
_WAYS = {
    "python": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import cellwall"],
    "import_sandbox": [sys.executable, "-c", "from cellwall import Sandbox, run_code"],
    "cli_version": [_PROGRAM, "--version"],
    "cli_help": [_PROGRAM, "--help"],
    "cli_run_true": [_PROGRAM, "run", "--", "true"],
    "cli_code": [_PROGRAM, "code", "-c", "print(1)"],
    "first_run": [sys.executable, "-c", _FIRST_RUN],
    "first_code": [sys.executable, "-c", _FIRST_CODE],
    "first_run_alone": [sys.executable, "-c", _ALONE + _FIRST_RUN],
}
_SLOW = {"first_run_alone"}
"""Each takes as long as a hundred of the others."""
_SLOW_EACH = 5


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    del quiet  # short: nothing to say before the end
    walls: dict[str, list[float]] = {name: [] for name in _WAYS}
    processor: dict[str, list[float]] = {name: [] for name in _WAYS}
    inside: dict[str, list[float]] = {name: [] for name in _WAYS if name.startswith("first_")}
    _ended([_PROGRAM, "supervisor", "start"])
    try:
        for words in _WAYS.values():
            _ended(words)
        for number in range(rounds):
            for name, words in _WAYS.items():
                if name in _SLOW and number % _SLOW_EACH:
                    continue
                wall, cpu, out = _ended(words)
                walls[name].append(wall)
                processor[name].append(cpu)
                if name in inside:
                    inside[name].append(float(out))
    finally:
        _ended([_PROGRAM, "supervisor", "stop"])
    figures: dict[str, Any] = {}
    for name in _WAYS:
        figures[f"{name}_p50_ms"] = _ms(walls[name])
        figures[f"{name}_cpu_p50_ms"] = _ms(processor[name])
    for name, times_ms in inside.items():
        figures[f"{name}_inside_p50_ms"] = round(statistics.median(times_ms), 2)
        figures[f"{name}_inside_best_ms"] = round(min(times_ms), 2)
        figures[f"{name}_added_cpu_ms"] = _difference(figures, name)
    ratio = figures["first_run_cpu_p50_ms"] / figures["first_run_alone_cpu_p50_ms"]
    figures["first_run_over_alone_cpu"] = round(ratio, 3)
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
