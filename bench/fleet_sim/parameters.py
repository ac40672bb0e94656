"""The parameters of the simulation. Each one names its origin: a measurement, a setting of
Cellwall, or an assumption about machines and users that nothing here can measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

MIB, GIB = 1024**2, 1024**3


def _given(value: Any, unit: str, origin: str, says: str) -> Any:  # of any field
    return field(default=value, metadata={"unit": unit, "origin": origin, "says": says})


@dataclass(frozen=True, slots=True)
class Parameters:
    """One fleet and the day that it serves."""

    # Size
    hosts: int = _given(1000, "", "chosen", "hosts")
    sessions_a_day: int = _given(1_000_000, "", "chosen", "sessions a day")
    fronts: int = _given(4, "", "assumed", "fronts, each with its own view of the hosts")
    # One host
    cores: int = _given(8, "", "assumed", "processors of a host")
    memory_bytes: int = _given(32 * GIB, "bytes", "assumed", "memory of a host")
    kept_free_bytes: int = _given(
        256 * MIB, "bytes", "setting governor.min_available_memory_bytes",
        "below this a host refuses runs",
    )  # fmt: skip
    base_bytes: int = _given(
        1024 * MIB, "bytes", "assumed", "system, service and Ray on a host without sessions"
    )
    warm_templates: int = _given(4, "", "assumed", "templates that a host keeps warm")
    max_concurrent: int = _given(
        64, "", "setting governor.max_concurrent", "runs of a host at once"
    )
    # Users
    peak_over_mean: float = _given(1.6, "", "assumed", "busiest minute over the mean of the day")
    session_median_s: float = _given(900.0, "s", "assumed", "length of a session, median")
    session_sigma: float = _given(1.66, "", "assumed", "its spread, of a log-normal distribution")
    session_max_s: float = _given(28_800.0, "s", "assumed", "longest session")
    memory_median_bytes: int = _given(
        96 * MIB, "bytes", "assumed", "memory that a session takes, median"
    )
    memory_sigma: float = _given(1.2, "", "assumed", "its spread, of a log-normal distribution")
    memory_max_bytes: int = _given(2048 * MIB, "bytes", "assumed", "limit that a session asks for")
    grows_s: float = _given(30.0, "s", "assumed", "until a session has taken its memory")
    templates: int = _given(20, "", "assumed", "templates in use, by Zipf's law")
    runs_a_session: float = _given(20.0, "", "assumed", "runs of a session, mean")
    run_median_s: float = _given(0.5, "s", "assumed", "processor time of the code of a run, median")
    run_sigma: float = _given(1.5, "", "assumed", "its spread, of a log-normal distribution")
    # Failure
    host_mtbf_s: float = _given(30 * 86_400.0, "s", "assumed", "between two losses of a host, mean")
    host_repair_s: float = _given(600.0, "s", "assumed", "until a lost host is back")
    rack_hosts: int = _given(40, "", "assumed", "hosts that are lost at once, at the busiest time")
    lease_s: float = _given(2.5, "s", "setting fleet.lease_s", "lease of a host")
    lost_after: float = _given(1.65, "", "fleet/leasing.py", "leases until a silent host is lost")
    look_every_s: float = _given(0.25, "s", "fleet/ray.py", "between two looks of a front")
    placed_counts_s: float = _given(
        2.0, "s", "fleet/ray.py", "how long a front counts its own placements against a host"
    )
    retry_s: tuple[float, ...] = _given(
        (1.0, 2.0, 4.0), "s", "assumed", "when a client that was refused asks again"
    )
    # Costs
    run_adds_s: float = _given(
        0.0, "s", "http: http_run_processor_ms", "processor time of the service for one run"
    )
    create_s: float = _given(
        0.0, "s", "e2b: e2b_create_p50_ms", "a host makes a session; at most this is processor time"
    )
    idle_cell_bytes: int = _given(
        2 * MIB, "bytes", "scaling: idle_cell_pss_mib", "memory of a session that has run nothing"
    )
    template_s: float = _given(
        0.0, "s", "cells: cold_run_code_p50_ms less warm_run_code_p50_ms",
        "a run waits longer where its template is not warm",
    )  # fmt: skip
    front_request_s: float = _given(
        0.0, "s", "measured by this bench",
        "processor time of the process of a front for one request, by Ray with TLS",
    )  # fmt: skip
    place_host_s: float = _given(
        0.0, "s", "measured by this bench", "processor time of one placement, for each host"
    )
    look_host_s: float = _given(
        0.0, "s", "measured by this bench",
        "processor time of a front for each host of one look, without Ray",
    )  # fmt: skip
    db_renew_s: float = _given(
        0.0, "s", "measured by this bench", "processor time of PostgreSQL for one renewal"
    )
    db_look_host_s: float = _given(
        0.0, "s", "measured by this bench",
        "processor time of PostgreSQL for each host of one look",
    )  # fmt: skip
    db_find_s: float = _given(
        0.0, "s", "measured by this bench", "processor time of PostgreSQL to find a session"
    )
    db_session_s: float = _given(
        0.0, "s", "measured by this bench",
        "processor time of PostgreSQL for the beginning and the end of a session",
    )  # fmt: skip
    db_lost_row_s: float = _given(
        0.0, "s", "measured by this bench",
        "processor time of PostgreSQL for each stored session when a host is lost",
    )  # fmt: skip
    seed: int = _given(1, "", "chosen", "of all random numbers")

    @property
    def tell_every_s(self) -> float:
        """A host renews its lease five times in its length, and tells its load with it."""
        return self.lease_s / 5

    @property
    def noticed_s(self) -> float:
        """At the latest: lease, then the next look."""
        return self.lease_s * self.lost_after + self.look_every_s

    def scaled(self, share: float) -> Parameters:
        """The same load of each host, with fewer hosts."""
        return replace(
            self,
            hosts=max(2, round(self.hosts * share)),
            sessions_a_day=max(1, round(self.sessions_a_day * share)),
            rack_hosts=max(1, round(self.rack_hosts * share)),
        )

    def table(self) -> list[tuple[str, Any, str, str, str]]:
        """Name, value, unit, origin and meaning of each."""
        return [
            (each.name, getattr(self, each.name), *(each.metadata[k] for k in _SHOWN))
            for each in fields(self)
        ]


_SHOWN = ("unit", "origin", "says")


def known_parameters(
    benches: Mapping[str, Mapping[str, list[float]]], costs: Mapping[str, float]
) -> Parameters:
    """With the stored figures of other benches, the smallest of each, and the costs of this one."""

    def best(bench: str, name: str) -> float:
        return float(min(benches[bench][name]))

    waits_ms = best("cells", "cold_run_code_p50_ms") - best("cells", "warm_run_code_p50_ms")
    return replace(
        Parameters(),
        run_adds_s=best("http", "http_run_processor_ms") / 1e3,
        create_s=best("e2b", "e2b_create_p50_ms") / 1e3,
        idle_cell_bytes=int(best("scaling", "idle_cell_pss_mib") * MIB),
        template_s=waits_ms / 1e3,
        **costs,
    )
