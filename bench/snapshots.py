"""Snapshots and forks of a workspace of one gigabyte (FS-9).

`fork` is a fork of a live sandbox whose files came from a snapshot, as those of every later fork;
`fork_ending` one of a sandbox whose programs end with it; `copied` a snapshot of the sandbox that
wrote the gigabyte itself, while its programs live.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from cellwall import Sandbox

_FILES = 8
_LIMITS = {"disk_bytes": 3 << 30, "file_size_bytes": 1 << 30}
_WRITE = (
    f"for i in $(seq {_FILES}); do head -c $((1024*1024*1024/{_FILES})) /dev/urandom > f$i; done"
)
_MANY = "mkdir -p many; cd many; seq 20000 | xargs touch"
Result = TypeVar("Result")


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {}

    def tell(text: str) -> None:
        if not quiet:
            print(f"... {text}", file=sys.stderr)

    with Sandbox.create(limits=_LIMITS, timeout=300) as sbx:
        tell("writing a gigabyte")
        sbx.commands.run(_WRITE).outcome.raise_for_status()
        tell("copying it, once")
        figures["copied_1gb_ms"], taken = _timed(lambda: sbx.snapshot(state=False))
        tell("forks")
        figures["fork_ending_1gb_ms"], first = _timed(
            lambda: sbx.fork(state=False, end_processes=True)
        )
        first[0].kill()
        sbx.run_code("rows = list(range(100))")
        figures |= _forks(sbx, rounds)
        figures["restored_1gb_ms"] = _restores(taken.id, rounds)
        tell("many files")
        sbx.commands.run(_MANY).outcome.raise_for_status()
        figures["snapshot_20000_files_ending_ms"], many = _timed(
            lambda: sbx.snapshot(state=False, end_processes=True)
        )
        figures["restored_20000_files_ms"] = _restores(many.id, 5)
    for each in Sandbox.list_snapshots():
        Sandbox.delete_snapshot(each.id)
    return figures


def _forks(sbx: Sandbox, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {"fork_1gb": [], "fork_1gb_variables": [], "first_command": []}
    for _ in range(rounds):
        for name, state in (("fork_1gb", False), ("fork_1gb_variables", True)):
            took_ms, made = _timed(lambda state=state: sbx.fork(state=state))
            times[name].append(took_ms)
            if not state:
                first_ms, _ = _timed(partial(made[0].commands.run, "true"))
                times["first_command"].append(first_ms)
            made[0].kill()
    return {
        f"{name}_{word}_ms": round(value, 1)
        for name, found in times.items()
        for word, value in (
            ("p50", statistics.median(found)),
            ("p95", statistics.quantiles(found, n=20)[-1]),
        )
    }


def _restores(snapshot_id: str, rounds: int) -> float:
    found = []
    for _ in range(rounds):
        took_ms, made = _timed(lambda: Sandbox.create(from_snapshot=snapshot_id, limits=_LIMITS))
        found.append(took_ms)
        made.kill()
    return round(statistics.median(found), 1)


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    began = time.perf_counter()
    result = work()
    return round((time.perf_counter() - began) * 1000, 1), result
