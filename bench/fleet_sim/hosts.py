"""One simulated host: its sessions, its memory, its warm templates and the queue of its runs."""

from __future__ import annotations

import heapq
from collections import OrderedDict

from cellwall.fleet.engine import HostState
from fleet_sim.parameters import Parameters


class SimulatedHost:
    """As much of a host as placement and queueing depend on."""

    def __init__(self, number: int, parameters: Parameters) -> None:
        self._parameters = parameters
        self.id = f"host-{number:05d}"
        self.used_bytes = parameters.base_bytes
        self.sessions: dict[int, int] = {}
        """What each session takes now, in bytes."""
        self.is_up = True
        self.is_called_lost = False
        self._warm: OrderedDict[int, None] = OrderedDict()
        self._busy_until_s = [0.0] * parameters.cores
        heapq.heapify(self._busy_until_s)

    @property
    def free_bytes(self) -> int:
        return max(0, self._parameters.memory_bytes - self.used_bytes)

    @property
    def is_overcommitted(self) -> bool:
        """It would refuse runs."""
        return self.free_bytes < self._parameters.kept_free_bytes

    def state(self) -> HostState:
        return HostState(
            id=self.id,
            incarnation="",
            memory_free_bytes=self.free_bytes,
            memory_bytes=self._parameters.memory_bytes,
            sessions=len(self.sessions),
            templates=frozenset(map(str, self._warm)),
            is_lost=self.is_called_lost,
        )

    def begin(self, session: int, template: int) -> bool:
        """Take a session; whether its template was warm."""
        self.sessions[session] = self._parameters.idle_cell_bytes
        self.used_bytes += self._parameters.idle_cell_bytes
        was_warm = template in self._warm
        self._warm[template] = None
        self._warm.move_to_end(template)
        if len(self._warm) > self._parameters.warm_templates:
            self._warm.popitem(last=False)
        return was_warm

    def grow(self, session: int, to_bytes: int) -> None:
        """At most to what is free: the kernel's limit ends the session's own processes first."""
        more = min(to_bytes - self.sessions[session], self.free_bytes)
        if more > 0:
            self.sessions[session] += more
            self.used_bytes += more

    def end(self, session: int) -> None:
        self.used_bytes -= self.sessions.pop(session)

    def fail(self) -> list[int]:
        """The sessions that are lost with it."""
        lost = list(self.sessions)
        self.is_up, self.sessions, self.used_bytes = False, {}, self._parameters.base_bytes
        self._warm.clear()
        self._busy_until_s = [0.0] * self._parameters.cores
        return lost

    def come_back(self) -> None:
        self.is_up, self.is_called_lost = True, False

    def run(self, now_s: float, service_s: float) -> float:
        """How long a run waits for a processor, which it then keeps to its end."""
        begins_s = max(now_s, self._busy_until_s[0])
        heapq.heapreplace(self._busy_until_s, begins_s + service_s)
        return begins_s - now_s
