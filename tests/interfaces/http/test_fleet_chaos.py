"""Faults of a real fleet in network namespaces, under load: the merged record is checked (SRV-6).

Each test has a fleet of its own, which takes half a minute; `./dev test --long` runs them.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import ORDINARY_UID, need
from databases import PostgresServer, find_server_programs
from fleet_history import Attempt, Fate, History, exported_events, violations
from fleet_hosts import DEADLINE_S, Machine, RunningFleet, running_fleet, until
from fleet_links import BRIDGE_ADDRESS, NamespaceLinks
from fleet_load import FleetLoad, LoadClient, ShortSessions

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.requirement("SRV-6"),
    pytest.mark.xdist_group("fleet"),
]
SESSIONS, CLIENTS = 9, 3
# A pause of a busy machine is no lost host.
PATIENT = "lease_s = 8.0"
RUNS = 40
"""So many more are acknowledged before the next step of a test."""
SLOW_LINK_MS = 100
"""One way."""
HOPELESS_LINK_MS = 5000
MOST_CROSSINGS = 30
"""Of a slow link, by what belongs to one run."""


@contextmanager
def chaotic_fleet(hosts: int = 3, config: str = PATIENT) -> Iterator[RunningFleet]:
    need(find_spec("ray"), "Ray (extra fleet, Python 3.11 to 3.13)")
    programs = find_server_programs()
    need(programs, "PostgreSQL (Debian: postgresql)")
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="cw-fleet-", dir="/var/tmp"))
    links = NamespaceLinks()
    try:
        folder.chmod(0o755)
        (folder / "pg").mkdir()
        os.chown(folder / "pg", ORDINARY_UID, ORDINARY_UID)
        database = PostgresServer(programs, folder / "pg", listens_on=BRIDGE_ADDRESS)
        database.start()
        try:
            place = folder / "fleet"
            url = database.new_url()
            with running_fleet(place, url, links, hosts=hosts, config=config) as fleet:
                yield fleet
        finally:
            database.stop()
    finally:
        links.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fleet() -> Iterator[RunningFleet]:
    with chaotic_fleet() as found:
        yield found


@pytest.fixture
def quick_fleet() -> Iterator[RunningFleet]:
    """With the lease of an ordinary fleet."""
    with chaotic_fleet(config="") as found:
        yield found


def new_sessions(fleet: RunningFleet, count: int = SESSIONS) -> list[str]:
    client = LoadClient(fleet, fleet.token())
    try:
        return [client.new_session() for _ in range(count)]
    finally:
        client.close()


def acknowledged(load: FleetLoad) -> int:
    return sum(each.fate is Fate.ACKNOWLEDGED for each in load.attempts)


def until_more_runs(load: FleetLoad, more: int = RUNS) -> None:
    before = acknowledged(load)
    until(lambda: acknowledged(load) >= before + more)


def history_of(fleet: RunningFleet, attempts: list[Attempt]) -> History:
    """The records of all hosts, and the files of the sessions that live."""
    events = []
    for host in fleet.hosts:
        file = host.folder / "exported.jsonl"
        host.cellwall("audit", "export", "--form", "jsonl", "--to", str(file))
        events += exported_events(host.id, file)
    client = LoadClient(fleet, fleet.token())
    files = {}
    for session in {each.session for each in attempts} & set(fleet.places()):
        if (written := client.marks(session)) is not None:
            files[session] = written
    client.close()
    return History(attempts, events, files)


def fail(fleet: RunningFleet, host: Machine, fault: str) -> None:
    match fault:
        case "kill":
            host.kill()
        case "stop":
            host.signal(signal.SIGSTOP)
        case "cut":
            fleet.links.cut(host.name)
        case "slow":  # a lease is not renewed in time
            fleet.links.slow(host.name, delay_ms=HOPELESS_LINK_MS, kilobits_per_s=4000)


def mend(fleet: RunningFleet, host: Machine, fault: str) -> None:
    match fault:
        case "stop":
            host.signal(signal.SIGCONT)
        case "cut":
            fleet.links.restore(host.name)
        case "slow":
            fleet.links.slow(host.name, delay_ms=0, kilobits_per_s=1_000_000)


@pytest.mark.parametrize("fault", ["kill", "stop", "cut", "slow"])
def test_no_run_is_lost_or_executed_twice_when_a_host_fails(quick_fleet, fault):
    fleet = quick_fleet
    sessions, failed = new_sessions(fleet), fleet.hosts[0]
    places = fleet.places()
    lost = {each for each in sessions if places[each] == failed.id}
    assert 0 < len(lost) < SESSIONS
    with FleetLoad(fleet, sessions, clients=CLIENTS) as load:
        until_more_runs(load)
        fail(fleet, failed, fault)
        until(lambda: any(each.code == "CW-HOST-LOST" for each in load.samples))
        until_more_runs(load)  # of the other hosts
        until(lambda: fleet.status()[failed.id]["is_lost"])
        mend(fleet, failed, fault)
        until_more_runs(load)
    # A host that was called lost ends by itself, and with it the process that started it.
    assert failed.process is not None
    until(lambda: failed.process.poll() is not None)
    history = history_of(fleet, load.attempts)
    assert violations(history) == []
    assert set(history.files) == set(sessions) - lost
    told = {each.attempt.session for each in load.samples if each.code == "CW-HOST-LOST"}
    assert told <= lost


@pytest.mark.parametrize("fault", ["kill", "raylet", "gcs_server"])
def test_the_first_host_fails_and_starts_again_without_a_lost_session(fleet, fault):
    """As a whole, or one of Ray's processes: then the front takes no more requests, and ends."""
    sessions = new_sessions(fleet)
    with FleetLoad(fleet, sessions, clients=CLIENTS) as load:
        until_more_runs(load)
        if fault == "kill":
            fleet.front.kill()
        else:
            os.kill(fleet.front.pid_of(fault), signal.SIGKILL)
            assert fleet.front.process is not None
            assert fleet.front.process.stdout is not None
            assert fleet.front.process.wait(DEADLINE_S) == 125
            assert b'"CW-FLEET-NODE"' in fleet.front.process.stdout.readline()
            fleet.front.kill()
        fleet.front.close()
        fleet.start_front()
        until_more_runs(load)
    history = history_of(fleet, load.attempts)
    assert violations(history) == []
    assert set(history.files) == set(sessions)  # all of them live


def test_a_second_first_host_is_refused_and_the_fleet_goes_on(fleet):
    sessions = new_sessions(fleet)
    second = RunningFleet(fleet.folder / "second", fleet.database, fleet.links)
    with FleetLoad(fleet, sessions, clients=CLIENTS) as load:
        until_more_runs(load)
        second.front.launch("up", "--no-sandboxes", "--port", str(second.port))
        assert second.front.process is not None
        assert second.front.process.stdout is not None
        assert b'"CW-FLEET-SECOND"' in second.front.process.stdout.readline()
        second.front.kill()
        second.front.close()
        until_more_runs(load)
    history = history_of(fleet, load.attempts)
    assert violations(history) == []
    assert {each.fate for each in load.attempts} == {Fate.ACKNOWLEDGED}


def test_hosts_are_upgraded_one_after_the_other_without_a_failed_call():
    """Each drains, ends and joins again, while clients make sessions, run and delete them."""
    failures: list[str] = []
    with (
        chaotic_fleet(hosts=2) as fleet,
        ShortSessions(fleet, failures, clients=CLIENTS) as clients,
    ):
        until(lambda: clients.count > RUNS)
        for host in list(fleet.hosts):
            incarnation = fleet.status()[host.id]["incarnation"]
            fleet.front.cellwall("fleet", "drain", host.id, "--wait", "60")
            assert host.stop() == 0
            fleet.launch_again(host)
            host.wait_until_up()
            assert fleet.status()[host.id]["incarnation"] != incarnation
            before = clients.count
            until(lambda seen=before: clients.count > seen + RUNS)
    assert failures == []


def test_a_host_that_is_cut_off_ends_sessions_with_egress_by_itself(fleet):
    """Before the others call it lost; a session that reaches nothing outside goes on."""
    host = fleet.hosts[0]
    here = {"Cellwall-Host": host.id}
    commands = {"sleep 28.1": {"allow_domains": ["example.com"]}, "sleep 28.2": {}}
    with fleet.client() as client:
        made = {
            command: client.post("/v1/sessions", json=body, headers=here).json()["id"]
            for command, body in commands.items()
        }
    with ThreadPoolExecutor() as pool:
        for command, session in made.items():
            pool.submit(run_command, fleet, session, command)
        until(lambda: all(map(is_running, commands)))
        fleet.links.cut(host.name)
        until(lambda: not is_running("sleep 28.1"))
        assert is_running("sleep 28.2")  # the control
        fleet.links.restore(host.name)
        until(lambda: not is_running("sleep 28.2"))


def run_command(fleet: RunningFleet, session: str, command: str) -> None:
    with fleet.client() as client:
        client.post(f"/v1/sessions/{session}/commands", json={"command": command})


def is_running(command: str) -> bool:
    found = subprocess.run(["pgrep", "-xf", command], capture_output=True, check=False)
    return found.returncode == 0


def test_a_slow_link_loses_no_run_and_no_host(fleet):
    """Every request to this host crosses the link several times, as do its questions to the
    database: it is slow, and serves."""
    slow = fleet.hosts[0]
    sessions = new_sessions(fleet)
    places = fleet.places()
    with FleetLoad(fleet, sessions, clients=CLIENTS) as before:
        until_more_runs(before)
    fleet.links.slow(slow.name, delay_ms=SLOW_LINK_MS, kilobits_per_s=4000)
    with FleetLoad(fleet, sessions, clients=CLIENTS) as load:
        until(lambda: len(took_ms(load, places, slow)) >= RUNS)
        assert not fleet.status()[slow.id]["is_lost"]
    assert slow.process is not None
    assert slow.process.poll() is None
    attempts = before.attempts + load.attempts
    history = history_of(fleet, attempts)
    assert violations(history) == []
    assert {each.fate for each in attempts} == {Fate.ACKNOWLEDGED}
    assert set(history.files) == set(sessions)  # all of them live
    times = took_ms(load, places, slow)
    assert min(times) >= 2 * SLOW_LINK_MS  # the control
    others = [ms for host in fleet.hosts if host is not slow for ms in took_ms(load, places, host)]
    assert statistics.median(times) - statistics.median(others) < MOST_CROSSINGS * SLOW_LINK_MS
    # Runs elsewhere do not wait for the link: hardly one takes as long as the fastest that crosses.
    assert sum(ms < min(times) for ms in others) > 0.9 * len(others)


def took_ms(load: FleetLoad, places: Mapping[str, str], host: Machine) -> list[float]:
    """The time of each acknowledged run of one host."""
    return [
        each.took_ms
        for each in load.samples
        if each.attempt.fate is Fate.ACKNOWLEDGED and places[each.attempt.session] == host.id
    ]


def test_a_host_whose_disk_is_full_runs_nothing_without_a_record():
    with chaotic_fleet(hosts=1) as fleet:
        full = fleet.new_host()
        mount = ["mount", "-t", "tmpfs", "-o", "size=96m,mode=700", "tmpfs", str(full.home)]
        subprocess.run(mount, check=True)
        try:
            fleet.launch_again(full)
            full.wait_until_up()
            sessions = new_sessions(fleet)
            places = fleet.places()
            with FleetLoad(fleet, sessions, clients=CLIENTS) as load:
                until_more_runs(load)
                fill(full.home / "filler")
                until(lambda: any(each.code for each in load.samples))
                until_more_runs(load)  # of the other host
                (full.home / "filler").unlink()
                until_more_runs(load)
            history = history_of(fleet, load.attempts)
            assert violations(history) == []
            failed = {each.attempt.session for each in load.samples if each.code}
            assert {places[session] for session in failed} == {full.id}
        finally:
            full.kill()
            subprocess.run(["umount", "-l", str(full.home)], check=True)


def fill(file: Path) -> None:
    with pytest.raises(OSError, match="No space left"), open(file, "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(65536))


SKEWED_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (!failed && id == CLOCK_REALTIME) at->tv_sec += SKEW_S;
    return failed;
}
int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.mark.parametrize("skew_s", [-600, 600])
def test_a_host_with_a_wrong_clock_keeps_its_lease_and_loses_no_run(skew_s):
    with chaotic_fleet(hosts=1) as fleet:
        wrong = fleet.new_host()
        library = wrong.folder / "clock.so"
        words = ["cc", "-shared", "-fPIC", f"-DSKEW_S={skew_s}", "-x", "c", "-", "-o", str(library)]
        subprocess.run([*words, "-ldl"], input=SKEWED_CLOCK.encode(), check=True)
        wrong.environment["LD_PRELOAD"] = str(library)
        shown = subprocess.check_output(["date", "+%s"], env=wrong.environment)
        assert abs(int(shown) - time.time() - skew_s) < 60  # the control
        fleet.launch_again(wrong)
        wrong.wait_until_up()
        sessions = new_sessions(fleet)
        assert wrong.id in fleet.places().values()
        with FleetLoad(fleet, sessions, clients=CLIENTS) as load:
            until_more_runs(load, 3 * RUNS)
        assert {each.fate for each in load.attempts} == {Fate.ACKNOWLEDGED}
        assert violations(history_of(fleet, load.attempts)) == []
