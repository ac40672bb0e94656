"""Which host gets a new session: a pure function of what the hosts have told.

Hosts that are lost, drain, lack a label or have too little memory are out. Of the others, the one
with the most memory left for the next session wins; a warm template counts as much as a quarter of
the memory. Sessions that were placed after a host told its state count against it, so that many
requests at once do not all choose the same host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from random import Random

from cellwall.core.errors import Busy
from cellwall.fleet.engine import HostState, Wish, no_host

TYPICAL_SESSION_BYTES = 128 * 1024 * 1024
"""For a session that names no limit of memory: what one usually takes, not what it may take."""
MAX_CANDIDATES = 32
_WARM = 0.25
_SESSION = 1 / 10_000
"""Of hosts with equal memory, the one with fewer sessions."""


def place_session(
    hosts: Sequence[HostState], wish: Wish, placed: Mapping[str, int], chance: Random
) -> HostState:
    """The best of a few hosts at random, so that fronts which know the same do not all choose the
    same host; of all hosts where none of the few fits (docs/scale.md)."""
    if len(hosts) > MAX_CANDIDATES:
        with suppress(Busy):
            return choose_host(chance.sample(hosts, MAX_CANDIDATES), wish, placed)
    return choose_host(hosts, wish, placed)


def choose_host(hosts: Sequence[HostState], wish: Wish, placed: Mapping[str, int]) -> HostState:
    """The best host for a session; raises `Busy` with the reason where none fits. `placed`: how
    many sessions each got since it told its state."""
    best: HostState | None = None
    best_score, nearest = 0.0, _Misfit.NONE
    memory_bytes, template, labels, host_id = (
        wish.memory_bytes, wish.template, wish.labels, wish.host_id,
    )  # fmt: skip
    for host in hosts:
        newer = placed.get(host.id, 0)
        left_bytes = host.memory_free_bytes - newer * TYPICAL_SESSION_BYTES - memory_bytes
        if host.is_lost or host.is_draining or host.id in wish.avoided:
            reason = _Misfit.NONE if host.is_lost else _Misfit.DRAINS
        elif host_id and host.id != host_id:
            reason = _Misfit.NOT_ITS_HOST
        elif (labels or host.labels) and not has_labels(host.labels, labels):
            reason = _Misfit.LABELS
        elif left_bytes < 0:
            reason = _Misfit.MEMORY
        else:
            score = left_bytes / (host.memory_bytes or 1) - (host.sessions + newer) * _SESSION
            if template in host.templates:
                score += _WARM
            if best is None or score > best_score or (score == best_score and host.id > best.id):
                best, best_score = host, score
            continue
        nearest = max(nearest, reason)
    if best is None:
        raise no_host(_WORDS[nearest])
    return best


class _Misfit(IntEnum):
    """Why a host does not fit; the one that came nearest is told."""

    NONE = 0
    DRAINS = 1
    NOT_ITS_HOST = 2
    LABELS = 3
    MEMORY = 4


_WORDS = {
    _Misfit.NONE: "no host is there",
    _Misfit.DRAINS: "every host drains",
    _Misfit.NOT_ITS_HOST: "the host with its files drains or is gone",
    _Misfit.LABELS: "none has the labels that it asks for",
    _Misfit.MEMORY: "none has enough free memory",
}


def has_labels(host: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Whether a host with these labels takes a session that asks for those. A host that is reserved
    for a tenant takes the sessions of that tenant alone."""
    tenant = host.get("tenant")
    if tenant is not None and asked.get("tenant") != tenant:
        return False
    return all(host.get(name) == value for name, value in asked.items())
