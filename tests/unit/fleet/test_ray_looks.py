"""A front notices a lost host though Ray's control store or a transaction hangs (SRV-6)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.core.errors import Busy, CellwallError
from cellwall.core.hosts import HostRecord
from cellwall.fleet.open_calls import HostGone
from cellwall.fleet.request_bodies import RequestBodies

pytestmark = pytest.mark.requirement("SRV-6")
pytest.importorskip("ray", reason="Ray (extra fleet, Python 3.11 to 3.13)")
from ray.exceptions import RayError  # noqa: E402  # Ray is there

from cellwall.fleet import ray as engine  # noqa: E402  # as above
from cellwall.fleet.ray_peers import actor_name  # noqa: E402  # as above

LOST_AFTER_S = 4.0
FIRST = HostRecord(
    id="svc_1", incarnation="inc_1", about={}, unseen_s=0.1, is_draining=False, is_lost=False
)
SECOND = replace(FIRST, id="svc_2", incarnation="inc_2")
LATE = replace(FIRST, unseen_s=LOST_AFTER_S + 0.1)


class Records:
    """The hosts of a database whose transactions a test can hold up."""

    service_id = "svc_0"

    def __init__(self, *records: HostRecord) -> None:
        self.records = records
        self.declared: list[str] = []
        self.free = asyncio.Event()

    async def list_hosts(self) -> tuple[HostRecord, ...]:
        return self.records

    async def declare_lost(self, host: HostRecord, *, unseen_s: float, answer: str) -> bool:
        del unseen_s, answer
        self.declared.append(host.id)
        await self.free.wait()
        return True


def fleet_over(records: Records) -> engine.RayFleet:
    bodies = RequestBodies(max_bytes=1, max_total_bytes=1)
    return engine.RayFleet(records, coordinator="", lost_after_s=LOST_AFTER_S, bodies=bodies)


def names(*records: HostRecord) -> frozenset[str]:
    return frozenset(actor_name(each.id, each.incarnation) for each in records)


async def call(fleet: engine.RayFleet, host_id: str) -> bool:
    """Whether a call that nobody answers was ended since its host is lost."""
    try:
        async with fleet._calls.breakable(host_id):
            await asyncio.sleep(60)
    except HostGone:
        return True
    return False


def run(test: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_late_host_is_lost_though_the_control_store_of_ray_hangs(monkeypatch):
    hung = threading.Event()

    def hang() -> frozenset[str]:
        hung.wait(30)
        return frozenset()

    async def go() -> None:
        records = Records(LATE, SECOND)
        fleet = fleet_over(records)
        waiting = asyncio.ensure_future(call(fleet, FIRST.id))
        await asyncio.sleep(0)
        monkeypatch.setattr(engine, "named_actors", hang)
        await fleet.look()
        assert await waiting
        assert await fleet.lost() == (FIRST.id,)
        await fleet.look()  # asks nothing again meanwhile
        hung.set()

    run(go)


def test_a_host_that_was_gone_stays_so_while_ray_does_not_answer(monkeypatch):
    hung = threading.Event()

    async def go() -> None:
        fleet = fleet_over(Records(FIRST, SECOND))
        monkeypatch.setattr(engine, "named_actors", lambda: names(SECOND))
        await fleet.look()
        assert await fleet.lost() == (FIRST.id,)
        monkeypatch.setattr(engine, "named_actors", lambda: hung.wait(30))
        await fleet.look()
        assert await fleet.lost() == (FIRST.id,)
        hung.set()

    run(go)


def test_the_other_hosts_are_looked_at_while_the_loss_of_one_waits_for_a_lock(monkeypatch):
    async def go() -> None:
        records = Records(LATE, SECOND)
        fleet = fleet_over(records)
        monkeypatch.setattr(engine, "named_actors", lambda: names(FIRST, SECOND))
        await fleet.look()
        await asyncio.sleep(0)
        assert records.declared == [FIRST.id]
        records.records = (LATE, replace(SECOND, unseen_s=LOST_AFTER_S + 1))
        await fleet.look()
        assert await fleet.lost() == (FIRST.id, SECOND.id)
        await asyncio.sleep(0)
        assert records.declared == [FIRST.id, SECOND.id]  # each once
        records.free.set()

    run(go)


def test_a_host_with_a_lease_and_a_process_is_there(monkeypatch):
    """The control: none of the above is lost without a reason."""

    async def go() -> None:
        fleet = fleet_over(Records(replace(FIRST, unseen_s=LOST_AFTER_S - 0.1), SECOND))
        monkeypatch.setattr(engine, "named_actors", lambda: names(FIRST, SECOND))
        waiting = asyncio.ensure_future(call(fleet, FIRST.id))
        await fleet.look()
        assert await fleet.lost() == ()
        assert not waiting.done()
        waiting.cancel()

    run(go)


def test_requests_do_not_wait_without_end_for_the_control_store(monkeypatch):
    free, asked = threading.Event(), list[str]()

    def hang(name: str) -> object:
        asked.append(name)
        free.wait(30)
        return "a handle"

    monkeypatch.setattr(engine, "_HANDLE_WITHIN_S", 0.05)
    monkeypatch.setattr(engine.ray, "get_actor", hang)
    monkeypatch.setattr(engine, "named_actors", lambda: names(FIRST))

    async def go() -> None:
        fleet = fleet_over(Records(FIRST))
        await fleet.look()
        waiting = [asyncio.ensure_future(fleet._actor(FIRST.id)) for _ in range(9)]
        for each in waiting:
            with pytest.raises(Busy) as caught:
                await each
            assert caught.value.code == "CW-HOST-UNREACHABLE"
        assert len(asked) == 1
        free.set()
        assert await fleet._actor(FIRST.id) == "a handle"  # the control
        assert len(asked) <= 2

    run(go)


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError, "CW-HOST-LOST"), (RayError, "CW-HOST-UNREACHABLE")]
)
def test_what_the_control_store_refuses_is_an_error_of_the_fleet(monkeypatch, error, code):
    def refuse(_name: str) -> object:
        raise error

    monkeypatch.setattr(engine.ray, "get_actor", refuse)
    monkeypatch.setattr(engine, "named_actors", lambda: names(FIRST))

    async def go() -> None:
        fleet = fleet_over(Records(FIRST))
        await fleet.look()
        with pytest.raises(CellwallError) as caught:
            await fleet._actor(FIRST.id)
        assert caught.value.code == code

    run(go)


def test_the_end_of_the_node_is_noticed_at_once(monkeypatch, tmp_path):
    path = str(tmp_path / "raylet")
    worker = SimpleNamespace(node=SimpleNamespace(raylet_socket_name=path))
    monkeypatch.setattr("ray._private.worker.global_worker", worker)

    async def go() -> None:
        lines: list[asyncio.StreamWriter] = []

        async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            lines.append(writer)

        await asyncio.wait_for(engine.wait_for_node(), 5)  # it has ended before
        server = await asyncio.start_unix_server(accept, path)
        waiting = asyncio.ensure_future(engine.wait_for_node())
        while not lines:
            await asyncio.sleep(0.001)
        assert not waiting.done()  # the control
        lines[0].close()
        await asyncio.wait_for(waiting, 5)
        server.close()

    asyncio.run(go())
