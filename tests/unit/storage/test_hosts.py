"""The leases of hosts, by the clock of the database (SRV-6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from cellwall.core.hosts import SecondCoordinator
from cellwall.core.ids import new_id
from cellwall.storage.fleet_models import HostRow
from cellwall.storage.hosts import database_now
from cellwall.storage.services import LEASES_DECIDE_S
from cellwall.storage.store import Store, open_store
from databases import in_store
from unit.storage import records

pytestmark = pytest.mark.requirement("SRV-6")
FIRST, SECOND = new_id("inc"), new_id("inc")


def test_a_lease_is_renewed_by_its_incarnation_alone_until_the_host_is_lost(settings):
    async def go(store: Store) -> None:
        await store.join_host(FIRST, {"version": "1"}, rivals_s=60)
        assert await store.set_draining(store.service_id, is_draining=True)
        renewed = await store.renew_host(FIRST, {"version": "2"})
        assert renewed is not None
        assert renewed.is_draining
        await store.join_host(SECOND, {}, rivals_s=60)  # the process was started again
        assert await store.renew_host(FIRST, {}) is None
        (host,) = await store.list_hosts()
        assert (host.incarnation, host.is_draining, host.unseen_s < 60) == (SECOND, False, True)
        assert not await store.declare_lost(host, unseen_s=3600, answer="x")  # it has just renewed
        assert await store.declare_lost(host, unseen_s=-1, answer="x")
        assert not await store.declare_lost(host, unseen_s=-1, answer="x")  # another was first
        assert await store.renew_host(SECOND, {}) is None
        assert [each.is_lost for each in await store.list_hosts()] == [True]
        assert await store.remove_host(host.id)
        assert not await store.remove_host(host.id)
        assert not await store.set_draining(host.id, is_draining=True)

    in_store(settings, go)


def test_sessions_and_questions_of_a_lost_host_end_with_the_reason(settings):
    ann = records.user("ann")
    session, question = records.session(ann.id), records.approval(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        await store.join_host(FIRST, {}, rivals_s=60)
        assert await store.add_session(session, max_live=9)
        assert await store.add_approval(question)
        held = await store.find_holder("session", session.id)
        assert held is not None
        assert (held.service_id, held.is_ended, held.is_lost) == (store.service_id, False, False)
        (host,) = await store.list_hosts()
        assert await store.declare_lost(host, unseen_s=-1, answer="host-lost")
        held = await store.find_holder("session", session.id)
        assert held is not None
        assert (held.is_ended, held.is_lost) == (True, True)
        found = await store.find_session(session.id, user_id=ann.id, teams=frozenset())
        assert found is not None
        assert found.end_reason == "host-lost"
        asked = await store.find_holder("approval", question.id)
        assert asked is not None
        assert asked.is_ended
        assert await store.find_holder("session", new_id("sbx")) is None

    in_store(settings, go)


def test_a_host_that_leaves_is_forgotten_and_one_that_is_lost_is_kept(settings):
    async def go(store: Store) -> None:
        await store.join_host(FIRST, {}, rivals_s=60)
        await store.leave_host(SECOND)
        assert len(await store.list_hosts()) == 1
        await store.leave_host(FIRST)
        assert await store.list_hosts() == ()

    in_store(settings, go)


def test_hosts_of_one_coordinator_alone_join_until_theirs_are_lost(settings):
    async def go(store: Store) -> None:
        await store.join_host(FIRST, {"coordinator": "svc_a"}, rivals_s=60)
        async with store._database.write() as connection:  # it is another host's
            await connection.execute(update(HostRow).values(id="svc_elsewhere"))
        with pytest.raises(SecondCoordinator):
            await store.join_host(SECOND, {"coordinator": "svc_b"}, rivals_s=60)
        await store.join_host(SECOND, {"coordinator": "svc_a"}, rivals_s=60)  # the control
        assert len(await store.list_hosts()) == 2
        await store.join_host(SECOND, {"coordinator": "svc_b"}, rivals_s=-1)  # all are unseen

    in_store(settings, go)


def test_the_place_of_a_session_and_the_lease_of_a_host_are_read_together(settings):
    ann = records.user("ann")
    session = records.session(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        assert await store.session_placement(session.id, host_id=store.service_id) is None
        assert await store.add_session(session, max_live=9)
        found = await store.session_placement(session.id, host_id=store.service_id)
        assert found is not None
        assert (found.owner_id, found.holder_id) == (ann.id, store.service_id)
        assert (found.is_ended, found.host) == (False, None)
        await store.join_host(FIRST, {}, rivals_s=60)
        assert await store.end_session(session.id, now_s=records.NOW_S)
        found = await store.session_placement(session.id, host_id=store.service_id)
        assert found is not None
        assert found.host is not None
        assert (found.is_ended, found.host.incarnation, found.host.is_lost) == (True, FIRST, False)
        assert found.host.unseen_s < 60

    in_store(settings, go)


def test_a_lost_session_is_taken_over_once_and_its_old_host_cannot_end_it(settings):
    ann = records.user("ann")
    session = records.session(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        assert await store.add_session(session, max_live=9)
        own: Any = {"owner_id": ann.id, "max_live": 1}
        assert not await store.take_over_session(session.id, **own)  # its host is there
        await store.lose_session(session.id, now_s=records.NOW_S)
        held = await store.find_holder("session", session.id)
        assert held is not None
        assert held.is_lost
        Path(settings.home, "service-id").unlink()
        async with open_store(settings) as other:
            assert other.service_id != store.service_id
            another = records.session(ann.id)
            assert await store.add_session(another, max_live=1)
            assert not await other.take_over_session(session.id, **own)  # the owner has one
            assert await store.end_session(another.id, now_s=records.NOW_S)
            assert await other.take_over_session(session.id, **own)
            assert not await store.take_over_session(session.id, **own)  # of two, one
            assert not await store.end_session(session.id, now_s=records.NOW_S)
            held = await store.find_holder("session", session.id)
            assert held is not None
            assert (held.service_id, held.is_ended, held.is_lost) == (
                other.service_id,
                False,
                False,
            )
            assert await other.end_session(session.id, now_s=records.NOW_S)

    in_store(settings, go)


def test_another_service_does_not_end_what_the_lease_of_a_host_decides(settings):
    """By its own clock, which may be wrong, and without the reason that the owner needs."""
    ann = records.user("ann")
    session, question = records.session(ann.id), records.approval(ann.id)
    unseen = {"unseen_since_s": records.NOW_S, "answer": "x", "now_s": records.NOW_S}

    async def go(store: Store) -> None:
        await store.add_user(ann)
        await store.join_host(FIRST, {}, rivals_s=60)
        assert await store.add_session(session, max_live=9)
        assert await store.add_approval(question)
        assert await store.end_for_unseen_services(**unseen) == 0
        (host,) = await store.list_hosts()
        assert await store.declare_lost(host, unseen_s=-1, answer="host-lost")
        held = await store.find_holder("session", session.id)
        assert held is not None
        assert held.is_lost
        assert await store.remove_host(host.id)
        later = records.session(ann.id)
        assert await store.add_session(later, max_live=9)
        assert await store.end_for_unseen_services(**unseen) == 1  # the control: no host of a fleet
        held = await store.find_holder("session", later.id)
        assert held is not None
        assert (held.is_ended, held.is_lost) == (True, False)
        await store.join_host(SECOND, {}, rivals_s=60)
        last = records.session(ann.id)
        assert await store.add_session(last, max_live=9)
        async with store._database.write() as connection:
            old_s = await database_now(connection) - LEASES_DECIDE_S - 60
            await connection.execute(update(HostRow).values(seen_s=old_s))
        assert await store.end_for_unseen_services(**unseen) == 1  # nobody calls this one lost

    in_store(settings, go)


def test_a_host_that_starts_again_loses_its_live_sessions_alone(settings):
    ann = records.user("ann")
    live, ended = records.session(ann.id), records.session(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        for each in (live, ended):
            assert await store.add_session(each, max_live=9)
        assert await store.end_session(ended.id, now_s=records.NOW_S)
        assert await store.lose_all_sessions(now_s=records.NOW_S) == 1
        for each, is_lost in ((live, True), (ended, False)):
            held = await store.find_holder("session", each.id)
            assert held is not None
            assert (held.is_ended, held.is_lost) == (True, is_lost)

    in_store(settings, go)


def test_the_key_of_a_run_is_new_once_in_a_session_and_goes_with_it(settings):
    ann = records.user("ann")
    session, second = records.session(ann.id), records.session(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        for each in (session, second):
            assert await store.add_session(each, max_live=9)
        assert await store.add_run_key(session.id, b"k" * 32)
        assert not await store.add_run_key(session.id, b"k" * 32)
        assert await store.add_run_key(second.id, b"k" * 32)
        assert await store.add_run_key(session.id, b"l" * 32)
        assert await store.end_session(session.id, now_s=1.0)
        assert await store.forget_sessions(ended_before_s=2.0) == 1

    in_store(settings, go)
