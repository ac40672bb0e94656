"""Figures of a search: what each target did, where and when; written as JSON for the documentation.

`docs/generate.py` writes the table of docs/fuzzing.md from `FIGURES`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

FIGURES = Path(__file__).with_name("figures.json")
"""The run that the documentation shows."""


@dataclass(slots=True)
class TargetFigures:
    """What one target did."""

    target: str
    seconds: float = 0.0
    executions: int = 0
    branches: int = 0
    inputs: int = 0
    findings: list[str] = field(default_factory=list)

    def line(self) -> str:
        """For people."""
        return (
            f"{self.target:18} {self.seconds / 60:6.1f} min {self.executions:10,} executions "
            f"{self.branches:6,} branches {self.inputs:5} inputs {len(self.findings)} findings"
        )


@dataclass(slots=True)
class SearchFigures:
    """One run of several targets. Minutes are those of all jobs together."""

    jobs: int
    targets: list[TargetFigures] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Targets that could not be run: the run says nothing about these."""
    began: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    machine: str = field(default_factory=lambda: _machine())
    commit: str = field(default_factory=lambda: _commit())
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))
    """Load average of a minute before the search."""

    @property
    def minutes(self) -> float:
        return sum(each.seconds for each in self.targets) / 60

    @property
    def executions(self) -> int:
        return sum(each.executions for each in self.targets)

    @property
    def findings(self) -> list[str]:
        return [found for each in self.targets for found in each.findings]

    def summary(self) -> str:
        """For people, with what has to be repeated."""
        rows = sorted(self.targets, key=lambda each: each.target)
        lines = [each.line() for each in rows]
        lines += [f"finding: {each}" for each in self.findings]
        lines += self.failed
        lines.append(
            f"{self.minutes:.1f} minutes, {self.executions:,} executions, "
            f"{len(self.findings)} findings"
        )
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> SearchFigures:
    """The figures of a file of `write`."""
    stored = json.loads(path.read_text("utf-8"))
    targets = [TargetFigures(**each) for each in stored.pop("targets")]
    return SearchFigures(targets=targets, **stored)


def table(figures: SearchFigures) -> str:
    """The run in Markdown."""
    found = len(figures.findings)
    findings = "no finding" if not found else f"**findings: {found}**"
    failed = "".join(f" Not run: {each}." for each in figures.failed)
    processes = "one process" if figures.jobs == 1 else f"{figures.jobs} processes"
    done = (
        f"{figures.minutes:.0f} minutes in all, the start of each target included, by {processes}, "
        f"{figures.executions:,} executions: {findings}.{failed}"
    )
    where = (
        f"Began {figures.began} at commit {figures.commit}, on {figures.machine}, load average "
        f"before the run {figures.load}."
    )
    head = ["| target | minutes | executions | branches | findings |", "|---|---|---|---|---|"]
    rows = [done, where, "", *head]
    rows += [
        f"| {each.target} | {each.seconds / 60:.1f} | {each.executions:,} | {each.branches:,} "
        f"| {len(each.findings)} |"
        for each in sorted(figures.targets, key=lambda each: each.target)
    ]
    rows.append(f"| all | {figures.minutes:.1f} | {figures.executions:,} | | {found} |")
    return "\n".join(rows)


def _machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{platform.machine()}, {cores} cores, Python {platform.python_version()}"


def _commit() -> str:
    return _git("rev-parse", "--short=12", "HEAD") + (
        " with changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=FIGURES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or ("" if done.returncode == 0 else "unknown")
