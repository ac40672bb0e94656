"""Ways to choose a host, which the simulation compares: the fleet's own, and two others."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cellwall.fleet.engine import HostState, Wish, no_host
from cellwall.fleet.placement import choose_host, place_session


class Policy(Protocol):
    """Of all fronts of a simulation."""

    def choose(
        self,
        chance: random.Random,
        hosts: Sequence[HostState],
        wish: Wish,
        placed: Mapping[str, int],
        looked: int,
    ) -> str:
        """The id of a host; raises `Busy` where none fits. `hosts` change with `looked` alone, and
        `placed` has no zeros."""


class AsTheFleet:
    def choose(
        self,
        chance: random.Random,
        hosts: Sequence[HostState],
        wish: Wish,
        placed: Mapping[str, int],
        looked: int,  # noqa: ARG002  # nothing is kept
    ) -> str:
        return place_session(hosts, wish, placed, chance).id


class BestOfAll:
    """Every front looks at every host. A thousand hosts for each of a million sessions would take
    ten minutes; so the hosts are kept in order, and `choose_host` gets those that can be its
    choice: those with newer placements, whose score has changed, and of the others the best with
    the template and the best of all. A test compares this with the choice among all."""

    def __init__(self) -> None:
        self._looked = -1
        self._seen: list[HostState] = []
        self._by_id: dict[str, HostState] = {}
        self._ordered: list[tuple[float, str]] = []
        """The best is the last."""

    def choose(
        self,
        chance: random.Random,  # noqa: ARG002  # nothing is by chance
        hosts: Sequence[HostState],
        wish: Wish,
        placed: Mapping[str, int],
        looked: int,
    ) -> str:
        if looked != self._looked:
            self._looked = looked
            self._order(hosts)
        few = [self._by_id[host_id] for host_id in placed]
        is_found = False
        for _, host_id in reversed(self._ordered):
            host = self._by_id[host_id]
            if host.is_lost or host.memory_free_bytes < wish.memory_bytes or host_id in placed:
                continue
            is_warm = wish.template in host.templates
            if is_warm or not is_found:
                few.append(host)
                is_found = True
            if is_warm:
                break
        return choose_host(few, wish, placed).id

    def _order(self, hosts: Sequence[HostState]) -> None:
        if not self._seen:
            self._by_id = {host.id: host for host in hosts}
            self._ordered = sorted(map(_score, hosts))
        for before, host in zip(self._seen, hosts, strict=False):
            if before is not host:
                del self._ordered[bisect_left(self._ordered, _score(before))]
                insort(self._ordered, _score(host))
                self._by_id[host.id] = host
        self._seen = list(hosts)


def _score(host: HostState) -> tuple[float, str]:
    """The order of `choose_host` for hosts without newer placements and with equal templates."""
    return host.memory_free_bytes / (host.memory_bytes or 1) - host.sessions / 10_000, host.id


class ByChance:
    """Without a choice, as a balancer by chance would do."""

    def choose(
        self,
        chance: random.Random,
        hosts: Sequence[HostState],
        wish: Wish,
        placed: Mapping[str, int],  # noqa: ARG002  # they do not matter
        looked: int,  # noqa: ARG002  # nothing is kept
    ) -> str:
        for _ in range(8):
            host = hosts[chance.randrange(len(hosts))]
            if host.takes_sessions and host.memory_free_bytes >= wish.memory_bytes:
                return host.id
        raise no_host("none has enough free memory")


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "fleet": AsTheFleet,
    "all": BestOfAll,
    "chance": ByChance,
}
