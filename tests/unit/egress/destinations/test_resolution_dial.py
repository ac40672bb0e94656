"""Connects to exactly the addresses that were checked, and leaves nothing open (NET-3)."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, ip_address

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations import resolution as dialling
from cellwall.egress.destinations.resolution import dial
from conftest import need

REFUSES, HANGS, ANSWERS = (IPv4Address(f"127.0.0.{last}") for last in (2, 3, 4))
LONG_S = 60.0


@pytest.fixture
def port() -> Iterator[int]:
    """One port at which three addresses behave differently, all on this host."""
    with ExitStack() as stack:
        answers = stack.enter_context(socket.create_server((str(ANSWERS), 0)))
        found = answers.getsockname()[1]
        # Bound and not listening: the kernel refuses, and nobody else can get the port meanwhile.
        refuses = stack.enter_context(socket.socket())
        refuses.bind((str(REFUSES), found))
        # Nobody accepts and the queue is full: the kernel drops what comes.
        hangs = stack.enter_context(socket.socket())
        hangs.bind((str(HANGS), found))
        hangs.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((str(HANGS), found))
        yield found


def descriptors() -> set[str]:
    return {
        entry for entry in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{entry}")
    }


def dialled(*addresses: IPv4Address, port: int, timeout_s: float = LONG_S) -> str:
    """Whom it got; nothing but the one socket was left open."""

    async def run() -> str:
        before = descriptors()
        with await dial(addresses, port, timeout_s=timeout_s) as sock:
            assert descriptors() - before == {str(sock.fileno())}
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert sock.gettimeout() == 0
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert not os.get_inheritable(sock.fileno())
            host, got = sock.getpeername()
            assert got == port
            return host

    return asyncio.run(run())


def refused(*addresses: IPv4Address, port: int, timeout_s: float = LONG_S) -> EgressRefused:
    async def run() -> EgressRefused:
        before = descriptors()
        with pytest.raises(EgressRefused) as raised:
            await dial(addresses, port, timeout_s=timeout_s)
        assert descriptors() == before
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return raised.value

    return asyncio.run(run())


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    "addresses",
    [
        (ANSWERS,),
        (ANSWERS, REFUSES),
        (REFUSES, ANSWERS),
        (HANGS, ANSWERS),
        (ANSWERS, HANGS),
        (REFUSES, HANGS, ANSWERS),
        (HANGS, REFUSES, ANSWERS),
        (HANGS, HANGS, REFUSES, REFUSES, ANSWERS),
    ],
)
def test_the_address_that_answers_is_used(addresses: tuple[IPv4Address, ...], port: int) -> None:
    assert dialled(*addresses, port=port) == str(ANSWERS)


@pytest.mark.requirement("NET-3")
def test_only_the_given_addresses_are_tried(port: int) -> None:
    assert dialled(ANSWERS, port=port) == str(ANSWERS)
    error = refused(REFUSES, port=port)
    assert error.code == "CW-UNREACHABLE"
    assert error.detail == "127.0.0.2: Connection refused"
    assert "127.0.0.2" not in str(error)
    assert error.hint


def test_of_two_that_answer_the_first_is_taken(port: int) -> None:
    with socket.create_server(("127.0.0.5", port)):
        other = IPv4Address("127.0.0.5")
        assert dialled(other, ANSWERS, port=port) == str(other)
        assert dialled(ANSWERS, other, port=port) == str(ANSWERS)


def test_a_deadline_ends_it(port: int) -> None:
    error = refused(HANGS, port=port, timeout_s=0.05)
    assert (error.code, error.detail) == ("CW-UNREACHABLE", "late")
    error = refused(REFUSES, HANGS, port=port, timeout_s=0.4)
    assert error.detail == "127.0.0.2: Connection refused, late"


def test_no_address_is_unreachable(port: int) -> None:
    assert refused(port=port).detail == "no address"


@pytest.mark.parametrize("wrong", [0, -1, 65536, 2**70])
def test_a_port_that_is_none_is_unreachable(wrong: int) -> None:
    assert refused(ANSWERS, port=wrong).detail == "no such port"


def test_a_family_that_fails_does_not_stop_the_other(port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        need(False, "::1")
    assert dialled(ip_address("::1"), ANSWERS, port=port) == str(ANSWERS)


def test_no_descriptor_left_is_unreachable(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSocket(socket.socket):
        def __init__(self, *_: object) -> None:
            raise OSError(24, "Too many open files")

    async def run() -> str:
        monkeypatch.setattr(dialling.socket, "socket", NoSocket)
        with pytest.raises(EgressRefused) as raised:
            await dial([ANSWERS], port, timeout_s=LONG_S)
        monkeypatch.undo()
        return raised.value.detail

    assert asyncio.run(run()) == "127.0.0.4: Too many open files"


def test_a_cancelled_call_leaves_nothing_open(port: int) -> None:
    async def run() -> None:
        before = descriptors()
        task = asyncio.create_task(dial([HANGS, HANGS, REFUSES], port, timeout_s=LONG_S))
        while descriptors() == before:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert descriptors() == before
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_call_cancelled_at_any_step_leaves_nothing_open(port: int) -> None:
    """Also at the very step at which it has a connection, before anybody holds it."""

    async def cancelled_after(steps: int) -> bool:
        before = descriptors()
        task = asyncio.create_task(dial([REFUSES, ANSWERS], port, timeout_s=LONG_S))
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.done():
            task.result().close()
            assert descriptors() == before
            return False
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert descriptors() == before
        return True

    async def run() -> int:
        steps = 0
        while await cancelled_after(steps):
            steps += 1
        return steps

    assert asyncio.run(run()) > 2


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ("", ""),
        ("4a 4b", "4a 4b"),
        ("6a 6b 4a 4b", "6a 4a 6b 4b"),
        ("4a 6a 6b", "4a 6a 6b"),
        ("6a 6b 6c 4a", "6a 4a 6b 6c"),
        ("4a 4a 6a 4a", "4a 6a"),
    ],
)
def test_families_take_turns(given: str, order: str) -> None:
    def addresses(text: str) -> list[object]:
        forms = {"4": "192.0.2.{}", "6": "2001:db8::{}"}
        return [ip_address(forms[word[0]].format(ord(word[1]))) for word in text.split()]

    assert list(dialling._interleaved(addresses(given))) == addresses(order)  # type: ignore[arg-type]  # of one kind
