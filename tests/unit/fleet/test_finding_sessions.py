"""Where a front finds a session whose host was lost, and came back (SRV-6).

The database is a real one; what Ray tells of its processes is given.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from cellwall.core.ids import new_id
from cellwall.fleet.ray_peers import actor_name
from cellwall.fleet.request_bodies import RequestBodies
from cellwall.storage.engine import StorageSettings
from cellwall.storage.schema import migrate
from cellwall.storage.store import open_store
from unit.storage import records

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-6")]


@pytest.mark.parametrize("is_asked_meanwhile", [True, False])
def test_a_session_is_found_on_its_new_host_after_the_old_one_came_back(
    tmp_path, monkeypatch, is_asked_meanwhile
):
    """With the id that it had: the front has routed the session to it before."""
    from cellwall.fleet import ray as ray_fleet  # noqa: PLC0415  # loads for seconds

    tmp_path.chmod(0o700)
    settings = StorageSettings(home=str(tmp_path))
    migrate(settings)
    ann = records.user("ann")
    session = records.session(ann.id)
    first, again, other = (new_id("inc") for _ in range(3))
    alive: set[str] = set()
    monkeypatch.setattr(ray_fleet, "named_actors", lambda: frozenset(alive))

    async def go() -> None:
        async with open_store(settings) as old:
            await old.add_user(ann)
            await old.join_host(first, {}, rivals_s=60)
            assert await old.add_session(session, max_live=9)
            Path(settings.home, "service-id").unlink()
            async with open_store(settings) as new:
                await new.join_host(other, {}, rivals_s=60)
                alive.update({actor_name(old.service_id, first), actor_name(new.service_id, other)})
                front = ray_fleet.RayFleet(
                    old,
                    coordinator="",
                    lost_after_s=3600,
                    bodies=RequestBodies(max_bytes=1, max_total_bytes=1),
                )

                async def place() -> tuple[str, bool]:
                    await front.look()
                    found = await front.find("session", session.id)
                    assert found is not None
                    return found.host_id, found.is_lost

                assert await place() == (old.service_id, False)  # the control
                hosts = {each.id: each for each in await old.list_hosts()}
                assert await old.declare_lost(hosts[old.service_id], unseen_s=-1, answer="x")
                alive.remove(actor_name(old.service_id, first))
                assert await place() == (old.service_id, True)
                await old.join_host(again, {}, rivals_s=60)  # it is back, without its sessions
                alive.add(actor_name(old.service_id, again))
                if is_asked_meanwhile:
                    assert await place() == (old.service_id, True)
                assert await new.take_over_session(session.id, owner_id=ann.id, max_live=9)
                for _ in range(2):
                    assert await place() == (new.service_id, False)

    anyio.run(go)
