"""How much of the control plane a day takes, part by part, and which part is full first.

Each load is the rate of an operation at the busiest time multiplied by its measured cost. A part is
full when it takes all of what one machine gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellwall.fleet.placement import MAX_CANDIDATES
from fleet_sim.parameters import Parameters

_DAY_S = 86_400.0
_DATABASE_CORES = 8
_KEPT_DAYS = 30
"""Rows of ended sessions stay; so many days are assumed."""
_FULL = 0.7
"""Of a processor; above this, queues grow faster than the load."""


@dataclass(frozen=True, slots=True)
class PartLoad:
    """One part of the control plane."""

    name: str
    says: str
    cores: float
    """Processors that it keeps busy."""
    given: float
    """Processors that it has."""

    @property
    def share(self) -> float:
        return self.cores / self.given

    @property
    def grows_until(self) -> float | None:
        """How many times the load fits; None where it costs nothing that was measured."""
        return _FULL / self.share if self.share else None


def part_loads(parameters: Parameters, figures: Mapping[str, float]) -> list[PartLoad]:
    """At the busiest time of the day, the fullest first."""
    p = parameters
    created = p.sessions_a_day / _DAY_S * p.peak_over_mean
    runs = created * p.runs_a_session
    requests = runs + 3 * created  # created, looked at once, ended
    looks = p.fronts / p.look_every_s * p.hosts
    lost_per_s = p.hosts / p.host_mtbf_s
    rows = p.sessions_a_day * _KEPT_DAYS
    front = requests * p.front_request_s / p.fronts
    front += created * p.place_host_s * MAX_CANDIDATES / p.fronts
    front += p.hosts / p.look_every_s * p.look_host_s
    host_runs = runs / p.hosts * p.run_adds_s + created / p.hosts * p.create_s
    parts = [
        PartLoad(
            "leases", "PostgreSQL: renewals of leases", p.hosts / p.tell_every_s * p.db_renew_s,
            _DATABASE_CORES,
        ),
        PartLoad(
            "looks", "PostgreSQL: looks of the fronts at all hosts", looks * p.db_look_host_s,
            _DATABASE_CORES,
        ),
        PartLoad(
            "sessions", "PostgreSQL: sessions begin and end, and are found by each front",
            created * (p.db_session_s + p.fronts * p.db_find_s), _DATABASE_CORES,
        ),
        PartLoad(
            "losses", f"PostgreSQL: hosts are lost, with the sessions of {_KEPT_DAYS} days",
            lost_per_s * rows * p.db_lost_row_s, _DATABASE_CORES,
        ),
        PartLoad("front", f"one front of {p.fronts}, which uses one processor", front, 1.0),
        PartLoad("service", "the service of one host", host_runs, 1.0),
        PartLoad(
            "memory", "memory of all hosts, at the busiest time",
            figures["memory_mean_percent"] / 100 * p.hosts, float(p.hosts),
        ),
    ]  # fmt: skip
    return sorted(parts, key=lambda part: part.share, reverse=True)


def one_loss_s(parameters: Parameters) -> float:
    """How long PostgreSQL works when one host is lost."""
    return parameters.sessions_a_day * _KEPT_DAYS * parameters.db_lost_row_s


def looks_of_every_machine(parameters: Parameters) -> float:
    """Processors of PostgreSQL if each machine looked at all others, and not the fronts alone."""
    looks = parameters.hosts / parameters.look_every_s * parameters.hosts
    return looks * parameters.db_look_host_s
