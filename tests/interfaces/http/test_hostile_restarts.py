"""Attacks on sessions that start again: a lost host that comes back, an erased session, old copies.

Every attack is made beside the same step of a session that may do it.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from sqlalchemy import insert, text

from cellwall.audit.retention import hold, release
from cellwall.core.ids import new_id
from cellwall.interfaces.http.fleet_host import FleetHost
from cellwall.interfaces.http.housekeeping import Housekeeping
from cellwall.interfaces.sdk.local_host import LocalHost
from cellwall.runtime.home import local_principal
from cellwall.runtime.recording import audit_directory
from cellwall.storage.engine import StorageSettings, blocking_engine
from cellwall.storage.fleet_models import HostRow
from cellwall.storage.hosts import database_now
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store, open_store
from interfaces.http.running_service import (
    DEADLINE_S,
    ROOT,
    RunningService,
    new_session,
    running_service,
)
from interfaces.http.test_restarts import code_of
from unit.storage import records

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-6", "FS-5")]


def shared_folder(tmp_path: Path) -> tuple[Path, str]:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    return shared, f'key_file = "{tmp_path}/accounts.key"\n[fleet]\nsnapshots = "{shared}"\n'


def change(home: Path, session: str, **values: object) -> None:
    engine = blocking_engine(StorageSettings(home=str(home)))
    fields = ", ".join(f"{name} = :{name}" for name in values)
    with engine.begin() as connection:
        statement = text(f"UPDATE sessions SET {fields} WHERE id = :id")
        assert connection.execute(statement, {"id": session, **values}).rowcount == 1
    engine.dispose()


def row_of(home: Path, session: str) -> tuple[str, bool, str]:
    """Who has it, whether it has ended, and why."""
    engine = blocking_engine(StorageSettings(home=str(home)))
    query = text("SELECT service_id, ended_s IS NOT NULL, end_reason FROM sessions WHERE id = :id")
    with engine.connect() as connection:
        holder, is_ended, reason = connection.execute(query, {"id": session}).one()
    engine.dispose()
    return str(holder), bool(is_ended), str(reason)


def housekeeping(service: RunningService) -> Housekeeping:
    return Housekeeping(
        app=service.app,
        accounts=service.accounts,
        sessions=service.store,
        tls=None,
        context=None,
        every_s=1,
    )


def test_a_host_that_comes_back_does_not_touch_the_snapshot_of_the_new_host(tmp_path):
    shared, config = shared_folder(tmp_path)
    with running_service(tmp_path, config=config) as service, service.client("owner") as client:
        moved, own = (new_session(client, restart_from_snapshot=True) for _ in range(2))
        archives = {each: shared / f"{each}.snapshot" for each in (moved, own)}
        for each in archives:
            assert client.post(f"/v1/sessions/{each}/snapshots", json={}).status_code == 201
        before = {each: archive.read_bytes() for each, archive in archives.items()}
        other = new_id("svc")
        change(tmp_path, moved, service_id=other)  # as by the host that has taken it over
        late = client.post(f"/v1/sessions/{moved}/snapshots", json={})
        assert (late.status_code, code_of(late)) == (410, "CW-HOST-LOST")
        assert archives[moved].read_bytes() == before[moved]
        assert client.post(f"/v1/sessions/{own}/snapshots", json={}).status_code == 201
        assert archives[own].read_bytes() != before[own]  # the control
        for each in archives:
            assert client.delete(f"/v1/sessions/{each}").status_code == 204
        assert archives[moved].read_bytes() == before[moved]
        assert row_of(tmp_path, moved) == (other, False, "")
        assert not archives[own].exists()  # the control
        assert sorted(each.name for each in shared.iterdir()) == [archives[moved].name]


def test_a_session_that_a_cut_off_host_has_ended_starts_again(tmp_path):
    """Also where that host was never declared lost: its session did not end by its owner."""
    _, config = shared_folder(tmp_path)
    with running_service(tmp_path, config=config) as service, service.client("owner") as client:
        asked, plain = new_session(client, restart_from_snapshot=True), new_session(client)
        client.put(f"/v1/sessions/{asked}/files/a.txt", content=b"kept")
        assert client.post(f"/v1/sessions/{asked}/snapshots", json={}).status_code == 201
        sandboxes = service.api.state.service.sandboxes
        for each in sandboxes.all():
            service.call(sandboxes.end(each, is_fenced=True))
        answer = client.get(f"/v1/sessions/{plain}/files/a.txt")
        assert (answer.status_code, code_of(answer)) == (410, "CW-HOST-LOST")
        answer = client.get(f"/v1/sessions/{asked}/files/a.txt")
        assert (answer.status_code, code_of(answer)) == (409, "CW-SESSION-RESTARTED")
        assert client.get(f"/v1/sessions/{asked}/files/a.txt").content == b"kept"


def test_a_session_starts_again_only_on_a_host_that_it_has_asked_for(tmp_path):
    """A region, or the hosts of a tenant: its files must not come to another host."""
    _, config = shared_folder(tmp_path)
    asked = {"Cellwall-Labels": "region=eu"}
    labels: dict[str, str] = {"region": "eu"}
    with (
        running_service(tmp_path, config=config, labels=labels) as service,
        service.client("owner", headers=asked) as client,
    ):
        session = new_session(client, restart_from_snapshot=True)
        path = f"/v1/sessions/{session}/files/a.txt"
        assert client.post(f"/v1/sessions/{session}/snapshots", json={}).status_code == 201
        held = service.call(service.store.find_holder("session", session))
        assert held is not None
        assert held.labels == labels  # by which a front chooses the next host
        sandboxes = service.api.state.service.sandboxes
        for each in sandboxes.all():
            service.call(sandboxes.end(each, is_fenced=True))
        for others in ({}, {"region": "us"}, {"region": "eu", "tenant": new_id("team")}):
            labels.clear()
            labels.update(others)
            assert code_of(client.get(path)) == "CW-FLEET-FULL"
            assert row_of(tmp_path, session)[1:] == (True, "host-lost")
        labels.clear()
        labels.update({"region": "eu", "rack": "7"})
        assert code_of(client.get(path)) == "CW-SESSION-RESTARTED"  # the control


@pytest.mark.requirement("RBAC-1")
def test_a_token_that_may_create_no_sandbox_starts_none_again(tmp_path):
    _, config = shared_folder(tmp_path)
    with running_service(tmp_path, config=config) as service, service.client("owner") as client:
        session = new_session(client, restart_from_snapshot=True)
        path = f"/v1/sessions/{session}/files/a.txt"
        client.put(path, content=b"kept")
        assert client.post(f"/v1/sessions/{session}/snapshots", json={}).status_code == 201
        sandboxes = service.api.state.service.sandboxes
        (lost,) = sandboxes.all()
        service.call(sandboxes.end(lost, is_fenced=True))
        service.tokens["files"], _ = service.call(
            service.accounts.directory.create_token(
                service.ids["owner"],
                name="files",
                scopes=("files:read", "files:write"),
                lives_s=3600,
                by=ROOT,
            )
        )
        with service.client("files") as narrow:
            for answer in (narrow.post("/v1/sessions", json={}), narrow.get(path)):
                assert (answer.status_code, code_of(answer)) == (403, "CW-ROLE")
            assert sandboxes.all() == ()
            assert code_of(client.get(path)) == "CW-SESSION-RESTARTED"  # the control
            assert narrow.get(path).content == b"kept"


def test_sessions_that_start_again_count_against_their_owner_and_start_once(tmp_path):
    _, config = shared_folder(tmp_path)
    with (
        running_service(tmp_path, config=config, max_sessions_per_user=1) as service,
        service.client("owner") as client,
    ):
        session = new_session(client, restart_from_snapshot=True)
        path = f"/v1/sessions/{session}/files/a.txt"
        assert client.post(f"/v1/sessions/{session}/snapshots", json={}).status_code == 201
        sandboxes = service.api.state.service.sandboxes
        (lost,) = sandboxes.all()
        service.call(sandboxes.end(lost, is_fenced=True))
        another = records.session(service.ids["owner"])
        assert service.call(service.store.add_session(another, max_live=1))
        change(tmp_path, another.id, service_id=new_id("svc"))  # on another host
        assert code_of(client.get(path)) == "CW-TOO-MANY-SESSIONS"
        assert row_of(tmp_path, session)[1:] == (True, "host-lost")
        change(tmp_path, another.id, ended_s=1.0)
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: client.get(path), range(4)))
        codes = sorted(map(code_of, answers))
        assert codes.count("CW-SESSION-RESTARTED") == 1
        # The others came while it started, or once it was there.
        assert set(codes) <= {
            "CW-SESSION-RESTARTED",
            "CW-BUSY",
            "CW-TOO-MANY-SESSIONS",
            "CW-NO-SUCH-FILE",
        }, [each.text for each in answers]
        assert len(sandboxes.all()) == 1


def test_a_request_that_comes_while_its_session_starts_again_is_told_to_wait(tmp_path, monkeypatch):
    """It is neither unknown nor there: between the take-over and the new sandbox."""
    _, config = shared_folder(tmp_path)
    reached, goes_on = threading.Event(), threading.Event()
    with running_service(tmp_path, config=config) as service, service.client("owner") as client:
        session = new_session(client, restart_from_snapshot=True)
        path = f"/v1/sessions/{session}/files/a.txt"
        client.put(path, content=b"kept")
        assert client.post(f"/v1/sessions/{session}/snapshots", json={}).status_code == 201
        sandboxes = service.api.state.service.sandboxes
        (lost,) = sandboxes.all()
        service.call(sandboxes.end(lost, is_fenced=True))
        original = LocalHost.create

        async def create(*args, **more):
            reached.set()
            await anyio.to_thread.run_sync(goes_on.wait, DEADLINE_S)
            return await original(*args, **more)

        monkeypatch.setattr(LocalHost, "create", create)
        with ThreadPoolExecutor(1) as thread:
            try:
                first = thread.submit(client.get, path)
                assert reached.wait(DEADLINE_S)
                answer = client.get(path)
                unknown = client.get(path.replace(session, new_id("sbx")))
            finally:
                goes_on.set()
            assert code_of(first.result(DEADLINE_S)) == "CW-SESSION-RESTARTED"
        assert (answer.status_code, code_of(answer)) == (503, "CW-BUSY")
        assert code_of(unknown) == "CW-NOT-FOUND"  # the control
        assert client.get(path).content == b"kept"
        assert not sandboxes._restarting  # nothing is remembered of it
        (again,) = sandboxes.all()
        service.call(sandboxes.end(again))
        assert code_of(client.get(path)) == "CW-NOT-FOUND"  # ended by its owner, it stays so


def test_an_erased_session_leaves_no_snapshot_in_the_shared_folder(tmp_path):
    shared, config = shared_folder(tmp_path)
    with running_service(tmp_path, config=config) as service, service.client("owner") as client:
        tokens = dict(service.tokens)
        erased, kept = (new_session(client, restart_from_snapshot=True) for _ in range(2))
        for each in (erased, kept):
            assert client.post(f"/v1/sessions/{each}/snapshots", json={}).status_code == 201
    assert len(list(shared.iterdir())) == 2  # a host that stops may be a host that was lost
    draft = shared / f"{erased}.snapshot.{'0' * 16}"
    draft.write_bytes(b"of a process that was killed")
    with running_service(tmp_path, config=config, may_exist=True) as service:
        service.tokens = tokens
        with service.client("owner") as client:
            assert client.delete(f"/v1/sessions/{erased}?erase=true").status_code == 204
    assert [each.name for each in shared.iterdir()] == [f"{kept}.snapshot"]  # and the control


def test_old_snapshots_of_the_shared_folder_are_removed_on_time_and_not_under_a_hold(tmp_path):
    shared, config = shared_folder(tmp_path)
    new, old = shared / f"{new_id('sbx')}.snapshot", shared / f"{new_id('sbx')}.snapshot"
    with running_service(tmp_path, config=config) as service:
        for each in (new, old):
            each.write_bytes(b"x")
        long_ago_s = time.time() - (service.app.settings.snapshots.keep_days + 1) * 86_400
        os.utime(old, (long_ago_s, long_ago_s))
        who, records_folder = local_principal("cli"), audit_directory(str(tmp_path))
        hold(records_folder, "case-1", "a lawsuit", service.app.audit.write, who)
        service.call(housekeeping(service).run_once())
        assert old.exists()
        assert release(records_folder, "case-1", service.app.audit.write, who)
        service.call(housekeeping(service).run_once())
        assert [each.name for each in shared.iterdir()] == [new.name]


def test_a_host_whose_process_was_killed_says_that_its_sessions_are_lost(tmp_path, monkeypatch):
    """It may start again within its lease, before a front has noticed anything."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("CELLWALL_HOME", str(tmp_path))
    settings = StorageSettings(home=str(tmp_path))
    migrate(settings)
    ann, other = records.user("ann"), new_id("svc")
    lived, ended, elsewhere = (records.session(ann.id) for _ in range(3))
    options = {"config": None, "profile": None, "home": str(tmp_path), "labels": {}}

    async def store_rows(store: Store) -> None:
        await store.add_user(ann)
        for each in (lived, ended, elsewhere):
            assert await store.add_session(each, max_live=9)
        async with store._database.write() as connection:  # of another host, which has a lease
            values = {"id": other, "incarnation": new_id("inc"), "about": {}, "is_draining": False}
            now_s = await database_now(connection)
            await connection.execute(insert(HostRow).values(**values, seen_s=now_s, lost_s=None))
        assert await store.end_session(ended.id, now_s=records.NOW_S)

    async def go() -> None:
        async with open_store(settings) as store:
            await store_rows(store)
        change(tmp_path, elsewhere.id, service_id=other)
        host = FleetHost({**options, "incarnation": new_id("inc"), "coordinator": ""}, peers=None)  # type: ignore[arg-type]  # none is asked
        await host.start()
        try:
            assert row_of(tmp_path, lived.id)[1:] == (True, "host-lost")
            assert row_of(tmp_path, ended.id)[1:] == (True, "")
            assert row_of(tmp_path, elsewhere.id) == (other, False, "")
        finally:
            await host.close()

    anyio.run(go)
