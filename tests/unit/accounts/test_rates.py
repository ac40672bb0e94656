"""Rates by user, token and address, in memory and in a real Redis (RBAC-4)."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest

from cellwall.accounts.rates import BoundedMemory, Rates, RateSettings
from cellwall.core.errors import Busy, LimitExceeded
from cellwall.core.outcomes import EventKind
from cellwall.core.types import AccountRef
from conftest import audit_records
from unit.accounts.worlds import ADDRESS, Clock, World, in_world

pytestmark = pytest.mark.requirement("RBAC-4")
ANN = AccountRef(user_id="usr_ann", teams=frozenset(), credential="tok_1", address="192.0.2.1")
NONE = RateSettings(user_actions=0, token_actions=0, address_actions=0, address_requests=0)


async def refusals(rates: Rates, account: AccountRef, count: int) -> list[LimitExceeded]:
    found = []
    for _ in range(count):
        try:
            await rates.count_action(account)
        except LimitExceeded as error:
            found.append(error)
    return found


@pytest.mark.parametrize(
    ("limit", "other"),
    [
        ({"user_actions": 3}, {"user_id": "usr_bob"}),
        ({"token_actions": 3}, {"credential": "tok_2"}),
        ({"address_actions": 3}, {"address": "192.0.2.2"}),
    ],
)
def test_each_subject_has_a_rate_of_its_own(limit, other):
    clock = Clock(now_s=6000.0)

    async def go() -> None:
        rates = Rates(replace(NONE, **limit), clock)
        found = await refusals(rates, ANN, 5)
        assert [error.code for error in found] == ["CW-RATE"] * 2
        (kind,) = (name.partition("_")[0] for name in limit)
        assert f"3 actions per 60 seconds of one {kind}" in found[0].message
        # Recorded once per window; a flood of refusals must not fill the audit log.
        assert [error.is_repeated for error in found] == [False, True]
        assert found[0].retry_after_s == 60.0
        assert await refusals(rates, replace(ANN, **other), 3) == []
        # Whatever else differs, the same subject stays refused.
        changed = {"user_id": "usr_x", "credential": "tok_x", "address": "192.0.2.9"}
        del changed[next(iter(other))]
        assert len(await refusals(rates, replace(ANN, **changed), 1)) == 1

    anyio.run(go)


def test_asking_for_room_counts_and_notes_nothing():
    async def go() -> None:
        rates = Rates(replace(NONE, user_actions=2), Clock(now_s=6000.0))
        for _ in range(5):
            assert await rates.has_room(ANN)
        assert await refusals(rates, ANN, 2) == []
        assert not await rates.has_room(ANN)
        # The first refusal is recorded: it is not taken for a repeated one.
        assert [error.is_repeated for error in await refusals(rates, ANN, 1)] == [False]
        assert await rates.has_room(replace(ANN, user_id="usr_bob"))

    anyio.run(go)


def test_the_window_slides_and_the_refusal_tells_when_to_come_again():
    clock = Clock(now_s=6000.0)

    async def go() -> None:
        rates = Rates(replace(NONE, user_actions=60), clock)
        assert await refusals(rates, ANN, 60) == []
        clock.now_s += 59.9
        (refused,) = await refusals(rates, ANN, 1)
        assert refused.retry_after_s == 1.0
        clock.now_s += 0.1  # a new window, in which the old one still counts almost in full
        assert len(await refusals(rates, ANN, 3)) == 3
        clock.now_s += 30.0  # half of it has faded
        found = await refusals(rates, ANN, 40)
        assert len(found) == 10
        clock.now_s += found[0].retry_after_s
        assert await refusals(rates, ANN, 1) == []
        clock.now_s += 3600.0
        assert await refusals(rates, ANN, 60) == []

    anyio.run(go)


def test_requests_are_counted_by_address_apart_from_actions():
    clock = Clock()

    async def go() -> None:
        rates = Rates(replace(NONE, address_requests=2, address_actions=2), clock)
        for _ in range(2):
            await rates.count_request("2001:db8::1")
        with pytest.raises(LimitExceeded):
            await rates.count_request("2001:db8::ffff")  # the same /64 network
        await rates.count_request("2001:db8:0:1::1")
        assert await refusals(rates, replace(ANN, address="2001:db8::1"), 2) == []

    anyio.run(go)


def test_an_address_that_is_refused_is_recorded_once_per_window(sqlite_settings):
    async def go(world: World) -> None:
        settings = replace(world.settings, rates=replace(NONE, address_requests=2))
        accounts = world.another(settings=settings)
        codes = []
        for _ in range(6):
            try:
                await accounts.count_request(ADDRESS)
            except LimitExceeded as error:
                codes.append(error.code)
        assert codes == ["CW-RATE"] * 4

    in_world(sqlite_settings, go)
    found = [each["body"] for each in audit_records(kind=EventKind.SIGN_IN)]
    assert [(each["change"], each["status"], each["address"]) for each in found] == [
        ("requests", "slowed", ADDRESS)
    ]


def test_at_once_no_more_than_the_limit_pass():
    async def go() -> None:
        rates = Rates(replace(NONE, user_actions=10), Clock())
        passed = []

        async def one() -> None:
            if not await refusals(rates, ANN, 1):
                passed.append(1)

        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(one)
        assert len(passed) == 10

    anyio.run(go)


def test_a_flood_of_subjects_takes_bounded_memory():
    async def go() -> None:
        memory = BoundedMemory(Clock(), max_keys=100)
        for number in range(1000):
            assert await memory.acquire_sliding_window_entry(f"{number}", 1, 60)
        assert len(memory._counts) == 100
        assert not await memory.acquire_sliding_window_entry("999", 1, 60)

    anyio.run(go)


def test_processes_that_share_a_redis_share_the_count(redis_url):
    # A window of a day: the test does not meet its end.
    settings = replace(
        NONE, user_actions=20, window_s=86_400, redis_url=redis_url, redis_password="a password"
    )
    account = replace(ANN, user_id="usr_shared")
    assert "a password" not in repr(settings)

    async def go() -> None:
        one, other = Rates(settings), Rates(settings)
        passed = []

        async def count(rates: Rates) -> None:
            if not await refusals(rates, account, 1):
                passed.append(1)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(count, one)
                    tasks.start_soon(count, other)
            assert len(passed) == 20
            (refused,) = await refusals(one, account, 1)
            assert 0 < refused.retry_after_s <= 86_400
            assert await refusals(other, ANN, 1) == []
        finally:
            await one.close()
            await other.close()

    anyio.run(go)


def test_a_redis_that_cannot_be_reached_refuses(redis_url, tmp_path):
    async def go() -> None:
        for changes in (
            {"redis_url": f"redis+unix://{tmp_path}/missing", "redis_password": None},
            {"redis_url": redis_url, "redis_password": "wrong"},
            {"redis_url": f"redis://127.0.0.1:{port}", "redis_password": None},
        ):
            rates = Rates(replace(NONE, user_actions=5, **changes))
            with pytest.raises(Busy) as caught:
                await rates.count_action(ANN)
            assert caught.value.code == "CW-RATE-STORE"
            assert str(tmp_path) not in str(caught.value)
            await rates.close()

    with socket.socket() as closed:  # bound, and not listening
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        anyio.run(go)


@pytest.mark.parametrize(
    "reply",
    [b":abc\r\n", b"*1\r\n" * 100_000, b"%1\r\n*1\r\n:1\r\n:1\r\n", b"HELLO\r\n", b"-ERR no\r\n"],
    ids=["no number", "deep", "list as a key", "no reply", "error"],
)
def test_no_reply_of_a_hostile_redis_counts_as_within_the_limit(reply):
    def answer() -> None:
        with suppress(OSError):  # the client may try again, or leave early
            while True:
                link = listener.accept()[0]
                links.append(link)
                link.recv(65_536)
                link.sendall(reply * 20 if len(reply) < 100 else reply)

    async def go() -> None:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        rates = Rates(replace(NONE, user_actions=5, redis_url=url))
        with pytest.raises(Busy) as caught:
            await rates.count_action(ANN)
        assert caught.value.code == "CW-RATE-STORE"
        await rates.close()

    links: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        anyio.run(go)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
    assert links  # the control: it was asked
    for link in links:
        link.close()
