"""A fleet of three hosts on this machine: what it adds to a request, load over many sessions, a
host that is killed, a host whose link is cut, and a host that joins.

Each host is a network namespace behind a veth pair where this process is root, else a loopback
address; then no link is cut. The service beside it uses the same PostgreSQL server, so that the
difference is the fleet.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from http_service import Client, Load, Served, served

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from conftest import ORDINARY_UID  # of the tests
from databases import PostgresServer, find_server_programs
from fleet_history import Attempt, Fate, History, exported_events, violations
from fleet_hosts import Machine, RunningFleet, running_fleet
from fleet_links import BRIDGE_ADDRESS, HostLinks, LoopbackLinks, NamespaceLinks
from fleet_load import FleetLoad, LoadClient, Sample

HOSTS = 3
_NOTICED_WITHIN_S = 30.0
_WINDOW_S = 5.0
_LABEL = {"Cellwall-Labels": "joins=late"}


def measure(rounds: int, *, quiet: bool, load: Load) -> dict[str, Any]:
    """All parts on one fleet, in this order: a lost host stays lost. `series` has each error that
    is counted, with its code and text."""
    figures: dict[str, Any] = {}
    errors: list[dict[str, Any]] = []

    def tell(found: dict[str, float]) -> None:
        figures.update(found)
        if not quiet:
            print(f"bench fleet: {found}", file=sys.stderr)

    with _machines(load) as (fleet, beside):
        tell(_added(fleet, beside, rounds))
        sessions, made_s = _spread(fleet, load)
        counts = Counter(fleet.places()[session] for session in sessions)
        tell(
            {
                "hosts": len(counts),
                "sessions": len(sessions),
                "sessions_made_per_s": round(len(sessions) / made_s, 1),
                "sessions_most_over_least": round(max(counts.values()) / min(counts.values()), 3),
            }
        )
        attempts: list[Attempt] = []
        tell(_loaded(fleet, sessions, load, attempts, errors))
        killed, cut = fleet.hosts[:2]
        faults: dict[str, tuple[Machine, Callable[[], object]]] = {"kill": (killed, killed.kill)}
        if fleet.links.is_separate:
            faults["cut"] = cut, lambda: fleet.links.cut(cut.name)
        for name, (host, lose) in faults.items():
            tell(_lose(fleet, host, name, lose, sessions, load, attempts, errors))
        tell(_join(fleet))
        tell(_check(fleet, attempts))
    return {**figures, "series": {"errors": errors}}


@contextmanager
def _machines(load: Load) -> Iterator[tuple[RunningFleet, Served]]:
    """A fleet, and one service without a fleet."""
    os.environ["CELLWALL_PATH"] = "cold"  # as the hosts: the difference is the fleet
    folder = Path(tempfile.mkdtemp(prefix="cw-fleet-", dir="/var/tmp"))
    links: HostLinks = NamespaceLinks() if os.geteuid() == 0 else LoopbackLinks()
    try:
        with fleet_database(folder, BRIDGE_ADDRESS if links.is_separate else "") as database:
            alone = Path(folder, "alone.toml")
            alone.write_text(
                f'[storage]\nurl = "{database.new_url()}"\n'
                f"dangerously_without_tls = {str(links.is_separate).lower()}\n"
                f'[accounts]\nkey_file = "{folder}/alone.key"\n'
            )
            url = database.new_url()
            more = f"[governor]\nmax_concurrent = {max(load.concurrent, 64)}\n"
            with (
                running_fleet(folder / "fleet", url, links, hosts=HOSTS, more=more) as fleet,
                served(str(folder), str(alone)) as beside,
            ):
                yield fleet, beside
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fleet_database(folder: Path, address: str) -> Iterator[PostgresServer]:
    """PostgreSQL in this folder; it also listens on an address where one is given."""
    programs = find_server_programs()
    assert programs is not None, "PostgreSQL is missing (Debian: postgresql)"
    folder.chmod(0o755)
    place = folder / "database"
    place.mkdir()
    if os.geteuid() == 0:
        os.chown(place, ORDINARY_UID, ORDINARY_UID)
    server = PostgresServer(programs, place, listens_on=address)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _added(fleet: RunningFleet, beside: Served, rounds: int) -> dict[str, float]:
    """The same request to a service alone and to the fleet, by turns."""
    clients = {
        "local": beside.client(),
        "fleet": Client(f"127.0.0.1:{fleet.port}", fleet.token()),
    }
    sessions = {name: client.new_session() for name, client in clients.items()}
    taken: dict[str, list[float]] = {}
    for number in range(rounds + 5):
        for name, client in clients.items():
            calls: dict[str, Callable[[], object]] = {
                "run": lambda c=client, s=sessions[name]: c.run(s),  # type: ignore[misc]  # the type of a default is unknown
                "get": lambda c=client, s=sessions[name]: c.ask("GET", f"/v1/sessions/{s}"),  # type: ignore[misc]  # as above
            }
            for what, call in calls.items():
                started = time.perf_counter()
                call()
                if number >= 5:
                    took_ms = (time.perf_counter() - started) * 1000
                    taken.setdefault(f"{name}_{what}", []).append(took_ms)
    for name, client in clients.items():
        client.ask("DELETE", f"/v1/sessions/{sessions[name]}")
        client.close()
    p50 = {name: statistics.median(values) for name, values in taken.items()}
    return {
        **{f"{name}_p50_ms": round(value, 3) for name, value in p50.items()},
        "fleet_adds_to_run_p50_ms": round(p50["fleet_run"] - p50["local_run"], 3),
        "fleet_adds_to_get_p50_ms": round(p50["fleet_get"] - p50["local_get"], 3),
        "fleet_run_over_local": round(p50["fleet_run"] / p50["local_run"], 3),
    }


def _spread(fleet: RunningFleet, load: Load) -> tuple[list[str], float]:
    client, started = LoadClient(fleet, fleet.token()), time.monotonic()
    sessions = [client.new_session() for _ in range(load.sessions)]
    client.close()
    return sessions, time.monotonic() - started


def _loaded(
    fleet: RunningFleet,
    sessions: Sequence[str],
    load: Load,
    attempts: list[Attempt],
    errors: list[dict[str, Any]],
) -> dict[str, float]:
    began_s = time.monotonic()
    with FleetLoad(fleet, sessions, clients=load.concurrent) as running:
        time.sleep(load.seconds)
    attempts += running.attempts
    errors += _errors("load", running.samples, began_s)
    return {
        "load_concurrent": load.concurrent,
        "load_runs_per_s": round(len(running.samples) / load.seconds, 1),
        "load_errors": _failed(running.samples),
        "load_p50_ms": round(_percentile(running.samples, 0.5), 2),
        "load_p99_ms": round(_percentile(running.samples, 0.99), 2),
    }


def _lose(
    fleet: RunningFleet,
    lost: Machine,
    name: str,
    lose: Callable[[], object],
    sessions: Sequence[str],
    load: Load,
    attempts: list[Attempt],
    errors: list[dict[str, Any]],
) -> dict[str, float]:
    """Under load: when clients learn it, and what the other hosts' runs took meanwhile."""
    places = fleet.places()
    live = [each for each in sessions if places.get(each)]
    with FleetLoad(fleet, live, clients=load.concurrent) as running:
        time.sleep(_WINDOW_S)
        at_s = time.monotonic()
        lose()
        time.sleep(2 * _WINDOW_S)
    attempts += running.attempts
    others = [each for each in running.samples if places[each.attempt.session] != lost.id]
    errors += _errors(name, others, at_s)
    of_lost = [each for each in running.samples if places[each.attempt.session] == lost.id]
    told = [each.ended_s - at_s for each in of_lost if each.code == "CW-HOST-LOST"]
    waits = [
        each.ended_s - max(each.began_s, at_s)
        for each in of_lost
        if each.ended_s > at_s and each.attempt.fate is not Fate.ACKNOWLEDGED
    ]
    before = _percentile([each for each in others if each.ended_s < at_s], 0.99)
    slow = [
        second
        for second in range(int(2 * _WINDOW_S))
        if _percentile(_between(others, at_s + second, at_s + second + 1), 0.99) > 2 * before
    ]
    return {
        f"{name}_noticed_s": round(min(told, default=_NOTICED_WITHIN_S), 2),
        f"{name}_longest_wait_s": round(max(waits, default=_NOTICED_WITHIN_S), 2),
        f"{name}_others_errors": _failed(others),
        f"{name}_others_p99_before_ms": round(before, 2),
        f"{name}_others_p99_over_before": round(
            _percentile(_between(others, at_s, at_s + _WINDOW_S), 0.99) / before, 2
        ),
        f"{name}_others_slow_s": len(slow),
    }


def _join(fleet: RunningFleet) -> dict[str, float]:
    """From the start of the command to the first answer of a run on the new host."""
    host = fleet.new_host()
    started = time.monotonic()
    fleet.launch_again(host, "--label", "joins=late")
    host.wait_until_up()
    told_s = time.monotonic() - started
    client = LoadClient(fleet, fleet.token())
    while True:
        try:
            session = client.new_session(**_LABEL)
        except AssertionError:  # the front has not seen the host yet
            time.sleep(0.05)
            continue
        break
    sample = client.run_marked(session)
    assert sample.attempt.fate is Fate.ACKNOWLEDGED, sample
    client.close()
    return {
        "join_tells_s": round(told_s, 2),
        "join_to_first_run_s": round(time.monotonic() - started, 2),
    }


def _check(fleet: RunningFleet, attempts: Sequence[Attempt]) -> dict[str, float]:
    """The records of all hosts, the lost ones included, beside what was acknowledged."""
    events = []
    for host in fleet.hosts:
        file = host.folder / "exported.jsonl"
        host.cellwall("audit", "export", "--form", "jsonl", "--to", str(file))
        events += exported_events(host.id, file)
    sent = {each.mark for each in attempts}
    ours = [each for each in events if not each.mark or each.mark in sent]
    found = violations(History(attempts, ours, {}))
    for each in found[:5]:
        print(f"bench fleet: {each}", file=sys.stderr)
    return {
        "runs_acknowledged": sum(each.fate is Fate.ACKNOWLEDGED for each in attempts),
        "runs_lost_or_twice": len(found),
    }


def _failed(samples: Sequence[Sample]) -> int:
    return sum(each.attempt.fate is not Fate.ACKNOWLEDGED for each in samples)


def _errors(part: str, samples: Sequence[Sample], at_s: float) -> list[dict[str, Any]]:
    """Each run that failed: when it ended, what it took, and what its client was told."""
    return [
        {
            "part": part,
            "after_s": round(each.ended_s - at_s, 2),
            "took_ms": round(each.took_ms),
            "kind": each.kind,
            "code": each.code,
            "text": each.text,
        }
        for each in samples
        if each.attempt.fate is not Fate.ACKNOWLEDGED
    ]


def _between(samples: Sequence[Sample], from_s: float, to_s: float) -> list[Sample]:
    return [each for each in samples if from_s <= each.ended_s < to_s]


def _percentile(samples: Sequence[Sample], share: float) -> float:
    """Of the times of runs that were acknowledged; 0 without any."""
    times = sorted(each.took_ms for each in samples if each.attempt.fate is Fate.ACKNOWLEDGED)
    return times[min(len(times) - 1, int(len(times) * share))] if times else 0.0
