"""Memory, descriptors and threads of a supervisor over many runs, and of its templates.

`./dev bench soak --minutes 60`. This process is the supervisor: it makes warm one-shot runs, and
now and then a live sandbox, on four threads. A leak shows as a slope over the runs, whatever else
the machine does.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from scaling import descendants, private_kib

import cellwall
from cellwall.sandbox.linux import pool

_CALLERS = 4
_LIVE_EVERY = 25
_SAMPLES = 60
_WARM_RUNS = 5_000
"""Until then the caches fill that are bounded by a number, as the keys of 4,096 actions."""
_MAX_WARM_SHARE = 0.5
"""Of the time, on a machine that is too slow for so many runs."""


def measure(rounds: int, *, quiet: bool, minutes: float = 14.0) -> dict[str, Any]:
    del rounds  # by the clock
    os.environ["CELLWALL_SUPERVISOR"] = "off"
    os.environ["CELLWALL_PATH"] = "warm"
    begun, length_s = time.monotonic(), minutes * 60
    load = _Load(until=begun + length_s)
    samples: list[dict[str, float]] = []
    warm_runs = 0
    with load:
        while (now := time.monotonic()) < begun + length_s:
            load.raise_failure()
            if load.runs >= _WARM_RUNS or now - begun >= _MAX_WARM_SHARE * length_s:
                warm_runs = warm_runs or load.runs
                samples.append(_sample(load.runs))
                if not quiet:
                    print(f"... {samples[-1]}", file=sys.stderr, flush=True)
            time.sleep(max(length_s / _SAMPLES, 0.2))
    load.raise_failure()
    pool.close_all()
    figures = {"soak_runs": load.runs, "soak_warm_up_runs": warm_runs}
    return figures | _figures(samples)


class _Load:
    """Callers that run code until a point of time."""

    def __init__(self, *, until: float) -> None:
        self._until = until
        self._numbers = itertools.count()
        self.runs = 0
        self._failure: BaseException | None = None
        self._callers = [threading.Thread(target=self._call) for _ in range(_CALLERS)]

    def __enter__(self) -> None:
        for caller in self._callers:
            caller.start()

    def __exit__(self, *_: object) -> None:
        self._until = 0.0
        for caller in self._callers:
            caller.join()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _call(self) -> None:
        try:
            while time.monotonic() < self._until and self._failure is None:
                number = self.runs = next(self._numbers)
                if number % _LIVE_EVERY == 0:
                    with cellwall.Sandbox.create() as sandbox:
                        answer = sandbox.run_code(f"{number} + 1").value
                else:
                    answer = cellwall.run_code(f"{number} + 1").value
                if answer != number + 1:
                    raise SystemExit(f"run {number} answered {answer!r}")
        except BaseException as error:  # noqa: BLE001  # raised by the thread that measures
            self._failure = error


def _sample(runs: int) -> dict[str, float]:
    """Kept processes only: cells come and go, and each has a name of its own."""
    return {
        "runs": runs,
        "supervisor_kib": private_kib("self"),
        "templates_kib": sum(private_kib(pid) for pid in descendants() if _is_kept(pid)),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def _is_kept(pid: str) -> bool:
    """A shim, or a process of a template's walls: older than any cell of this sample."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - int(words[19]) / os.sysconf("SC_CLK_TCK") > _OLD_S


_OLD_S = 20.0
"""A pool keeps a cell that is ready for a few seconds at most while there is load."""


def _figures(samples: list[dict[str, float]]) -> dict[str, Any]:
    if len(samples) < 4:
        raise SystemExit("too short for a slope: give --minutes 1 or more")
    quarter = max(len(samples) // 4, 1)
    figures: dict[str, Any] = {}
    for name in ("supervisor_kib", "templates_kib", "descriptors", "threads"):
        first = statistics.median(each[name] for each in samples[:quarter])
        last = statistics.median(each[name] for each in samples[-quarter:])
        figures[f"{name}_begin"], figures[f"{name}_end"] = round(first), round(last)
    figures["supervisor_memory_growth"] = round(
        figures["supervisor_kib_end"] / figures["supervisor_kib_begin"], 3
    )
    slope = statistics.linear_regression(
        [each["runs"] for each in samples], [each["supervisor_kib"] for each in samples]
    ).slope
    return figures | {"supervisor_bytes_per_run": round(slope * 1024, 1)}
