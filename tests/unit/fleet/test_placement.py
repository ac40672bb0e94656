"""A new session goes to the host with the most room that fits it (SRV-6)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from cellwall.core.errors import Busy
from cellwall.fleet.engine import HostState, Wish
from cellwall.fleet.placement import (
    MAX_CANDIDATES,
    TYPICAL_SESSION_BYTES,
    choose_host,
    place_session,
)

pytestmark = pytest.mark.requirement("SRV-6")
GIB = 1024**3


def host(name: str, free_gib: float = 8, **more: object) -> HostState:
    known = {"memory_bytes": 16 * GIB, "memory_free_bytes": int(free_gib * GIB)}
    return HostState(id=name, incarnation="", **{**known, **more})  # type: ignore[arg-type]


def chosen(hosts: list[HostState], wish: Wish | None = None, **placed: int) -> str:
    return choose_host(hosts, wish or Wish(), placed).id


def test_the_host_with_the_most_free_memory_gets_a_session():
    assert chosen([host("a", 2), host("b", 9), host("c", 4)]) == "b"


def test_a_warm_template_outweighs_a_quarter_of_the_memory():
    warm = host("warm", 6, templates=frozenset({"data"}))
    assert chosen([warm, host("cold", 9)], Wish(template="data")) == "warm"
    assert chosen([warm, host("cold", 9)], Wish(template="other")) == "cold"
    assert chosen([warm, host("cold", 15)], Wish(template="data")) == "cold"


def test_many_sessions_at_once_are_spread_before_the_hosts_tell_their_load():
    hosts, placed = [host(each) for each in "abc"], Counter[str]()
    for _ in range(30):
        placed[choose_host(hosts, Wish(), placed).id] += 1
    assert set(placed.values()) == {10}


def test_fronts_of_a_large_fleet_that_know_the_same_choose_different_hosts():
    hosts = [host(f"h{number:03d}", 8 + number / 1000) for number in range(200)]
    fronts = [place_session(hosts, Wish(), {}, Random(seed)).id for seed in range(20)]
    assert len(set(fronts)) > 5
    assert {place_session(hosts[:32], Wish(), {}, Random(seed)).id for seed in range(20)} == {
        "h031"
    }


def test_the_one_host_of_a_large_fleet_that_fits_is_found():
    hosts = [host(f"h{number:03d}", 1) for number in range(20 * MAX_CANDIDATES)]
    hosts[100] = host("gpu", 1, labels={"gpu": "a100"})
    wish = Wish(labels={"gpu": "a100"})
    assert {place_session(hosts, wish, {}, Random(seed)).id for seed in range(10)} == {"gpu"}


def test_labels_are_asked_for_and_a_tenant_keeps_its_host():
    hosts = [
        host("plain", 15),
        host("gpu", 1, labels={"gpu": "a100", "region": "eu"}),
        host("own", 14, labels={"tenant": "acme"}),
    ]
    assert chosen(hosts, Wish(labels={"gpu": "a100"})) == "gpu"
    assert chosen(hosts, Wish(labels={"gpu": "a100", "region": "eu"})) == "gpu"
    assert chosen(hosts, Wish(labels={"tenant": "acme"})) == "own"
    assert chosen(hosts[1:]) == "gpu"  # not the tenant's, though it has more room


@pytest.mark.parametrize(
    ("hosts", "wish", "reason"),
    [
        ([], Wish(), "no host is there"),
        ([host("a", is_lost=True)], Wish(), "no host is there"),
        ([host("a")], Wish(avoided=frozenset({"a"})), "every host drains"),
        ([host("a", is_draining=True), host("b", is_lost=True)], Wish(), "every host drains"),
        ([host("a")], Wish(labels={"gpu": "a100"}), "labels"),
        ([host("a", 1)], Wish(memory_bytes=2 * GIB), "memory"),
        ([host("a"), host("b", is_draining=True)], Wish(host_id="b"), "its files"),
    ],
)
def test_a_session_that_fits_nowhere_is_refused_with_the_reason(hosts, wish, reason):
    with pytest.raises(Busy, match=reason) as refused:
        choose_host(hosts, wish, {})
    assert refused.value.code == "CW-FLEET-FULL"
    assert refused.value.hint


def test_the_host_with_the_files_is_taken_though_another_has_more_room():
    assert chosen([host("a", 1), host("b", 9)], Wish(host_id="a")) == "a"


def test_what_was_just_placed_counts_against_the_free_memory():
    wish = Wish(memory_bytes=GIB)
    assert chosen([host("a", 1.5)], wish) == "a"
    with pytest.raises(Busy, match="memory"):
        chosen([host("a", 1.5)], wish, a=GIB // TYPICAL_SESSION_BYTES)
