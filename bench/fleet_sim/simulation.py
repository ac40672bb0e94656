"""One day of a fleet, event by event.

A session begins on the host that placement chooses, takes its memory, and ends; or its host is
lost, and the client asks for another one. The runs of every fiftieth host are simulated one by one:
the hosts do not differ, and the runs of all would be twenty times the events of the sessions.
"""

from __future__ import annotations

import heapq
import math
import random
from itertools import count
from typing import Literal

from cellwall.core.errors import Busy
from cellwall.fleet.engine import Wish
from fleet_sim.day import Day
from fleet_sim.fronts import SimulatedFront, ToldStates
from fleet_sim.hosts import SimulatedHost
from fleet_sim.parameters import MIB, Parameters
from fleet_sim.policies import Policy
from fleet_sim.workload import BUSIEST_S, DAY_S, WARM_UP_S, SessionDemand, count_runs, demands

Kind = Literal["begin", "grow", "end", "run", "fail", "lost", "back", "rack", "look"]
RUNS_OF_EACH = 50
_SEEN_EVERY_S = 600.0


class FleetSimulation:
    """`run` once."""

    def __init__(self, parameters: Parameters, policy: Policy) -> None:
        self._parameters = parameters
        self._chance = random.Random(f"{parameters.seed} events")  # a simulation
        self._hosts = [SimulatedHost(each, parameters) for each in range(parameters.hosts)]
        self._states = ToldStates(self._hosts, parameters)
        self._fronts = [
            SimulatedFront(self._states, parameters, policy) for _ in range(parameters.fronts)
        ]
        self._events: list[tuple[float, int, Kind, tuple[int, ...]]] = []
        self._order = count()
        self._demands: list[SessionDemand] = demands(parameters)
        self._place_of: dict[int, int] = {}
        """The host of each session that lives."""
        self._ends_s: dict[int, float] = {}
        self.day = Day(arrived=len(self._demands))

    def run(self) -> Day:
        end_s = WARM_UP_S + DAY_S
        for number in range(self._parameters.hosts):
            self._plan_failure(number, 0.0)
        self._at(BUSIEST_S, "rack")
        self._at(WARM_UP_S, "look")
        arrivals = iter(enumerate(self._demands))
        upcoming = next(arrivals, None)
        while upcoming is not None or self._events:
            if upcoming is not None and (
                not self._events or upcoming[1].begins_s <= self._events[0][0]
            ):
                now_s, kind, about = upcoming[1].begins_s, "begin", (upcoming[0], 0)
                upcoming = next(arrivals, None)
            else:
                now_s, _, kind, about = heapq.heappop(self._events)
            if now_s > end_s:
                break
            self._states.advance(now_s)
            self._handle(now_s, kind, about)
        self.day.live_at_end = len(self._place_of)
        return self.day

    def _at(self, at_s: float, kind: Kind, *about: int) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), kind, about))

    def _handle(self, now_s: float, kind: str, about: tuple[int, ...]) -> None:
        match kind:
            case "begin":
                self._begin(now_s, *about)
            case "grow":
                self._grow(*about)
            case "end":
                self._end(*about)
            case "run":
                self._run(now_s, *about)
            case "fail":
                self._fail(now_s, about[0])
            case "lost":
                self._hosts[about[0]].is_called_lost = True
                self._states.change(about[0])
            case "back":
                self._hosts[about[0]].come_back()
                self._states.change(about[0])
                self._plan_failure(about[0], now_s)
            case "rack":
                self._lose_rack(now_s)
            case "look":
                self.day.look(now_s - WARM_UP_S, self._hosts, len(self._place_of))
                self._at(now_s + _SEEN_EVERY_S, "look")

    def _begin(self, now_s: float, session: int, tries: int) -> None:
        demand, is_counted = self._demands[session], now_s >= WARM_UP_S
        front = self._fronts[session % len(self._fronts)]
        wish = Wish(memory_bytes=_asked(demand, self._parameters), template=str(demand.template))
        try:
            number = front.place(now_s, wish, self._chance)
        except Busy:
            self._refuse(now_s, session, tries, is_by_host=False)
            return
        host = self._hosts[number]
        if not host.is_up or host.is_overcommitted:
            self._refuse(now_s, session, tries, is_by_host=True)
            return
        was_warm = host.begin(session, demand.template)
        self._place_of[session] = number
        self.day.begin(now_s - WARM_UP_S, is_warm=was_warm, tries=tries, is_counted=is_counted)
        self._states.change(number)
        self._ends_s.setdefault(session, now_s + demand.lasts_s)
        ends_s = max(self._ends_s[session], now_s + 1.0)
        self._at(min(now_s + self._parameters.grows_s, ends_s), "grow", session, number)
        self._at(ends_s, "end", session, number)
        if number % RUNS_OF_EACH == 0:
            for _ in range(count_runs(self._chance, self._parameters)):
                self._at(self._chance.uniform(now_s, ends_s), "run", session, number)

    def _refuse(self, now_s: float, session: int, tries: int, *, is_by_host: bool) -> None:
        """The client asks again a few times; `tries` counts those."""
        self.day.refused_tries += 1
        self.day.refused_by_host += is_by_host
        if tries < len(self._parameters.retry_s):
            self._at(now_s + self._parameters.retry_s[tries], "begin", session, tries + 1)
        else:
            self.day.refused += 1

    def _grow(self, session: int, number: int) -> None:
        if self._place_of.get(session) == number:
            host = self._hosts[number]
            host.grow(session, self._demands[session].memory_bytes)
            self.day.see_memory(host.used_bytes)
            self._states.change(number)

    def _end(self, session: int, number: int) -> None:
        if self._place_of.get(session) == number:
            del self._place_of[session]
            self._hosts[number].end(session)
            self._states.change(number)
            self.day.finished += 1

    def _run(self, now_s: float, session: int, number: int) -> None:
        if self._place_of.get(session) == number:
            spread = math.exp(self._chance.gauss(0, self._parameters.run_sigma))
            service_s = self._parameters.run_median_s * spread + self._parameters.run_adds_s
            self.day.waits_s.append(self._hosts[number].run(now_s, service_s))

    def _plan_failure(self, number: int, now_s: float) -> None:
        self._at(now_s + self._chance.expovariate(1 / self._parameters.host_mtbf_s), "fail", number)

    def _fail(self, now_s: float, number: int) -> None:
        """A host is gone. The clients of its sessions begin anew once they are told."""
        host = self._hosts[number]
        if not host.is_up:
            return
        lost = host.fail()
        noticed_s = now_s + self._parameters.noticed_s
        self.day.lose(len(lost), is_counted=now_s >= WARM_UP_S)
        for session in lost:
            del self._place_of[session]
            self._at(noticed_s + self._chance.uniform(0, 2), "begin", session, 0)
        self._at(noticed_s, "lost", number)
        self._at(now_s + self._parameters.host_repair_s, "back", number)

    def _lose_rack(self, now_s: float) -> None:
        before = self.day.sessions_lost
        for number in range(min(self._parameters.rack_hosts, len(self._hosts) - 1)):
            self._fail(now_s, number)
        self.day.rack_sessions_lost = self.day.sessions_lost - before


def _asked(demand: SessionDemand, parameters: Parameters) -> int:
    """Users ask for more than they take: the next power of two above its double."""
    doubled = max(1, math.ceil(2 * demand.memory_bytes / MIB))
    return min(MIB * 2 ** math.ceil(math.log2(doubled)), parameters.memory_max_bytes)
