"""Measures the costs, simulates the day, and gives figures and series."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from fleet_sim.control_plane import (
    PartLoad,
    looks_of_every_machine,
    one_loss_s,
    part_loads,
)
from fleet_sim.day import Day
from fleet_sim.parameters import Parameters, known_parameters
from fleet_sim.policies import POLICIES
from fleet_sim.postgres import postgres_server
from fleet_sim.simulation import FleetSimulation

_HERE = Path(__file__).parent
COSTS, RESULTS = _HERE / "costs.json", _HERE / "results.json"
_FIGURES = _HERE.parent / "figures.json"
_FEWER = (1.0, 0.7, 0.5, 0.4, 0.35, 0.3)
"""Shares of the hosts for the same sessions: where the first one is refused."""
_SWEEP = 0.05
"""The sweep has a twentieth of hosts and sessions."""


def measure(
    _rounds: int, *, quiet: bool, share: float = 1.0, is_record: bool = False
) -> dict[str, float]:
    """`share`: of 1,000 hosts and 1,000,000 sessions."""
    parameters = read_parameters(measured_costs(is_record=is_record)).scaled(share)
    figures: dict[str, float] = {}
    with ProcessPoolExecutor() as pool:
        waiting = {name: pool.submit(simulate, parameters, name) for name in POLICIES}
        smaller = fewer_hosts(parameters) if is_record else []
        fewer = [pool.submit(simulate, each, "fleet") for each in smaller]
        days = {name: each.result() for name, each in waiting.items()}
        sweep = [each.result().figures() for each in fewer]
    for name, day in days.items():
        figures |= {f"{name}_{key}": value for key, value in day.figures().items()}
        if not quiet:
            print(f"bench fleet-sim: {name}: {day.figures()}", file=sys.stderr)
    parts = part_loads(parameters, days["fleet"].figures())
    figures |= {f"part_{part.name}_percent": round(100 * part.share, 3) for part in parts}
    figures["one_loss_s"] = round(one_loss_s(parameters), 3)
    figures["looks_of_every_machine_cores"] = round(looks_of_every_machine(parameters), 3)
    if is_record:
        _record(parameters, figures, days, parts, sweep)
    return figures


def read_parameters(costs: dict[str, float]) -> Parameters:
    """With the stored figures of the other benches."""
    stored = json.loads(_FIGURES.read_text("utf-8"))["benches"]
    benches = {name: bench["figures"] for name, bench in stored.items()}
    return known_parameters(benches, costs)


def measured_costs(*, is_record: bool) -> dict[str, float]:
    """Measured where PostgreSQL is installed; else those that were recorded. The cost of a front
    takes a fleet with Ray, which only a run that is recorded starts."""
    recorded: dict[str, float] = json.loads(COSTS.read_text("utf-8"))
    with postgres_server() as server:
        if server is None:
            return recorded
        from fleet_sim.costs import (  # noqa: PLC0415  # needs a database and its libraries
            database_costs,
            placement_cost,
        )

        costs = database_costs(server)
    costs |= {"place_host_s": placement_cost(), "front_request_s": recorded["front_request_s"]}
    if is_record:
        from fleet_sim.front_cost import front_cost  # noqa: PLC0415  # needs Ray

        costs["front_request_s"] = front_cost()
    costs = {name: float(f"{value:.3g}") for name, value in sorted(costs.items())}
    if is_record:
        COSTS.write_text(json.dumps(costs, indent=1) + "\n", "utf-8")
    return costs


def simulate(parameters: Parameters, policy: str) -> Day:
    """In a process of its own."""
    return FleetSimulation(parameters, POLICIES[policy]()).run()


def fewer_hosts(parameters: Parameters) -> list[Parameters]:
    """The same sessions on fewer hosts, all at a twentieth of the size."""
    small = parameters.scaled(_SWEEP)
    return [
        replace(small, hosts=max(2, round(small.hosts * share)), rack_hosts=1) for share in _FEWER
    ]


def _record(
    parameters: Parameters,
    figures: dict[str, float],
    days: dict[str, Day],
    parts: list[PartLoad],
    sweep: list[dict[str, float]],
) -> None:
    stored = {
        "parameters": [list(row) for row in parameters.table()],
        "figures": figures,
        "parts": [{**asdict(part), "fits": part.grows_until} for part in parts],
        "views": {name: [asdict(view) for view in day.views[::3]] for name, day in days.items()},
        "fewer": [
            {
                "hosts": round(share * parameters.hosts),
                "refused_sessions": found["refused_sessions"],
                "refused_tries": found["refused_tries"],
                "memory_mean_percent": found["memory_mean_percent"],
                "run_wait_p99_ms": found["run_wait_p99_ms"],
            }
            for share, found in zip(_FEWER, sweep, strict=True)
        ],
    }
    rounded = json.loads(json.dumps(stored), parse_float=lambda text: float(f"{float(text):.4g}"))
    RESULTS.write_text(json.dumps(rounded, indent=1) + "\n", "utf-8")
