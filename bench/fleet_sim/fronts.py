"""What a front knows when it places a session: states that are a moment old, and its own
placements of the last seconds. As `cellwall.fleet.ray.RayFleet`, without Ray."""

from __future__ import annotations

import random
from collections import Counter, deque

from cellwall.fleet.engine import HostState, Wish
from fleet_sim.hosts import SimulatedHost
from fleet_sim.parameters import Parameters
from fleet_sim.policies import Policy


class ToldStates:
    """What the hosts have told with their last renewal; all fronts read the same."""

    def __init__(self, hosts: list[SimulatedHost], parameters: Parameters) -> None:
        self._hosts, self._parameters = hosts, parameters
        self._told = [host.state() for host in hosts]
        self.seen: list[HostState] = list(self._told)
        """By the fronts, at their last look."""
        self._changed: set[int] = set()
        self._untold: set[int] = set()
        self._next_tell_s = self._next_look_s = 0.0
        self.looked = 0
        """How often `seen` has changed."""

    def change(self, number: int) -> None:
        self._changed.add(number)

    def advance(self, now_s: float) -> None:
        """Renewals and looks up to now, in their order; called before each event."""
        while True:
            tells_s, looks_s = self._next_tell_s, self._next_look_s
            if min(tells_s, looks_s) > now_s:
                return
            if tells_s <= looks_s:
                for number in self._changed:
                    host = self._hosts[number]
                    if host.is_up or host.is_called_lost:  # else its last renewal still stands
                        self._told[number] = host.state()
                if self._changed:
                    self._untold |= self._changed
                    self._changed.clear()
                self._next_tell_s += self._parameters.tell_every_s
            else:
                if self._untold:
                    for number in self._untold:
                        self.seen[number] = self._told[number]
                    self._untold.clear()
                    self.looked += 1
                self._next_look_s += self._parameters.look_every_s


class SimulatedFront:
    """One front of several."""

    def __init__(self, states: ToldStates, parameters: Parameters, policy: Policy) -> None:
        self._states, self._parameters, self._policy = states, parameters, policy
        self._placed: deque[tuple[float, str]] = deque()
        self._counts: Counter[str] = Counter()

    def place(self, now_s: float, wish: Wish, chance: random.Random) -> int:
        """The number of the host; raises `Busy` where none fits."""
        since_s = now_s - self._parameters.placed_counts_s
        while self._placed and self._placed[0][0] < since_s:
            host_id = self._placed.popleft()[1]
            self._counts[host_id] -= 1
            if not self._counts[host_id]:
                del self._counts[host_id]
        states = self._states
        found = self._policy.choose(chance, states.seen, wish, self._counts, states.looked)
        self._placed.append((now_s, found))
        self._counts[found] += 1
        return int(found.rpartition("-")[2])
