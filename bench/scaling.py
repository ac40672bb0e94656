"""Runs a second over the number of callers; memory and latency over the number of idle cells."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cells import PRINT, bare

import cellwall
from cellwall.sandbox.linux import pool

CALLERS = (1, 2, 4, 8, 16)
JUDGED_CALLERS = 8
CELLS = (25, 50, 100, 200, 500)
_PROBES = 15


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    os.environ["CELLWALL_SUPERVISOR"] = "off"
    os.environ["CELLWALL_PATH"] = "warm"
    figures, throughput = _throughput(max(rounds * 8, 80), quiet=quiet)
    counts = CELLS if rounds >= 20 else CELLS[:2]
    more, cells = _idle_cells(counts, quiet=quiet)
    pool.close_all()
    return {**figures, **more, "series": {"throughput": throughput, "idle_cells": cells}}


def _throughput(count: int, *, quiet: bool) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Runs a second with several callers at once, beside as many bare interpreters."""
    points = []
    for callers in CALLERS:
        ours = _rate(lambda: cellwall.run_code("print(1)").raise_for_status(), count, callers)
        theirs = _rate(lambda: bare(PRINT), count, callers)
        points.append({"callers": callers, "cellwall": round(ours, 1), "bare": round(theirs, 1)})
        _say(f"{callers} callers: {ours:.0f}/s, bare {theirs:.0f}/s", quiet=quiet)
    (judged,) = (point for point in points if point["callers"] == JUDGED_CALLERS)
    return {
        "callers": JUDGED_CALLERS,
        "warm_run_code_per_s": judged["cellwall"],
        "bare_print_per_s": judged["bare"],
        "warm_throughput_over_bare": round(judged["cellwall"] / judged["bare"], 3),
    }, points


def _rate(work: Callable[[], object], count: int, callers: int) -> float:
    each = max(count // callers, 1)
    threads = [
        threading.Thread(target=lambda: [work() for _ in range(each)]) for _ in range(callers)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return each * callers / (time.perf_counter() - started)


def _idle_cells(
    counts: tuple[int, ...], *, quiet: bool
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """What idle live cells cost: proportional set size of all processes, and one run beside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sandboxes: list[cellwall.Sandbox] = []
    points, made_s = [], 0.0
    try:
        for count in counts:
            started = time.perf_counter()
            while len(sandboxes) < count:
                sandboxes.append(_answering(len(sandboxes)))
            made_s += time.perf_counter() - started
            total_kib = sum(pss_kib(pid) for pid in descendants())
            point = {
                "cells": count,
                "pss_mib_each": round(total_kib / 1024 / count, 3),
                "run_code_p50_ms": round(_one_run_ms(), 3),
            }
            points.append(point)
            _say(f"{point}", quiet=quiet)
        answers = [sandbox.run_code("6 * 7").value == 42 for sandbox in sandboxes[::20]]
    finally:
        for sandbox in sandboxes:
            sandbox.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not all(answers):
        raise SystemExit(f"{answers.count(False)} of {len(answers)} idle cells do not answer")
    last = points[-1]
    return {
        "idle_cells": last["cells"],
        "idle_cells_made_per_s": round(last["cells"] / made_s, 1),
        "idle_cell_pss_mib": last["pss_mib_each"],
        "run_code_beside_cells_over_few": round(
            last["run_code_p50_ms"] / points[0]["run_code_p50_ms"], 3
        ),
    }, points


def _answering(number: int) -> cellwall.Sandbox:
    sandbox = cellwall.Sandbox.create(memory="64m", limits={"disk_bytes": 1 << 20})
    if sandbox.run_code(str(number)).value != number:
        raise SystemExit(f"live cell {number} did not answer")
    return sandbox


def _one_run_ms() -> float:
    taken = []
    for _ in range(_PROBES):
        started = time.perf_counter()
        cellwall.run_code("print(1)").raise_for_status()
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken)


def descendants() -> list[str]:
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


def pss_kib(pid: str) -> int:
    """Its own memory, and its share of what it has in common with others."""
    return _rollup_kib(pid, "Pss:")


def private_kib(pid: str) -> int:
    """What it alone has written to: its share of files depends on other processes."""
    return _rollup_kib(pid, "Private_Dirty:")


def _rollup_kib(pid: str, field: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"... {text}", file=sys.stderr)
