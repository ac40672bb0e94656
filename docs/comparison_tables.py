"""The tables of comparison.md, from the stored run of `./dev bench peers --record`."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(_BENCH))

from peers.figures import count_verdicts, ratio  # noqa: E402  # found by the path above

_WORKS = {
    "true": "`true`",
    "print": "`print(1)`",
    "cpu": "processor",
    "files": "200 files",
}
_LAYERS = ("system calls", "isolation", "files", "network", "secrets", "limits")
_NO_SETTING = "no setting for this limit"


def results() -> dict[str, Any]:
    """The stored run."""
    found: dict[str, Any] = json.loads((_BENCH / "peers" / "results.json").read_text("utf-8"))
    return found


def products() -> dict[str, dict[str, str]]:
    """What each product is for."""
    return tomllib.loads((_BENCH / "peers" / "products.toml").read_text("utf-8"))


def comparison_parts() -> list[tuple[str, str]]:
    """Each generated part by its mark."""
    found = results()
    parts = {
        "peers-host": host_text(found["host"]),
        "peers-products": products_table(products()),
        "peers-settings": settings_table(found),
        "peers-times": times_table(found),
        "peers-attacks": attacks_table(found),
        "peers-through": through_list(found),
        "peers-missing": missing_list(found),
    }
    return [(f"<!-- generated: {name} -->", text) for name, text in parts.items()]


def host_text(host: Mapping[str, Any]) -> str:
    """Where and when the run took place."""
    user = "an ordinary user" if host["is_ordinary_user"] else "root"
    is_busy = host["load_before"] > host["processors"]
    caution = " So the times give the order of magnitude alone." if is_busy else ""
    return (
        f"Recorded on {host['date']}: {host['system']}, {host['machine']}, "
        f"{host['processors']} processors, {host['memory_gib']} GiB, Linux {host['kernel']}, "
        f"as {user}. The load of the machine was {host['load_before']} before the run."
        f"{caution}"
    )


def products_table(products: Mapping[str, Mapping[str, str]]) -> str:
    """Purpose and strong points of each product."""
    rows = ["| product | from | what it is for | what it does better than Cellwall |"]
    rows.append("|---|---|---|---|")
    rows += [
        f"| {name} | {entry['from']} | {entry['purpose']} | {entry['better']} |"
        for name, entry in products.items()
    ]
    return "\n".join(rows)


def settings_table(found: Mapping[str, Any]) -> str:
    """Version, user and settings of each peer."""
    rows = ["| name | version | run as | settings |", "|---|---|---|---|"]
    rows += [
        f"| {name} | {entry['version']} | {entry['runs_as']} | {_cell(entry['settings'])} |"
        for name, entry in _peers(found)
    ]
    return "\n".join(rows)


def times_table(found: Mapping[str, Any]) -> str:
    """Medians over the bare process, and the 95th percentile behind them."""
    heads = " | ".join(_WORKS.values())
    rows = [f"| name | {heads} | throughput, 8 callers |", "|---|---|---|---|---|---|"]
    times = found["times"]
    for name, _ in _peers(found):
        if name not in times:
            continue
        cells = [_ratio_text(times, name, work) for work in _WORKS]
        throughput = found["throughput"].get(name)
        share = (
            f"{throughput['per_s'] / throughput['bare_per_s']:.2f}x"
            if throughput
            else ("1x" if name == "bare" else "failed")
        )
        rows.append(f"| {name} | {' | '.join(cells)} | {share} |")
    return "\n".join(rows)


def _ratio_text(times: Mapping[str, Any], name: str, work: str) -> str:
    middle = ratio(times, name, work)
    if middle is None:
        return "n/a"
    if name == "bare":
        figures = times[name][work]
        return f"{figures['p50_ms']:.3g} ms ({figures['p95_ms']:.3g})"
    return f"{middle:.2f}x ({ratio(times, name, work, 'p95_ms') or 0:.2f})"


def attacks_table(found: Mapping[str, Any]) -> str:
    """Counts by peer and layer."""
    rows = [f"| name | {' | '.join(_LAYERS)} |", f"|---|{'---|' * len(_LAYERS)}"]
    for name, _ in _peers(found):
        if name not in found["attacks"]:
            continue
        counts = count_verdicts(found["attacks"][name])
        cells = [_counts_text(counts.get(layer)) for layer in _LAYERS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _counts_text(counts: Mapping[str, int] | None) -> str:
    if counts is None or not counts["held"] + counts["through"]:
        return "n/a"
    missing = f", {counts['n/a']} n/a" if counts["n/a"] else ""
    through = f"**{counts['through']}**" if counts["through"] else "0"
    return f"{counts['held']} / {through}{missing}"


def through_list(found: Mapping[str, Any]) -> str:
    """The names of the attacks that went through."""
    lines = []
    for name, _ in _peers(found):
        through = {
            layer: by_verdict["through"]
            for layer, by_verdict in found["attacks"].get(name, {}).items()
            if by_verdict["through"]
        }
        if not through:
            lines += [f"- **{name}**: none."]
            continue
        lines.append(f"- **{name}**")
        for layer in _LAYERS:
            if layer in through:
                names = ", ".join(f"`{each}`" for each in through[layer])
                lines.append(f"    - {layer}: {names}{_without_setting(through[layer])}")
    return "\n".join(lines)


def _without_setting(reasons: Mapping[str, str]) -> str:
    count = sum(reason == _NO_SETTING for reason in reasons.values())
    return f" ({count} without a setting)" if count else ""


def missing_list(found: Mapping[str, Any]) -> str:
    """The peers that could not be run, with the reason."""
    if not found["missing"]:
        return "Every peer was run."
    return "\n".join(f"- **{name}**: {reason}" for name, reason in found["missing"].items())


def _peers(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from found["peers"].items()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
