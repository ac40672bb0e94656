"""Where the time of one warm run goes, step by step: clocks put around the real calls."""

from __future__ import annotations

import functools
import inspect
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import cellwall
from cellwall.audit.log import AuditLog
from cellwall.runtime.pipeline import Runtime
from cellwall.sandbox.governor import Governor
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.native import WarmPath
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.run_monitor import RunMonitor

WATCHED: tuple[tuple[str, type, str], ...] = (
    ("pipeline", Runtime, "perform"),
    ("audit_write", AuditLog, "write"),
    ("governor", Governor, "_wait_for_slot"),
    ("take_cell", Pool, "take"),
    ("warm_path", WarmPath, "run"),
    ("until_end", RunMonitor, "until_end"),
    ("cell_runs", RunMonitor, "_serve_until_ended"),
    ("read_counters", WarmCell, "counters"),
    ("tidy_up", Pool, "retire_used"),
)


def steps(rounds: int) -> dict[str, float]:
    """Median milliseconds of each step in one `run_code("print(1)")`."""
    taken: dict[str, list[float]] = defaultdict(list)
    originals = [(owner, name, getattr(owner, name)) for _label, owner, name in WATCHED]
    os.environ["CELLWALL_PATH"] = "warm"
    try:
        for label, owner, name in WATCHED:
            setattr(owner, name, _timed(getattr(owner, name), taken[label]))
        for _ in range(rounds):
            time.sleep(0.02)  # the next cell stands ready
            started = time.perf_counter()
            cellwall.run_code("print(1)").raise_for_status()
            taken["whole_call"].append((time.perf_counter() - started) * 1000)
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
    return {
        f"step_{label}_ms": round(statistics.median(values), 3)
        for label, values in taken.items()
        if values
    }


def _timed(function: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def note(started: float) -> None:
        into.append((time.perf_counter() - started) * 1000)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return await function(*args, **kwargs)
            finally:
                note(started)

        return waited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            note(started)

    return called
