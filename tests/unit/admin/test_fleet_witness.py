"""The logs of all hosts form one whole: a truncated, rewritten, forked or dropped one is named
(AUD-2, SRV-6).

The attacker here has a whole host: its log, the keys of the log and of the host, its memory, and the
database that all hosts write. The witnesses are hosts that the attacker does not have.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import delete

from cellwall.admin.fleet_verify import HostLogReport, judge, read_database
from cellwall.admin.fleet_witness import LogWitness, WitnessMemory, witnesses_of
from cellwall.audit.files import LOCK_TIMEOUT_S
from cellwall.audit.log import AuditLog
from cellwall.core.errors import AuditFailed
from cellwall.core.host_trust import HostLog, StoredCertificate
from cellwall.core.hosts import HostRecord
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event, EventKind
from cellwall.fleet.certificates import open_authority
from cellwall.fleet.enrolment import public_keys
from cellwall.fleet.identity import HostKeys, open_host_keys
from cellwall.storage.fleet_models import HostLogRow, WitnessedCheckpointRow
from cellwall.storage.store import Store
from databases import in_store

pytestmark = [pytest.mark.requirement("AUD-2"), pytest.mark.requirement("SRV-6")]


class SharedStore(Store):
    """One database, as each of the hosts sees it."""

    hosts: tuple[str, ...] = ()

    async def list_hosts(self):
        return tuple(
            HostRecord(
                id=each, incarnation="", about={}, unseen_s=0, is_draining=False, is_lost=False
            )
            for each in self.hosts
        )


@dataclass
class Host:
    folder: Path
    keys: HostKeys
    authority: str
    audit: AuditLog | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def directory(self) -> str:
        return str(self.home / "audit")

    def start(self) -> LogWitness:
        self.audit = AuditLog.open(self.directory)
        return LogWitness(str(self.home), self.directory, self.keys, self.authority, self.audit)

    def stop(self) -> None:
        if self.audit is not None:
            self.audit.close()
            self.audit = None

    def write(self, count: int, text: str = "x") -> None:
        assert self.audit is not None
        for number in range(count):
            self.audit.write(Event(EventKind.CONFIG, "", "ann", "cli", {"n": f"{text} {number}"}))
        self.audit.notary.sign_now(timeout_s=LOCK_TIMEOUT_S)


class World:
    """Three hosts and one database."""

    def __init__(self, folder: Path, store: Store) -> None:
        (folder / "first").mkdir()
        self.authority = open_authority(str(folder / "first"), creates=True)
        self.hosts = []
        for name in ("a", "b", "c"):
            (home := folder / name / "home").mkdir(parents=True)
            keys = open_host_keys(str(home), new_id("svc"))
            self.hosts.append(Host(folder / name, keys, self.authority.pem))
        self.store = store
        store.__class__ = SharedStore
        store.hosts = tuple(each.keys.host_id for each in self.hosts)

    async def enrol(self) -> None:
        for each in self.hosts:
            pem = self.authority.issue(
                each.keys.tls.public_key(),
                host_id=each.keys.host_id,
                address="127.0.0.9",
                identity=each.keys.signing.public,
                box_key=each.keys.box_public,
            )
            stored = StoredCertificate(each.keys.host_id, pem, is_revoked=False)
            kept = public_keys(each.keys.signing.public, each.keys.box_public)
            assert await self.store.keep_certificate(stored, public_keys=kept)

    async def round(self, *hosts: Host) -> list[tuple[str, str]]:
        """Each host offers, and then each countersigns; the faults that were found."""
        found = []
        for each in hosts:
            await self.witness(each).offer(self.store)
        for each in hosts:
            faults = await self.witness(each).countersign(self.store)
            found += [(log.host_id, text) for log, text in faults]
        return found

    def witness(self, host: Host) -> LogWitness:
        assert host.audit is not None
        return LogWitness(str(host.home), host.directory, host.keys, host.authority, host.audit)

    async def verify(self, by: Host) -> dict[str, HostLogReport]:
        found = await read_database(self.store, self.authority.pem)
        memory = WitnessMemory(str(by.home))
        reports = judge(found, memory, [by.directory], own_id=by.keys.host_id)
        reports.sort(key=lambda each: bool(each.problem))  # a host may have several logs
        return {each.host_id: each for each in reports}

    async def forget(self, host: Host, *, after: int) -> None:
        """The attacker removes what the database and the host know of its later checkpoints."""
        shutil.rmtree(host.home / "fleet" / "witnessed", ignore_errors=True)
        row = WitnessedCheckpointRow
        async with self.store._database.write() as connection:
            own = row.witness_id == host.keys.host_id, row.size > after
            await connection.execute(delete(row).where(*own))


def in_world(settings: object, folder: Path, function: Callable[[World], Awaitable[None]]) -> None:
    async def go(store: Store) -> None:
        world = World(folder, store)
        await world.enrol()
        for each in world.hosts:
            each.start()
            each.write(3)
        try:
            assert await world.round(*world.hosts) == []
            await function(world)
        finally:
            for each in world.hosts:
                each.stop()

    in_store(settings, go)


@pytest.mark.slow
def test_honest_logs_are_whole_and_each_is_countersigned_by_others(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        for count in (1, 7, 20):
            for each in world.hosts:
                each.write(count)
            assert await world.round(*world.hosts) == []
        for by in world.hosts:
            reports = await world.verify(by)
            assert len(reports) == 3
            for each in reports.values():
                assert (each.problem, each.witnessed) == ("", each.size)
                assert each.is_read == (each.host_id == by.keys.host_id)
        for each in world.hosts:
            assert await world.witness(each).offer(world.store) is None  # nothing new

    in_world(sqlite_settings, tmp_path, go)


async def rolled_back(world: World) -> tuple[Host, Host, int]:
    """An older copy of the first host's log is in its place; the others have seen more of it."""
    first, second, _ = world.hosts
    first.stop()
    shutil.copytree(first.home, first.folder / "copy")
    before = (await world.verify(second))[first.keys.host_id].size
    first.start()
    first.write(5, "true")
    assert await world.round(*world.hosts) == []
    first.stop()
    witnessed = first.home / "fleet" / "witnessed"
    shutil.move(witnessed, first.folder / "kept")
    shutil.rmtree(first.home)
    shutil.copytree(first.folder / "copy", first.home)
    shutil.rmtree(witnessed)
    shutil.move(first.folder / "kept", witnessed)
    return first, second, before


@pytest.mark.slow
def test_a_host_whose_log_was_truncated_finds_out_and_is_named(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        first, second, _ = await rolled_back(world)
        own = await world.verify(first)
        assert "is missing, but a checkpoint" in own[first.keys.host_id].problem
        assert (await world.verify(second))[first.keys.host_id].problem == ""  # not shown yet
        witness = first.start()
        with pytest.raises(AuditFailed) as caught:
            await witness.start(world.store)
        assert caught.value.code == "CW-AUDIT-ROLLED-BACK"

    in_world(sqlite_settings, tmp_path, go)


@pytest.mark.slow
def test_a_host_that_rewrites_its_log_and_the_database_is_named_by_its_witness(
    sqlite_settings, tmp_path
):
    async def go(world: World) -> None:
        first, second, before = await rolled_back(world)
        await world.forget(first, after=before)
        first.start()
        first.write(9, "another")  # longer than what was witnessed
        await world.witness(first).offer(world.store)  # with its keys, and a sound proof
        faults = await world.witness(second).countersign(world.store)
        ((named, fault),) = [(log.host_id, text) for log, text in faults]
        assert named == first.keys.host_id
        assert "no proof leads from" in fault or "rolled back" in fault
        reports = await world.verify(second)
        assert "rewritten" in reports[first.keys.host_id].problem
        assert all(not each.problem for each in reports.values() if each.host_id != named)
        assert second.audit is not None
        written = Path(second.directory).glob("*.jsonl")
        assert any(named.encode() in each.read_bytes() for each in written)

    in_world(sqlite_settings, tmp_path, go)


@pytest.mark.slow
def test_a_fork_of_the_same_size_is_found(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        first, second, before = await rolled_back(world)
        await world.forget(first, after=before)
        first.start()
        first.write(5, "other")  # as many as were witnessed
        await world.witness(first).offer(world.store)
        faults = await world.witness(second).countersign(world.store)
        assert [text for _, text in faults if "forked" in text]
        assert "forked" in (await world.verify(second))[first.keys.host_id].problem

    in_world(sqlite_settings, tmp_path, go)


@pytest.mark.slow
def test_a_log_that_was_dropped_from_the_database_or_replaced_is_named(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        first, second, _ = world.hosts
        first.stop()
        await world.forget(first, after=-1)
        gone = (await world.verify(second))[first.keys.host_id]
        assert "rolled back" in gone.problem
        async with world.store._database.write() as connection:
            dropped = delete(HostLogRow).where(HostLogRow.host_id == first.keys.host_id)
            await connection.execute(dropped)
        assert "gone" in (await world.verify(second))[first.keys.host_id].problem
        shutil.rmtree(first.directory)
        first.start()
        first.write(30)
        await world.witness(first).offer(world.store)
        reports = await world.verify(second)
        assert reports[first.keys.host_id].problem
        assert not reports[second.keys.host_id].problem

    in_world(sqlite_settings, tmp_path, go)


def test_a_host_cannot_offer_checkpoints_in_the_name_of_another(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        first, second, third = world.hosts
        (log,) = [
            each
            for each in await world.store.list_host_logs()
            if each.host_id == first.keys.host_id
        ]
        stolen = HostLog(origin=log.origin, host_id=second.keys.host_id, statement=log.statement)
        assert not await world.store.add_host_log(stolen)
        async with world.store._database.write() as connection:
            row = HostLogRow
            await connection.execute(delete(row).where(row.origin == log.origin))
        assert await world.store.add_host_log(stolen)
        faults = await world.witness(third).countersign(world.store)
        assert [named.host_id for named, _ in faults] == [second.keys.host_id]
        assert (await world.verify(third))[second.keys.host_id].problem

    in_world(sqlite_settings, tmp_path, go)


@pytest.mark.slow
def test_made_up_hosts_do_not_take_the_places_of_witnesses(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        made_up = tuple(new_id("svc") for _ in range(64))
        world.store.hosts = (*world.store.hosts, *made_up)
        for _ in range(2):
            for each in world.hosts:
                each.write(2)
            assert await world.round(*world.hosts) == []
        reports = await world.verify(world.hosts[0])
        for each in world.hosts:
            report = reports[each.keys.host_id]
            assert (report.problem, report.witnessed) == ("", report.size)

    in_world(sqlite_settings, tmp_path, go)


@pytest.mark.slow
def test_a_log_that_nobody_countersigns_is_named(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        first, second, _ = world.hosts
        row = WitnessedCheckpointRow
        async with world.store._database.write() as connection:
            await connection.execute(delete(row).where(row.witness_id != first.keys.host_id))
        for each in world.hosts[1:]:
            shutil.rmtree(each.home / "fleet" / "witnessed")
        for _ in range(5):
            first.write(1)
            await world.witness(first).offer(world.store)
        problem = (await world.verify(second))[first.keys.host_id].problem
        assert problem == "no other host has countersigned it"

    in_world(sqlite_settings, tmp_path, go)


def test_witnesses_are_other_hosts_and_the_same_for_everybody():
    log = HostLog(origin="cellwall/audit/1", host_id="svc_1", statement="")
    live = [f"svc_{number}" for number in range(9)]
    chosen = witnesses_of(log, live)
    assert len(chosen) == 2
    assert log.host_id not in chosen
    assert witnesses_of(log, live[::-1]) == chosen
    assert witnesses_of(log, ["svc_1"]) == frozenset()
