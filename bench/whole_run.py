"""`./dev bench all`: every bench in a process of its own, again and again while the time allows.

The first pass runs each bench once; the later ones repeat those that fit into the time that is
left, so that each figure has a spread. A bench that fails or runs too long is named, and the others
go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host import describe_run
from plan import PlannedBench
from stored_run import BenchFigures, StoredRun, split_figures

_MAX_PASSES = 3
_SAFETY = 1.2
"""A bench is repeated when this much of its first time is left."""
_LEAST_S = 10.0
_END_WITHIN_S = 15.0
_TAIL_CHARS = 300


class BenchFailed(Exception):
    """A bench gave no figures; the message says why."""


@dataclass(slots=True)
class _Passes:
    """The passes of one bench so far."""

    rounds: int
    first_s: float
    values: dict[str, list[float]] = field(default_factory=dict)
    series: dict[str, Any] = field(default_factory=dict)

    def add(self, found: dict[str, Any]) -> None:
        figures, series = split_figures(found)
        self.series = self.series or series
        for name, value in figures.items():
            self.values.setdefault(name, []).append(value)


def run_all(
    benches: Sequence[PlannedBench],
    *,
    minutes: float,
    on_progress: Callable[[str], None],
    on_bench: Callable[[StoredRun], None],
) -> StoredRun:
    """The figures of all passes; `on_bench` gets what is known after each bench."""
    host = describe_run()
    key = _run_key(host)
    until = time.monotonic() + minutes * 60
    known: dict[str, _Passes] = {}
    failed: dict[str, str] = {}

    def so_far() -> StoredRun:
        stored = {name: _figures_of(passes, key) for name, passes in known.items()}
        return StoredRun({key: host} if stored else {}, stored, dict(failed))

    for number, bench, limit_s in _schedule(benches, known, until):
        if limit_s < _LEAST_S:
            failed[bench.name] = "not run: no time was left"
            continue
        on_progress(f"pass {number}: {bench.name}, at most {limit_s:.0f} s")
        began = time.monotonic()
        try:
            found = run_bench(bench, limit_s)
        except BenchFailed as reason:
            on_progress(f"{bench.name} FAILED: {reason}")
            if bench.name not in known:
                failed[bench.name] = str(reason)
            continue
        took_s = time.monotonic() - began
        known.setdefault(bench.name, _Passes(bench.rounds, took_s)).add(found)
        on_progress(f"{bench.name} took {took_s:.0f} s; {until - time.monotonic():.0f} s are left")
        on_bench(so_far())
    return so_far()


def _run_key(host: dict[str, Any]) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M')} at {host['commit']}"


class OneBench:
    """A stored run of one bench; made before the bench starts, whose load is not the host's."""

    def __init__(self, name: str, rounds: int) -> None:
        self._name = name
        self._host = describe_run()
        self._key = _run_key(self._host)
        self._began = time.monotonic()
        self._rounds = rounds

    def stored(self, found: dict[str, Any]) -> StoredRun:
        passes = _Passes(self._rounds, time.monotonic() - self._began)
        passes.add(found)
        return StoredRun({self._key: self._host}, {self._name: _figures_of(passes, self._key)})


def _schedule(
    benches: Sequence[PlannedBench],
    known: dict[str, _Passes],
    until: float,
) -> Iterator[tuple[int, PlannedBench, float]]:
    """Passes, benches and time limits. Reads what the runs before have added to `known`."""
    for number in range(1, _MAX_PASSES + 1):
        for bench in benches:
            left_s = until - time.monotonic()
            if number == 1 or (
                bench.name in known and known[bench.name].first_s * _SAFETY < left_s
            ):
                yield number, bench, min(bench.limit_s, left_s)


def _figures_of(passes: _Passes, run: str) -> BenchFigures:
    return BenchFigures(
        run=run,
        rounds=passes.rounds,
        took_s=round(passes.first_s, 1),
        figures={name: tuple(values) for name, values in passes.values.items()},
        series=passes.series,
    )


def run_bench(bench: PlannedBench, limit_s: float) -> dict[str, Any]:
    """One bench in a process group of its own."""
    words = [sys.executable, str(Path(__file__).with_name("run.py")), bench.name]
    words += ["--json", "--rounds", str(bench.rounds)]
    # No new session: a new one is a new scheduling group, which competes with that of this process.
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"took longer than {limit_s:.0f} s") from None
    finally:
        _end(process)
    if process.returncode != 0:
        tail = " ".join(errors.split())[-_TAIL_CHARS:]
        raise BenchFailed(f"exit status {process.returncode}: {tail}")
    try:
        found: dict[str, Any] = json.loads(out[out.index("{") :])
    except ValueError:
        raise BenchFailed("the output is not JSON") from None
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """The bench may end its servers and sandboxes; what is left of its group is killed."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
