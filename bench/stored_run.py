"""The stored figures of whole runs: what each bench measured, when and on which host."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).with_name("figures.json")
"""The run that the documentation shows."""


@dataclass(frozen=True, slots=True)
class BenchFigures:
    """What one bench measured; a figure has the values of all passes."""

    run: str
    """Key of the run's host in `StoredRun.hosts`."""
    rounds: int
    took_s: float
    figures: Mapping[str, tuple[float, ...]]
    series: Mapping[str, Any] = field(default_factory=dict)
    """Points for the plots, of the first pass."""


@dataclass(slots=True)
class StoredRun:
    """Benches by name. A later run of some benches replaces these alone."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    benches: dict[str, BenchFigures] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Benches of the last run without figures of that run, and why."""

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        try:
            stored = json.loads(path.read_text("utf-8"))
            benches = {
                name: BenchFigures(
                    **{
                        **bench,
                        "figures": {key: tuple(each) for key, each in bench["figures"].items()},
                    }
                )
                for name, bench in stored["benches"].items()
            }
            return cls(stored["hosts"], benches, stored["failed"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(
                f"{path} holds no figures of `./dev bench all --json`: {error}"
            ) from None

    def host_of(self, bench: str) -> dict[str, Any]:
        return self.hosts[self.benches[bench].run]

    def merged(self, newer: StoredRun) -> StoredRun:
        """These figures with the benches of a newer run instead; hosts without a bench go."""
        benches = {**self.benches, **newer.benches}
        hosts = {**self.hosts, **newer.hosts}
        used = {bench.run for bench in benches.values()}
        failed = {
            name: reason
            for name, reason in {**self.failed, **newer.failed}.items()
            if name in newer.failed or name not in newer.benches
        }
        return StoredRun({key: hosts[key] for key in sorted(used)}, benches, failed)

    def text(self) -> str:
        """JSON with a line for each figure, so that a diff shows what changed."""
        parts = [f' "hosts": {_lines(self.hosts, 2)}']
        benches = []
        for name, bench in sorted(self.benches.items()):
            fields = asdict(bench)
            figures, series = fields.pop("figures"), fields.pop("series")
            head = "".join(
                f"   {json.dumps(key)}: {json.dumps(value)},\n" for key, value in fields.items()
            )
            benches.append(
                f"  {json.dumps(name)}: {{\n{head}"
                f'   "figures": {_lines(figures, 4)},\n   "series": {_lines(series, 4)}\n  }}'
            )
        parts.append(' "benches": {\n' + ",\n".join(benches) + "\n }")
        parts.append(f' "failed": {_lines(self.failed, 2)}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def write(self, path: Path) -> None:
        """The old file stays whole when this is interrupted."""
        beside = path.with_name(f".{path.name}.new")
        beside.write_text(self.text(), "utf-8")
        os.replace(beside, path)


def split_figures(found: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """The numbers of one bench by name, and the points for plots, which a bench calls `series`."""
    series = found.get("series", {})
    return dict(_numbers("", {k: v for k, v in found.items() if k != "series"})), series


def _numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """A nested figure is named by its path; texts and truth values are not figures."""
    match value:
        case bool() | str() | None:
            return
        case int() | float():
            yield prefix, value
        case dict():
            for key, each in value.items():
                yield from _numbers(f"{prefix}.{key}" if prefix else str(key), each)
        case list() | tuple():
            for place, each in enumerate(value):
                yield from _numbers(f"{prefix}.{place}", each)


def _lines(entries: Mapping[str, Any], depth: int) -> str:
    if not entries:
        return "{}"
    blanks = " " * depth
    rows = ",\n".join(
        f"{blanks}{json.dumps(key)}: {json.dumps(each)}" for key, each in entries.items()
    )
    return f"{{\n{rows}\n{blanks[:-1]}}}"
