"""Runs against the bare process and raw bubblewrap, interleaved in one run.

Absolute times are this machine's; the ratios are what can be compared.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steps import cold_steps, live_steps, steps

import cellwall
from cellwall import Execution
from cellwall.admin.templates import Templates
from cellwall.interfaces.sdk.single_runs import run_command
from cellwall.runtime.home import local_principal
from cellwall.sandbox.linux import pool
from cellwall.sandbox.linux.prepared_cell import spare_cells

PYTHON = "/usr/bin/python3"
PRINT = [PYTHON, "-I", "-S", "-c", "print(1)"]
# The namespaces of a cell, and the least file system with which programs start.
BWRAP = [
    "bwrap",
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup",
    "--uid",
    "1000",
    "--gid",
    "1000",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--dir",
    "/workspace",
    "--chdir",
    "/workspace",
    "--",
]


def bare(argv: list[str]) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)


def on(path: str, work: Callable[[], Execution]) -> Callable[[], object]:
    """The same call on a path that is named; each path has a runtime of its own."""

    def call() -> None:
        os.environ["CELLWALL_PATH"] = path
        work().raise_for_status()

    return call


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = os.path.join(folder, "state")
        os.mkdir(home, 0o700)
        os.environ["CELLWALL_HOME"] = home
        os.environ["CELLWALL_SUPERVISOR"] = "off"
        figures = _interleaved(rounds, folder, quiet=quiet)
        figures |= steps(max(rounds // 2, 10))
        figures |= live_steps(max(rounds // 2, 10)) | cold_steps(max(rounds // 2, 10))
        figures |= _data(max(rounds // 6, 3))
        pool.close_all()
    return figures


def _interleaved(rounds: int, folder: str, *, quiet: bool) -> dict[str, Any]:
    os.environ["CELLWALL_PATH"] = "cold"
    cold = cellwall.Sandbox.create()
    cold.run_code("1")
    os.environ["CELLWALL_PATH"] = "warm"
    warm = cellwall.Sandbox.create()
    warm.run_code("1")
    warm.files.write("read-me", "1")
    given = Path(folder, "given")
    given.mkdir()
    (given / "read-me").write_text("1")
    layered = cellwall.Sandbox.create(workspace=f"{given}:cow")
    layered.run_code("1")
    true = ["/bin/true"]
    cases: dict[str, Callable[[], object]] = {
        "bare_true": lambda: bare(true),
        "bwrap_true": lambda: bare([*BWRAP, *true]),
        "cold_true": on("cold", lambda: run_command(true)),
        "cold_true_unprepared": on("cold", lambda: run_command(true)),
        "warm_true": on("warm", lambda: run_command(true)),
        "live_true": lambda: warm.commands.run(true).raise_for_status(),
        "cold_live_true": lambda: cold.commands.run(true).raise_for_status(),
        "bare_print": lambda: bare(PRINT),
        "bwrap_print": lambda: bare([*BWRAP, *PRINT]),
        "cold_print": on("cold", lambda: run_command(PRINT)),
        "cold_run_code": on("cold", lambda: cellwall.run_code("print(1)")),
        "warm_run_code": on("warm", lambda: cellwall.run_code("print(1)")),
        "live_run_code": lambda: warm.run_code("print(1)").raise_for_status(),
        "private_read": lambda: warm.files.read("read-me"),
        "cow_read": lambda: layered.files.read("read-me"),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(2):
        for case in cases.values():
            case()  # imports, caches, page cache, templates
    for number in range(rounds):
        for name, case in cases.items():
            if name == "cold_true_unprepared":
                spare_cells.close()  # as in a process that runs only once
            started = time.perf_counter()
            case()
            times[name].append((time.perf_counter() - started) * 1000)
        if not quiet and sys.stderr.isatty():
            print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
    if not quiet and sys.stderr.isatty():
        print(file=sys.stderr)
    cold.kill()
    warm.kill()
    layered.kill()
    figures: dict[str, Any] = {"rounds": rounds}
    for name, taken in times.items():
        figures |= _percentiles(name, taken)
    for name, against in RATIOS:
        figures |= _ratio(figures, name, against)
    return figures | {"series": {"latency_ms": {name: _steps(times[name]) for name in DRAWN}}}


def _steps(taken: list[float]) -> list[float]:
    """The 21 values at 0, 5, … 100 % of the runs: enough for a curve of the distribution."""
    ordered = sorted(taken)
    return [round(ordered[round(step / 20 * (len(ordered) - 1))], 3) for step in range(21)]


def _percentiles(name: str, taken: list[float]) -> dict[str, float]:
    return {
        f"{name}_best_ms": round(min(taken), 3),
        f"{name}_p50_ms": round(statistics.median(taken), 3),
        f"{name}_p95_ms": round(sorted(taken)[int(len(taken) * 0.95)], 3),
    }


def _ratio(figures: dict[str, float], name: str, against: str) -> dict[str, float]:
    """Of the medians, and of the best rounds, which other work of the host has touched least."""
    ratio = figures[f"{name}_p50_ms"] / figures[f"{against}_p50_ms"]
    best = figures[f"{name}_best_ms"] / figures[f"{against}_best_ms"]
    return {
        f"{name}_over_{against}": round(ratio, 3),
        f"{name}_over_{against}_best": round(best, 3),
    }


DRAWN = (
    *("bare_true", "bwrap_true", "cold_true", "warm_true", "live_true"),
    *("bare_print", "bwrap_print", "warm_run_code", "live_run_code"),
)
RATIOS = (
    ("bwrap_true", "bare_true"),
    ("cold_true", "bwrap_true"),
    ("cold_true_unprepared", "bwrap_true"),
    ("warm_true", "bwrap_true"),
    ("live_true", "bare_true"),
    ("bwrap_print", "bare_print"),
    ("cold_print", "bwrap_print"),
    ("cold_run_code", "bare_print"),
    ("warm_run_code", "bare_print"),
    ("live_run_code", "bare_print"),
    ("cow_read", "private_read"),
    ("cow_read", "live_true"),
)


def _data(rounds: int) -> dict[str, float]:
    """`import pandas`, bare and from the template; only where the template can be built."""
    try:
        built = Templates().build(
            "python-data", principal=local_principal("bench"), on_progress=lambda _line: None
        )
    except cellwall.CellwallError as error:
        print(f"no python-data template here: {error}", file=sys.stderr)
        return {}
    code = f"import sys; sys.path.append({built.path!r}); import pandas"
    os.environ["CELLWALL_PATH"] = "warm"
    cases: dict[str, Callable[[], object]] = {
        "bare_pandas": lambda: bare([PYTHON, "-I", "-c", code]),
        "warm_pandas": lambda: cellwall.run_code(
            "import pandas", template="python-data", memory="1g"
        ).raise_for_status(),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for case in (*cases.values(), *cases.values()):
        case()
    for _ in range(rounds):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            times[name].append((time.perf_counter() - started) * 1000)
    figures: dict[str, float] = {}
    for name, taken in times.items():
        figures |= _percentiles(name, taken)
    return figures | _ratio(figures, "warm_pandas", "bare_pandas")
