"""Cold runs against the bare process and raw bubblewrap, interleaved in one run.

Absolute times are this machine's; the ratios are what can be compared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import holdfast
from holdfast.interfaces.sdk.blocking import run_command
from holdfast.sandbox.native.standing import spares

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


def measure(rounds: int, *, quiet: bool) -> dict[str, float]:
    sandbox = holdfast.Sandbox.create()
    cases: dict[str, Callable[[], object]] = {
        "bare_true": lambda: bare(["/bin/true"]),
        "bwrap_true": lambda: bare([*BWRAP, "/bin/true"]),
        "holdfast_true": lambda: run_command(["/bin/true"]).raise_for_status(),
        "holdfast_true_unprepared": lambda: run_command(["/bin/true"]).raise_for_status(),
        "holdfast_session_true": lambda: sandbox.commands.run(["/bin/true"]).raise_for_status(),
        "bare_print": lambda: bare(PRINT),
        "bwrap_print": lambda: bare([*BWRAP, *PRINT]),
        "holdfast_print": lambda: run_command(PRINT).raise_for_status(),
        "holdfast_run_code": lambda: holdfast.run_code("print(1)").raise_for_status(),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()  # imports, caches, page cache
    for number in range(rounds):
        for name, case in cases.items():
            if name == "holdfast_true_unprepared":
                spares.close()  # as in a process that runs only once
            started = time.perf_counter()
            case()
            times[name].append((time.perf_counter() - started) * 1000)
        if not quiet and sys.stderr.isatty():
            print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
    if not quiet and sys.stderr.isatty():
        print(file=sys.stderr)
    sandbox.kill()
    figures: dict[str, float] = {"rounds": rounds}
    for name, taken in times.items():
        figures[f"{name}_p50_ms"] = round(statistics.median(taken), 3)
        figures[f"{name}_p95_ms"] = round(sorted(taken)[int(len(taken) * 0.95)], 3)
    for name, against in RATIOS:
        ratio = figures[f"{name}_p50_ms"] / figures[f"{against}_p50_ms"]
        figures[f"{name}_over_{against}"] = round(ratio, 3)
    return figures


RATIOS = (
    ("bwrap_true", "bare_true"),
    ("holdfast_true", "bwrap_true"),
    ("holdfast_true_unprepared", "bwrap_true"),
    ("holdfast_session_true", "bwrap_true"),
    ("bwrap_print", "bare_print"),
    ("holdfast_print", "bwrap_print"),
    ("holdfast_print", "bare_print"),
    ("holdfast_run_code", "bare_print"),
)
