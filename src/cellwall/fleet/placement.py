"""Which host gets a new session: a pure function of what the hosts have told.

Hosts that are lost, drain, lack a label or have too little memory are out. Of the others, the one
with the most memory left for the next session wins; a warm template counts as much as a quarter of
the memory. Sessions that were placed after a host told its state count against it, so that many
requests at once do not all choose the same host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cellwall.fleet.engine import HostState, Wish, no_host

TYPICAL_SESSION_BYTES = 128 * 1024 * 1024
"""For a session that names no limit of memory: what one usually takes, not what it may take."""
_WARM = 0.25


def choose_host(hosts: Sequence[HostState], wish: Wish, placed: Mapping[str, int]) -> HostState:
    """The best host for a session; raises `Busy` with the reason where none fits. `placed`: how
    many sessions each got since it told its state."""
    live = [host for host in hosts if host.takes_sessions and host.id not in wish.avoided]
    if not live:
        is_draining = any(host.is_draining and not host.is_lost for host in hosts)
        raise no_host("every host drains" if is_draining or wish.avoided else "no host is there")
    if wish.host_id:
        live = [host for host in live if host.id == wish.host_id]
        if not live:
            raise no_host("the host with its files drains or is gone")
    fitting = [host for host in live if _has_labels(host, wish)]
    if not fitting:
        raise no_host("none has the labels that it asks for")
    roomy = [host for host in fitting if _free(host, placed) >= wish.memory_bytes]
    if not roomy:
        raise no_host("none has enough free memory")
    return max(roomy, key=lambda host: (_score(host, wish, placed), host.id))


def _has_labels(host: HostState, wish: Wish) -> bool:
    """A host that is reserved for a tenant takes the sessions of that tenant alone."""
    tenant = host.labels.get("tenant")
    if tenant is not None and wish.labels.get("tenant") != tenant:
        return False
    return all(host.labels.get(name) == value for name, value in wish.labels.items())


def _free(host: HostState, placed: Mapping[str, int]) -> int:
    return host.memory_free_bytes - placed.get(host.id, 0) * TYPICAL_SESSION_BYTES


def _score(host: HostState, wish: Wish, placed: Mapping[str, int]) -> float:
    left = (_free(host, placed) - wish.memory_bytes) / max(host.memory_bytes, 1)
    crowd = (host.sessions + placed.get(host.id, 0)) / 10_000
    """Of hosts with equal memory, the one with fewer sessions."""
    return left - crowd + (_WARM if wish.template in host.templates else 0.0)
