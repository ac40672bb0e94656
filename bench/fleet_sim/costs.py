"""What the operations of the control plane cost in processor time, measured here.

Processor time and not the time that passes: it hardly depends on what else the machine does.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace

import anyio
import anyio.to_thread
from sqlalchemy import insert

from cellwall.core.accounts import SessionRecord, User
from cellwall.core.ids import new_id
from cellwall.fleet.engine import HostState, Wish
from cellwall.fleet.placement import choose_host
from cellwall.fleet.states import state_of
from cellwall.storage.engine import StorageSettings, blocking_engine
from cellwall.storage.fleet_models import HostRow
from cellwall.storage.models import SessionRow
from cellwall.storage.schema import migrate
from cellwall.storage.store import open_store
from fleet_sim.parameters import GIB
from fleet_sim.postgres import PostgresServer

_HOSTS = 1000
_ROWS = 50_000
_ABOUT = {
    "version": "1.0.0", "address": "10.0.0.5", "labels": {"region": "eu-1"},
    "memory_bytes": 32 * GIB, "memory_free_bytes": 16 * GIB, "sessions": 80, "busy": 4,
    "templates": ["python", "python-data", "node", "bash"],
}  # fmt: skip


def placement_cost() -> float:
    """Seconds of one placement for each host."""
    chance = random.Random(1)
    hosts = [
        HostState(
            id=f"host-{number}",
            incarnation="",
            memory_bytes=32 * GIB,
            memory_free_bytes=chance.randrange(32 * GIB),
            templates=frozenset({"python", "python-data"}),
        )
        for number in range(_HOSTS)
    ]
    wish, rounds = Wish(memory_bytes=GIB, template="python"), 100
    before_s = time.process_time()
    for _ in range(rounds):
        choose_host(hosts, wish, {})
    return (time.process_time() - before_s) / rounds / _HOSTS


def database_costs(server: PostgresServer) -> dict[str, float]:
    """Of PostgreSQL and of the process that asks it."""
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as home:
        settings = StorageSettings(home=home, url=server.url)
        migrate(settings)
        return anyio.run(_measure, settings, server)


async def _measure(settings: StorageSettings, server: PostgresServer) -> dict[str, float]:
    async with open_store(settings) as store:
        user = User(
            id=new_id("usr"), name="bench", role="owner", password_hash=None, is_disabled=False,
            generation=0, created_s=0.0,
        )  # fmt: skip
        await store.add_user(user)
        incarnation = new_id("inc")
        await store.join_host(incarnation, _ABOUT, rivals_s=5.0)
        await anyio.to_thread.run_sync(_fill, settings, user.id)
        late = [host for host in await store.list_hosts() if host.incarnation != incarnation]
        sessions = [_session(user.id) for _ in range(300)]
        found: dict[str, float] = {}

        async def cost(
            name: str, rounds: int, operation: Callable[[int], Awaitable[object]]
        ) -> float:
            await operation(0)
            ours_s, theirs_s = time.process_time(), server.processor_s()
            for number in range(1, rounds + 1):
                await operation(number)
            found[name] = (server.processor_s() - theirs_s) / rounds
            return (time.process_time() - ours_s) / rounds

        async def look(_number: int) -> None:
            for record in await store.list_hosts():
                state_of(record, is_lost=False)

        async def session(number: int) -> None:
            await store.add_session(sessions[number], max_live=1_000_000)
            await store.end_session(sessions[number].id, now_s=1.0)

        await cost("db_renew_s", 2000, lambda _: store.renew_host(incarnation, _ABOUT))
        front_s = await cost("db_look_host_s", 100, look)
        found["db_look_host_s"] /= _HOSTS
        found["look_host_s"] = front_s / _HOSTS
        await cost("db_session_s", 250, session)
        await cost("db_find_s", 2000, lambda n: store.find_holder("session", sessions[n % 250].id))
        await cost(
            "db_lost_row_s", 10, lambda n: store.declare_lost(late[n], unseen_s=1.0, answer="lost")
        )
        found["db_lost_row_s"] /= _ROWS
    return found


def _session(user_id: str) -> SessionRecord:
    return SessionRecord(
        id=new_id("ses"),
        owner_id=user_id,
        team_id=None,
        created_s=0.0,
        ended_s=None,
        about={"template": "python", "labels": {}},
    )


def _fill(settings: StorageSettings, user_id: str) -> None:
    """Hosts whose lease is old, and the ended sessions of some hours."""
    engine = blocking_engine(settings)
    hosts = [
        {
            "id": new_id("svc"), "incarnation": new_id("inc"), "about": _ABOUT, "seen_s": 0.0,
            "is_draining": False, "lost_s": None,
        }
        for _ in range(_HOSTS - 1)
    ]  # fmt: skip
    one = _session(user_id)
    with engine.begin() as connection:
        connection.execute(insert(HostRow), hosts)
        for begin in range(0, _ROWS, 10_000):
            rows = [
                {
                    **asdict(replace(one, id=new_id("ses"), ended_s=1.0)),
                    "service_id": hosts[number % len(hosts)]["id"],
                }
                for number in range(begin, begin + 10_000)
            ]
            connection.execute(insert(SessionRow), rows)
    engine.dispose()
