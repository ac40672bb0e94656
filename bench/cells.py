"""Runs against the bare process and raw bubblewrap, interleaved in one run.

Absolute times are this machine's; the ratios are what can be compared.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from steps import steps

import cellwall
from cellwall import Execution
from cellwall.admin.templates import Templates
from cellwall.interfaces.sdk.blocking import run_command
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


def measure(rounds: int, *, quiet: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        home = os.path.join(folder, "state")
        os.mkdir(home, 0o700)
        os.environ["CELLWALL_HOME"] = home
        os.environ["CELLWALL_SUPERVISOR"] = "off"
        figures = _interleaved(rounds, folder, quiet=quiet)
        figures |= _throughput(max(rounds * 4, 80))
        figures |= steps(max(rounds // 2, 10))
        figures |= _memory(500 if rounds >= 40 else 50)
        figures |= _data(max(rounds // 6, 3))
        pool.close_all()
        figures |= _command_line(max(rounds // 3, 5), home)
    return figures


def _interleaved(rounds: int, folder: str, *, quiet: bool) -> dict[str, float]:
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
    figures: dict[str, float] = {"rounds": rounds}
    for name, taken in times.items():
        figures |= _percentiles(name, taken)
    for name, against in RATIOS:
        figures |= _ratio(figures, name, against)
    return figures


def _percentiles(name: str, taken: list[float]) -> dict[str, float]:
    return {
        f"{name}_p50_ms": round(statistics.median(taken), 3),
        f"{name}_p95_ms": round(sorted(taken)[int(len(taken) * 0.95)], 3),
    }


def _ratio(figures: dict[str, float], name: str, against: str) -> dict[str, float]:
    ratio = figures[f"{name}_p50_ms"] / figures[f"{against}_p50_ms"]
    return {f"{name}_over_{against}": round(ratio, 3)}


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


def _throughput(count: int, callers: int = 8) -> dict[str, float]:
    """Runs a second with several callers at once."""

    def rate(work: Callable[[], object]) -> float:
        threads = [
            threading.Thread(target=lambda: [work() for _ in range(count // callers)])
            for _ in range(callers)
        ]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return count / (time.perf_counter() - started)

    os.environ["CELLWALL_PATH"] = "warm"
    ours = rate(lambda: cellwall.run_code("print(1)").raise_for_status())
    theirs = rate(lambda: bare(PRINT))
    return {
        "callers": callers,
        "warm_run_code_per_s": round(ours, 1),
        "bare_print_per_s": round(theirs, 1),
        "warm_throughput_over_bare": round(ours / theirs, 3),
    }


def _memory(count: int) -> dict[str, float]:
    """What idle live cells cost: proportional set size of all their processes."""
    os.environ["CELLWALL_PATH"] = "warm"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sandboxes = []
    started = time.perf_counter()
    for number in range(count):
        sandboxes.append(cellwall.Sandbox.create(memory="64m", limits={"disk_bytes": 1 << 20}))
        if not sandboxes[-1].run_code(str(number)).value == number:
            raise SystemExit(f"live cell {number} did not answer")
    made_s = time.perf_counter() - started
    total_kib = sum(_pss_kib(pid) for pid in _ours())
    answers = sum(s.run_code("6 * 7").value == 42 for s in sandboxes[:: max(count // 25, 1)])
    for sandbox in sandboxes:
        sandbox.kill()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return {
        "idle_cells": count,
        "idle_cells_made_per_s": round(count / made_s, 1),
        "idle_cell_pss_mib": round(total_kib / 1024 / count, 3),
        "idle_cells_asked_again_and_right": answers,
    }


def _ours() -> list[str]:
    """Processes below this one: shims, zygotes, inits, interpreters."""
    parents: dict[str, list[str]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            parents.setdefault(stat[1], []).append(name)
    found, waiting = [], [str(os.getpid())]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _pss_kib(pid: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


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


def _command_line(rounds: int, home: str) -> dict[str, float]:
    """`cellwall code` with a warm supervisor, against `cellwall --version`."""
    program = os.path.join(os.path.dirname(sys.executable), "cellwall")
    environ = {"PATH": os.environ["PATH"], "CELLWALL_HOME": home, "HOME": home}

    def call(*words: str) -> None:
        subprocess.run([program, *words], env=environ, capture_output=True, check=True)

    call("supervisor", "start")
    try:
        cases = {
            "cli_version": lambda: call("--version"),
            "cli_code": lambda: call("code", "-c", "print(1)"),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        time.sleep(1.0)
        for case in cases.values():
            case()
        for _ in range(rounds):
            for name, case in cases.items():
                started = time.perf_counter()
                case()
                times[name].append((time.perf_counter() - started) * 1000)
    finally:
        call("supervisor", "stop")
    figures: dict[str, float] = {}
    for name, taken in times.items():
        figures |= _percentiles(name, taken)
    return figures | _ratio(figures, "cli_code", "cli_version")
