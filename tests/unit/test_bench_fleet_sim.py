"""The simulation of a fleet keeps its books: no session is lost from the count, no host holds more
than its memory, and one seed gives one result."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.core.errors import Busy
from cellwall.fleet.engine import HostState, Wish
from cellwall.fleet.placement import choose_host

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from fleet_sim.bench import RESULTS, read_parameters, simulate  # noqa: E402  # found by the path
from fleet_sim.control_plane import part_loads  # noqa: E402  # found by the path
from fleet_sim.hosts import SimulatedHost  # noqa: E402  # found by the path
from fleet_sim.parameters import GIB, MIB, Parameters  # noqa: E402  # found by the path
from fleet_sim.policies import POLICIES  # noqa: E402  # found by the path
from fleet_sim.workload import demands  # noqa: E402  # found by the path

SMALL = replace(
    Parameters(), hosts=6, sessions_a_day=500, session_median_s=1800.0, rack_hosts=2, fronts=2
)
TIGHT = replace(SMALL, memory_bytes=4 * GIB, hosts=3, rack_hosts=1)
"""Too small for its sessions: many are refused."""


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("parameters", [SMALL, TIGHT], ids=["small", "tight"])
@pytest.mark.sample(2)
def test_every_session_that_arrived_ends_once(policy, parameters):
    day = simulate(parameters, policy)
    waiting = day.arrived - day.finished - day.live_at_end - day.refused
    # A session whose host was lost, or that was refused, may still wait at the end of the day.
    assert 0 <= waiting <= 5
    assert day.begun >= day.finished + day.live_at_end
    assert day.hosts_lost >= parameters.rack_hosts
    assert (day.refused > 0) == (parameters is TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_no_host_holds_more_than_its_memory(policy):
    day = simulate(TIGHT, policy)
    assert 0.9 * TIGHT.memory_bytes < day.max_used_bytes <= TIGHT.memory_bytes


@pytest.mark.slow
def test_the_same_seed_gives_the_same_day_and_another_seed_another():
    assert simulate(SMALL, "all") == simulate(SMALL, "all")
    assert simulate(SMALL, "all") != simulate(replace(SMALL, seed=2), "all")


def test_as_many_sessions_arrive_as_the_parameters_say_and_most_at_the_busiest_time():
    wanted = demands(replace(SMALL, sessions_a_day=8000))
    hours = [0] * 27
    for each in wanted:
        hours[int(each.begins_s // 3600)] += 1
    assert len(wanted) == 9000  # a day, and three hours before it
    assert [each.begins_s for each in wanted] == sorted(each.begins_s for each in wanted)
    assert sum(hours[12:18]) > 1.8 * sum(hours[0:6])


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_all_hosts_is_the_choice_of_the_fleet_among_all(seed):
    """Though the simulation shows the fleet's function a few of them; hosts change meanwhile."""
    chance, policy = random.Random(seed), POLICIES["all"]()
    hosts = [_any_state(chance, number) for number in range(30)]
    for looked in range(40):
        for number in chance.sample(range(30), 3):
            hosts[number] = _any_state(chance, number)
        for _ in range(3):
            some = chance.sample(hosts, chance.randrange(6))
            placed = {host.id: chance.randrange(1, 4) for host in some}
            wish = Wish(memory_bytes=chance.randrange(6 * GIB), template=str(chance.randrange(5)))
            found = _or_busy(lambda: choose_host(hosts, wish, placed).id)  # noqa: B023  # at once
            assert found == _or_busy(lambda: policy.choose(chance, hosts, wish, placed, looked))  # noqa: B023  # as above


def _any_state(chance: random.Random, number: int) -> HostState:
    return HostState(
        id=f"host-{number:05d}",
        incarnation="",
        memory_bytes=8 * GIB,
        memory_free_bytes=chance.randrange(8 * GIB),
        sessions=chance.randrange(50),
        templates=frozenset(str(chance.randrange(5)) for _ in range(2)),
        is_lost=chance.random() < 0.1,
    )


def _or_busy(choose: Callable[[], str]) -> str:
    try:
        return choose()
    except Busy:
        return "busy"


def test_a_lost_host_takes_no_session_once_it_is_noticed():
    host = SimulatedHost(1, SMALL)
    host.begin(7, template=0)
    host.grow(7, 100 * MIB)
    assert host.used_bytes == SMALL.base_bytes + 100 * MIB
    assert host.fail() == [7]
    assert (host.used_bytes, host.sessions) == (SMALL.base_bytes, {})
    host.is_called_lost = True
    assert not host.state().takes_sessions
    host.come_back()
    assert host.state().takes_sessions


def test_runs_wait_only_while_all_processors_are_busy():
    host = SimulatedHost(1, replace(SMALL, cores=2))
    assert [host.run(0.0, 4.0), host.run(0.0, 6.0)] == [0.0, 0.0]
    assert host.run(1.0, 1.0) == 3.0
    assert host.run(5.5, 1.0) == 0.0


def test_the_fullest_part_of_the_control_plane_comes_first():
    known = read_parameters({"db_renew_s": 0.01, "front_request_s": 1e-6})
    parts = part_loads(known, {"memory_mean_percent": 40.0})
    assert parts[0].name == "leases"
    assert parts[0].grows_until is not None
    assert parts[0].grows_until < 1.0
    assert parts[-1].grows_until is None  # it costs nothing here


def test_every_parameter_names_its_origin():
    rows = Parameters().table()
    assert all(origin and says for _, _, _, origin, says in rows)
    measured = [name for name, value, *_ in rows if name.endswith("_s") and value == 0.0]
    stored = {row[0]: row[1] for row in json.loads(RESULTS.read_text("utf-8"))["parameters"]}
    # What a stored row adds to the loss of a host is too little for the clock of processors.
    assert [name for name in measured if not stored[name] > 0] in ([], ["db_lost_row_s"])
