"""Ways to choose a host, which the simulation compares: the fleet's own, and two simpler ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from cellwall.fleet.engine import HostState, Wish, no_host
from cellwall.fleet.placement import choose_host

SAMPLE = 32
Policy = Callable[[random.Random, Sequence[HostState], Wish, Mapping[str, int]], str]


def best_of_all(
    _chance: random.Random, hosts: Sequence[HostState], wish: Wish, placed: Mapping[str, int]
) -> str:
    """As the fleet does."""
    return choose_host(hosts, wish, placed).id


def best_of_sample(
    chance: random.Random, hosts: Sequence[HostState], wish: Wish, placed: Mapping[str, int]
) -> str:
    """The same function over a few hosts: what it would cost to look at fewer."""
    few = hosts if len(hosts) <= SAMPLE else chance.sample(hosts, SAMPLE)
    return choose_host(few, wish, placed).id


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
    "all": best_of_all,
    "sample": best_of_sample,
    "chance": any_that_fits,
}
