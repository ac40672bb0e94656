"""What is counted in a simulated day, and the figures that it gives."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fleet_sim.hosts import SimulatedHost
from fleet_sim.parameters import GIB


@dataclass(slots=True)
class FleetView:
    """All hosts at one moment."""

    at_s: float
    sessions: int
    memory_mean: float
    """Share of the memory of a host that is up."""
    memory_p99: float
    memory_max: float
    memory_spread: float
    """Standard deviation over the mean."""
    overcommitted: int


@dataclass(slots=True)
class Day:
    """Sessions that arrived have finished, live, wait for a host, or were refused."""

    arrived: int
    begun: int = 0
    finished: int = 0
    refused: int = 0
    live_at_end: int = 0
    refused_tries: int = 0
    refused_by_host: int = 0
    """Tries that met a host that was gone or full, which its front did not know yet."""
    warm: int = 0
    counted: int = 0
    hosts_lost: int = 0
    sessions_lost: int = 0
    rack_sessions_lost: int = 0
    most_lost_at_once: int = 0
    max_used_bytes: int = 0
    waits_s: list[float] = field(default_factory=list)
    views: list[FleetView] = field(default_factory=list)
    begun_each_s: Counter[int] = field(default_factory=Counter)

    def begin(self, at_s: float, *, is_warm: bool, tries: int, is_counted: bool) -> None:
        self.begun += 1
        if is_counted:
            self.counted += 1
            self.warm += is_warm
            self.begun_each_s[int(at_s)] += 1 + tries

    def lose(self, sessions: int, *, is_counted: bool) -> None:
        if is_counted:
            self.hosts_lost += 1
            self.sessions_lost += sessions
            self.most_lost_at_once = max(self.most_lost_at_once, sessions)

    def see_memory(self, used_bytes: int) -> None:
        self.max_used_bytes = max(self.max_used_bytes, used_bytes)

    def look(self, at_s: float, hosts: Sequence[SimulatedHost], sessions: int) -> None:
        up = [host for host in hosts if host.is_up]
        used = sorted(host.used_bytes / (host.used_bytes + host.free_bytes) for host in up)
        mean = statistics.fmean(used)
        self.views.append(
            FleetView(
                at_s=at_s,
                sessions=sessions,
                memory_mean=mean,
                memory_p99=used[int(len(used) * 0.99)],
                memory_max=used[-1],
                memory_spread=statistics.pstdev(used) / mean,
                overcommitted=sum(host.is_overcommitted for host in up),
            )
        )

    def figures(self) -> dict[str, float]:
        """Rounded, so that two machines write the same."""
        busiest = max(self.views, key=lambda view: view.sessions)
        waits = sorted(self.waits_s) or [0.0]
        begun = sorted(self.begun_each_s.values())
        found = {
            "sessions_live_at_busiest": busiest.sessions,
            "begun_per_s_p50": begun[len(begun) // 2],
            "begun_per_s_max": begun[-1],
            "memory_mean_percent": 100 * busiest.memory_mean,
            "memory_p99_percent": 100 * max(view.memory_p99 for view in self.views),
            "memory_max_percent": 100 * max(view.memory_max for view in self.views),
            "memory_max_gib": self.max_used_bytes / GIB,
            "memory_spread": statistics.fmean(view.memory_spread for view in self.views),
            "overcommitted_host_views": sum(view.overcommitted for view in self.views),
            "warm_percent": 100 * self.warm / max(1, self.counted),
            "refused_sessions": self.refused,
            "refused_tries": self.refused_tries,
            "refused_by_host_tries": self.refused_by_host,
            "run_wait_p50_ms": 1e3 * waits[len(waits) // 2],
            "run_wait_p99_ms": 1e3 * waits[int(len(waits) * 0.99)],
            "run_wait_max_ms": 1e3 * waits[-1],
            "runs_that_wait_percent": 100 * sum(each > 0 for each in waits) / len(waits),
            "hosts_lost": self.hosts_lost,
            "sessions_lost": self.sessions_lost,
            "sessions_lost_percent": 100 * self.sessions_lost / max(1, self.counted),
            "rack_sessions_lost": self.rack_sessions_lost,
            "most_sessions_lost_with_a_host": self.most_lost_at_once,
        }
        return {name: round(value, 3) for name, value in found.items()}
