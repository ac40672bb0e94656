"""Ways to choose a host, which the simulation compares: the fleet's own, and two others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from cellwall.fleet.engine import HostState, Wish, no_host
from cellwall.fleet.placement import choose_host, place_session

Policy = Callable[[random.Random, Sequence[HostState], Wish, Mapping[str, int]], str]


def as_the_fleet(
    chance: random.Random, hosts: Sequence[HostState], wish: Wish, placed: Mapping[str, int]
) -> str:
    return place_session(hosts, wish, placed, chance).id


def best_of_all(
    _chance: random.Random, hosts: Sequence[HostState], wish: Wish, placed: Mapping[str, int]
) -> str:
    """Every front looks at every host."""
    return choose_host(hosts, wish, placed).id


def any_that_fits(
    chance: random.Random, hosts: Sequence[HostState], wish: Wish, _placed: Mapping[str, int]
) -> str:
    """Without a choice, as a balancer by chance would do."""
    for _ in range(8):
        host = hosts[chance.randrange(len(hosts))]
        if host.takes_sessions and host.memory_free_bytes >= wish.memory_bytes:
            return host.id
    raise no_host("none has enough free memory")


POLICIES: Mapping[str, Policy] = {
    "fleet": as_the_fleet,
    "all": best_of_all,
    "chance": any_that_fits,
}
