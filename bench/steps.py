"""Where the time of one run goes, step by step: clocks put around the real calls."""

from __future__ import annotations

import functools
import inspect
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cellwall
from cellwall.audit.log import AuditLog
from cellwall.interfaces.sdk.single_runs import run_command
from cellwall.runtime import pipeline
from cellwall.runtime.consents import Consents
from cellwall.runtime.pipeline import Runtime
from cellwall.sandbox.governor import Governor
from cellwall.sandbox.linux import cell_plan, disk_room
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.live_cell import LiveCell
from cellwall.sandbox.linux.native import WarmPath
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.prepared_cell import PreparedCell
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_monitor import RunMonitor
from cellwall.sandbox.workspace.leases import PlainLease, ReadWriteLease

Places = tuple[tuple[str, Any, str], ...]
Clock = Callable[[], float]
Taken = dict[str, list[float]]

WARM: Places = (
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
# None of these calls another, so that their sum is a part of the whole.
LIVE: Places = (
    ("records", AuditLog, "write"),
    ("guard_before", pipeline, "screen_input"),
    ("rules", pipeline, "judge"),
    ("governor", Governor, "_wait_for_slot"),
    ("counters", LiveCell, "counters"),
    ("frames", RunIO, "send_frame"),
    ("frames", RunIO, "serve"),
    ("unlinked_files", disk_room, "find_unlinked_files"),
    ("disk_limit", PlainLease, "has_room_if_small"),
    ("workspace_check", ReadWriteLease, "settle"),
    ("guard_after", Consents, "clean"),
)
COLD: Places = (
    ("records", AuditLog, "write"),
    ("guard_before", pipeline, "screen_input"),
    ("rules", pipeline, "judge"),
    ("governor", Governor, "_wait_for_slot"),
    ("limits", PreparedCell, "limit"),
    ("plan", cell_plan, "init_plan"),
    ("plan", PreparedCell, "start_init"),
    ("counters", PreparedCell, "counters"),
    ("frames", RunIO, "serve"),
    ("gone", PreparedCell, "wait_gone"),
    ("closing", PreparedCell, "close"),
    ("guard_after", Consents, "clean"),
)


def steps(rounds: int) -> dict[str, float]:
    """Median milliseconds of each step in one `run_code("print(1)")`, by the clock."""
    os.environ["CELLWALL_PATH"] = "warm"
    with _clocked(WARM, time.perf_counter) as taken:
        for _ in range(rounds):
            time.sleep(0.02)  # the next cell stands ready
            started = time.perf_counter()
            cellwall.run_code("print(1)").raise_for_status()
            taken["whole_call"].append((time.perf_counter() - started) * 1000)
    return {
        f"step_{label}_ms": round(statistics.median(values), 3)
        for label, values in taken.items()
        if values
    }


def live_steps(rounds: int) -> dict[str, float]:
    """The steps of a live `run_code("print(1)")` and `true`, see `_processor_steps`."""
    os.environ["CELLWALL_PATH"] = "warm"
    with cellwall.Sandbox.create() as sandbox:
        code = _processor_steps("live_code", lambda: sandbox.run_code("print(1)"), LIVE, rounds)
        true = ["/bin/true"]
        run = _processor_steps("live_true", lambda: sandbox.commands.run(true), LIVE, rounds)
    return code | run


def cold_steps(rounds: int) -> dict[str, float]:
    """The steps of a cold `true`; see `_processor_steps`."""
    os.environ["CELLWALL_PATH"] = "cold"
    return _processor_steps("cold_true", lambda: run_command(["/bin/true"]), COLD, rounds)


def _processor_steps(
    name: str, call: Callable[[], cellwall.Execution], places: Places, rounds: int
) -> dict[str, float]:
    """Median milliseconds of processor time, of the calling thread, that each step takes; `rest`
    is what no step has."""
    for _ in range(5):
        call().raise_for_status()
    runs: list[Taken] = []
    for _ in range(rounds):
        time.sleep(0.02)  # as between two calls of an agent: caches hold other work
        with _clocked(places, time.thread_time) as taken:
            started = time.thread_time()
            call().raise_for_status()
            taken["whole"].append((time.thread_time() - started) * 1000)
        runs.append(taken)
    labels = dict.fromkeys(("whole", *(label for label, _, _ in places)))
    sums = {label: statistics.median(sum(run.get(label, ())) for run in runs) for label in labels}
    sums["rest"] = 2 * sums["whole"] - sum(sums.values())
    return {f"{name}_{label}_cpu_ms": round(ms, 3) for label, ms in sums.items()}


@contextmanager
def _clocked(places: Places, clock: Clock) -> Iterator[Taken]:
    """The milliseconds of each call of these functions during the block, by label."""
    taken: Taken = defaultdict(list)
    originals = [(owner, name, getattr(owner, name)) for _label, owner, name in places]
    try:
        for label, owner, name in places:
            setattr(owner, name, _timed(getattr(owner, name), taken[label], clock))
        yield taken
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _timed(function: Callable[..., Any], into: list[float], clock: Clock) -> Callable[..., Any]:
    def note(started: float) -> None:
        into.append((clock() - started) * 1000)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **kwargs: Any) -> Any:
            started = clock()
            try:
                return await function(*args, **kwargs)
            finally:
                note(started)

        return waited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        started = clock()
        try:
            return function(*args, **kwargs)
        finally:
            note(started)

    return called
