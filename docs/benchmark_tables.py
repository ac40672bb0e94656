"""The tables and plots of benchmarks.md, from the stored run of `./dev bench all --record`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docs.plots import Curve, Plot, draw

_BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(_BENCH))

from catalogue import Figure, read_catalogue, show  # noqa: E402  # found by the path above
from stored_run import FIGURES, BenchFigures, StoredRun  # noqa: E402  # found by the path above

_CASES = {
    "bare_true": "bare true",
    "bwrap_true": "bubblewrap true",
    "cold_true": "cold true",
    "warm_true": "warm true",
    "live_true": "live true",
    "bare_print": "bare print(1)",
    "bwrap_print": "bubblewrap print(1)",
    "warm_run_code": "warm run_code",
    "live_run_code": "live run_code",
}


def benchmark_parts() -> list[tuple[str, str]]:
    """Each generated part by its mark."""
    run, catalogue = StoredRun.read(FIGURES), read_catalogue()
    parts = {"bench-hosts": hosts_text(run)}
    for bench in dict.fromkeys(figure.bench for figure in catalogue):
        figures = [figure for figure in catalogue if figure.bench == bench]
        parts[f"bench-{bench}"] = figures_table(
            [figure for figure in figures if not figure.step_of], run, bench
        )
        steps = [figure for figure in figures if figure.step_of]
        if steps:
            parts[f"bench-{bench}-steps"] = steps_table(steps, run, bench)
    return [(f"<!-- generated: {name} -->", text) for name, text in parts.items()]


def benchmark_plots() -> dict[str, str]:
    """Each plot as SVG, by the name of its file; without its bench a plot says so."""
    run = StoredRun.read(FIGURES)
    latency = _series(run, "cells").get("latency_ms", {})
    throughput = _series(run, "scaling").get("throughput", [])
    cells = _series(run, "scaling").get("idle_cells", [])
    return {
        "bench-latency.svg": draw(
            Plot(
                "Distribution of the time of one run",
                "milliseconds (logarithmic)",
                "% of the runs",
                tuple(
                    Curve(_CASES[name], tuple((ms, 5.0 * step) for step, ms in enumerate(values)))
                    for name, values in latency.items()
                ),
                is_x_logarithmic=True,
            )
        ),
        "bench-throughput.svg": draw(
            Plot(
                "Runs of print(1) a second",
                "callers at once",
                "runs/s",
                (
                    _curve("Cellwall, warm", throughput, "callers", "cellwall"),
                    _curve("bare interpreter", throughput, "callers", "bare"),
                ),
            )
        ),
        "bench-cells.svg": draw(
            Plot(
                "Beside idle live cells",
                "idle live cells",
                "MiB of each cell; ms of one warm run_code",
                (
                    _curve("memory (PSS) of each, MiB", cells, "cells", "pss_mib_each"),
                    _curve("warm run_code, p50 ms", cells, "cells", "run_code_p50_ms"),
                ),
            )
        ),
    }


def hosts_text(run: StoredRun) -> str:
    """Where and when the benches ran, one line for each run."""
    rows = []
    for key, host in run.hosts.items():
        names = sorted(name for name, bench in run.benches.items() if bench.run == key)
        rows.append(f"- {host_sentence(key, host)} {', '.join(names)}.")
    rows += [
        f"- Without figures of the last run: {name} ({why})." for name, why in run.failed.items()
    ]
    return "\n".join(rows)


def host_sentence(key: str, host: Mapping[str, Any]) -> str:
    """The host in one sentence; a busy one is named as such."""
    user = "an ordinary user" if host["is_ordinary_user"] else "root"
    is_busy = host["load_before"] > host["processors"] / 2
    busy = " (**other work was running: only the ratios count**)" if is_busy else ""
    return (
        f"{key}: {host['system']}, {host['machine']}, {host['processors']} processors, "
        f"{host['memory_gib']} GiB, Linux {host['kernel']}, Python {host['python']}, as {user}, "
        f"load average before the run {host['load_before']}{busy}:"
    )


def figures_table(figures: Iterable[Figure], run: StoredRun, bench: str) -> str:
    """Medians of the passes with their range, and the aims."""
    measured = run.benches.get(bench)
    if measured is None:
        return f"No stored figures: `./dev bench {bench} --record` measures them."
    rows = ["| what | figure | range | aim |", "|---|---|---|---|"]
    for figure in figures:
        values = measured.figures.get(figure.name)
        if values:
            rows.append(_row(figure, values, measured))
    return "\n".join(rows)


def steps_table(figures: Iterable[Figure], run: StoredRun, bench: str) -> str:
    """Medians of the parts of each call: a row for each step, a column for each call."""
    measured = run.benches.get(bench)
    if measured is None:
        return f"No stored figures: `./dev bench {bench} --record` measures them."
    cells: dict[str, dict[str, str]] = {}
    for figure in figures:
        values = measured.figures.get(figure.name)
        if values:
            row = cells.setdefault(figure.says, {})
            row[figure.step_of] = figure.shown(statistics.median(values))
    calls = list(dict.fromkeys(call for row in cells.values() for call in row))
    rows = [f"| step | {' | '.join(calls)} |", "|---" * (len(calls) + 1) + "|"]
    for says, row in cells.items():
        rows.append(f"| {says} | {' | '.join(row.get(call, '') for call in calls)} |")
    return "\n".join(rows)


def _row(figure: Figure, values: tuple[float, ...], measured: BenchFigures) -> str:
    middle = statistics.median(values)
    beside = measured.figures.get(figure.beside)
    text = f"**{figure.shown(middle)}**"
    if beside:
        text += f" ({show(statistics.median(beside), figure.beside_unit)})"
    ends = f"{figure.shown(min(values))} to {figure.shown(max(values))}" if len(values) > 1 else ""
    return f"| {figure.says} | {text} | {ends} | {_aim(figure, middle)} |"


def _aim(figure: Figure, middle: float) -> str:
    if figure.aim is None:
        return ""
    bound = "at least" if figure.is_higher_better else "at most"
    state = "" if figure.is_reached(middle) else ", **not reached**"
    return f"{bound} {figure.shown(figure.aim)}{state}"


def _series(run: StoredRun, bench: str) -> Mapping[str, Any]:
    return run.benches[bench].series if bench in run.benches else {}


def _curve(name: str, points: Iterable[Mapping[str, float]], x: str, y: str) -> Curve:
    return Curve(name, tuple((point[x], point[y]) for point in points))
