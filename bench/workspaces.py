"""A command in a project with many files: the directory of a user in each mode.

Ratios against the same program without a sandbox; `du` of the same directory, in the same round, is
what one walk through it costs the kernel.
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

import cellwall

_FILES = 20_000
_FILES_IN_EACH = 10
_MODES = ("rw", "cow", "ro")


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    # Not in /tmp: a tmpfs would hide what a disk costs.
    home = os.path.expanduser("~")
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-", dir=home) as folder:
        small, large = Path(folder, "small"), Path(folder, "large")
        _make_project(small, _FILES_IN_EACH)
        _make_project(large, _FILES)
        work: dict[str, Callable[[], object]] = {
            "bare": lambda: subprocess.run(["true"], check=True),
            "du": lambda: subprocess.run(["du", "-s", large], check=True, capture_output=True),
            "private": lambda: cellwall.run_command(["true"]),
        }
        for name, project in (("small", small), ("large", large)):
            for mode in _MODES:
                given = f"{project}:{mode}"
                work[f"{name}_{mode}"] = lambda given=given: _run(given)
        if not quiet:
            print(f"... {_FILES} files, {rounds} rounds", file=sys.stderr)
        times_s: dict[str, list[float]] = {name: [] for name in work}
        for _ in range(max(3, rounds // 4)):
            for name, call in work.items():
                begin_s = time.perf_counter()
                call()
                times_s[name].append(time.perf_counter() - begin_s)
    medians_s = {name: statistics.median(each[1:]) for name, each in times_s.items()}
    figures: dict[str, Any] = {f"{n}_ms": round(s * 1e3, 2) for n, s in medians_s.items()}
    for mode in _MODES:
        figures[f"large_{mode}_over_du"] = round(medians_s[f"large_{mode}"] / medians_s["du"], 2)
        figures[f"small_{mode}_over_bare"] = round(
            medians_s[f"small_{mode}"] / medians_s["bare"], 2
        )
    return figures


def _run(given: str) -> None:
    outcome = cellwall.run_command(["true"], workspace=given)
    assert outcome.exit_code == 0, outcome


def _make_project(place: Path, count: int) -> None:
    for number in range(count):
        directory = place / f"package{number // _FILES_IN_EACH}"
        if number % _FILES_IN_EACH == 0:
            directory.mkdir(parents=True)
        (directory / f"module{number}.py").write_text("x = 1\n")
