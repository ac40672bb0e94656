"""What `./dev bench all` runs: the order, the rounds and the time limit of each bench."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedBench:
    """One bench of a whole run."""

    name: str
    rounds: int
    limit_s: float
    is_long: bool = False
    """Left out unless it is named: minutes, downloads, or data that is no part of the project."""


# The figures that are judged most often come first, so that a run that is cut short has these.
PLAN = (
    PlannedBench("cells", 40, 150),
    PlannedBench("scaling", 20, 120),
    PlannedBench("start", 20, 120),
    PlannedBench("audit", 20, 90),
    PlannedBench("policy", 40, 60),
    PlannedBench("egress", 30, 150),
    PlannedBench("guard", 20, 180),
    PlannedBench("http", 40, 120),
    PlannedBench("gateway", 100, 60),
    PlannedBench("telemetry", 40, 60),
    PlannedBench("accounts", 60, 60),
    PlannedBench("flow", 40, 60),
    PlannedBench("workspaces", 10, 90),
    PlannedBench("packages", 10, 120),
    PlannedBench("e2b", 20, 60),
    PlannedBench("incident", 2, 120),
    PlannedBench("dashboard", 10, 120),
    PlannedBench("snapshots", 5, 120),
    PlannedBench("fleet", 200, 900, is_long=True),
    PlannedBench("search", 1, 900, is_long=True),
    PlannedBench("soak", 1, 960, is_long=True),
    PlannedBench("families", 1, 900, is_long=True),
    PlannedBench("providers", 60, 1500, is_long=True),
)


def choose(only: str | None) -> tuple[PlannedBench, ...]:
    """The benches that are named, separated by commas; all but the long ones without a name."""
    if not only:
        return tuple(bench for bench in PLAN if not bench.is_long)
    names = only.split(",")
    unknown = sorted(set(names) - {bench.name for bench in PLAN})
    if unknown:
        known = ", ".join(bench.name for bench in PLAN)
        raise SystemExit(f"./dev bench all --only: no bench {', '.join(unknown)}; known: {known}")
    return tuple(bench for bench in PLAN if bench.name in names)
