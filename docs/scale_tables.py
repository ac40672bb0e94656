"""The tables and plots of scale.md, from the recorded run of `./dev bench fleet-sim --record`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.plots import Curve, Plot, draw

_RESULTS = Path(__file__).resolve().parents[1] / "bench" / "fleet_sim" / "results.json"
_POLICIES = {"fleet": "the fleet", "all": "best of all hosts", "chance": "by chance"}
_ROWS = {
    "sessions_live_at_busiest": "sessions at once, at the busiest time",
    "begun_per_s_max": "sessions begun in the busiest second",
    "memory_mean_percent": "memory in use at the busiest time, mean of the hosts, %",
    "memory_p99_percent": "the same, p99 of the hosts, highest of the day, %",
    "memory_spread": "spread of memory over the hosts (standard deviation over mean)",
    "overcommitted_host_views": "hosts that had to refuse runs, of all views of the day",
    "warm_percent": "sessions whose template was warm on their host, %",
    "refused_sessions": "sessions refused for good",
    "refused_by_host_tries": "tries that met a host which was gone or full",
    "runs_that_wait_percent": "runs that waited for a processor, %",
    "run_wait_p99_ms": "wait of a run, p99, ms",
    "run_wait_max_ms": "wait of a run, longest, ms",
    "hosts_lost": "hosts lost",
    "sessions_lost": "sessions lost with them",
    "sessions_lost_percent": "the same, % of all sessions",
    "rack_sessions_lost": "of these, with one rack at the busiest time",
    "most_sessions_lost_with_a_host": "most sessions lost with one host",
}


def scale_parts() -> list[tuple[str, str]]:
    """Each generated part by its mark."""
    stored = _stored()
    parts = {
        "scale-figures": _figures(stored["figures"]),
        "scale-parts": _part_loads(stored["parts"]),
        "scale-fewer": _fewer(stored["fewer"]),
        "scale-parameters": _parameters(stored["parameters"]),
    }
    return [(f"<!-- generated: {name} -->", text) for name, text in parts.items()]


def scale_plots() -> dict[str, str]:
    """Each plot as SVG, by the name of its file."""
    views = _stored()["views"]
    memory = [
        Curve(
            f"{words}, p99",
            tuple((view["at_s"] / 3600, 100 * view["memory_p99"]) for view in views[name]),
        )
        for name, words in _POLICIES.items()
    ]
    mean = tuple((view["at_s"] / 3600, 100 * view["memory_mean"]) for view in views["fleet"])
    sessions = tuple((view["at_s"] / 3600, view["sessions"]) for view in views["fleet"])
    return {
        "scale-memory.svg": draw(
            Plot(
                "Memory of the hosts over a day",
                "hour",
                "% of a host's memory",
                (Curve("mean", mean), *memory),
            )
        ),
        "scale-sessions.svg": draw(
            Plot("Live sessions over a day", "hour", "sessions", (Curve("live", sessions),))
        ),
    }


def _stored() -> dict[str, Any]:
    return dict(json.loads(_RESULTS.read_text("utf-8")))


def _figures(figures: dict[str, float]) -> str:
    rows = [f"| what | {' | '.join(_POLICIES.values())} |", f"|---|{'---:|' * len(_POLICIES)}"]
    for name, says in _ROWS.items():
        values = " | ".join(f"{figures[f'{policy}_{name}']:,g}" for policy in _POLICIES)
        rows.append(f"| {says} | {values} |")
    return "\n".join(rows)


def _part_loads(parts: list[dict[str, Any]]) -> str:
    rows = ["| part | busy | of | share | load that fits |", "|---|---:|---:|---:|---:|"]
    for part in parts:
        share, fits = part["cores"] / part["given"], part["fits"]
        rows.append(
            f"| {part['says']} | {part['cores']:,.2f} | {part['given']:,g} | {100 * share:.2f} % "
            f"| {'any' if fits is None else f'{fits:,.1f} times'} |"
        )
    return "\n".join(rows)


def _fewer(fewer: list[dict[str, float]]) -> str:
    rows = ["| hosts | memory in use, mean | refused tries | refused for good |"]
    rows.append("|---:|---:|---:|---:|")
    rows += [
        f"| {each['hosts']:,g} | {each['memory_mean_percent']:.0f} % | {each['refused_tries']:,g} "
        f"| {each['refused_sessions']:,g} |"
        for each in fewer
    ]
    return "\n".join(rows)


def _parameters(parameters: list[list[Any]]) -> str:
    rows = ["| parameter | value | origin | meaning |", "|---|---:|---|---|"]
    for name, value, unit, origin, says in parameters:
        rows.append(f"| `{name}` | {_shown(value, unit)} | {origin} | {says} |")
    return "\n".join(rows)


def _shown(value: Any, unit: str) -> str:
    if isinstance(value, list):
        return ", ".join(f"{each:g}" for each in value) + f" {unit}"
    if unit == "bytes":
        return f"{value / 1024**2:,.4g} MiB"
    if unit == "s" and 0 < value < 0.1:
        return f"{value * 1e6:,.3g} us"
    return f"{value:,g} {unit}".strip()
