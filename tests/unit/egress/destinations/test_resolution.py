"""Every answer is checked, once, and no answer is no permission (NET-3)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from cellwall.core.errors import BadInput, EgressRefused
from cellwall.egress.destinations import resolution
from cellwall.egress.destinations.addresses import Address, own_addresses
from cellwall.egress.destinations.resolution import (
    Resolver,
    ServersResolver,
    SystemResolver,
    resolve_checked,
)

LONG_S = 60.0
PUBLIC, OTHER = "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"


class Answers:
    """A resolver whose answers are written down, one for each time that it is asked."""

    def __init__(self, *answers: str) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def addresses(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        return [ip_address(text) for text in self._answers.pop(0).split()]


def check(
    host: str | Address, resolver: Resolver, *, own: Sequence[str] = (), allowed: Sequence[str] = ()
) -> tuple[str, ...]:
    found = asyncio.run(
        resolve_checked(
            host,
            resolver,
            own=frozenset(map(ip_address, own)),
            allowed=tuple(map(ip_network, allowed)),
        )
    )
    return tuple(map(str, found))


def refusal(host: str | Address, resolver: Resolver, **more: Sequence[str]) -> EgressRefused:
    with pytest.raises(EgressRefused) as refused:
        check(host, resolver, **more)
    return refused.value


def test_all_public_addresses_are_given_in_their_order() -> None:
    assert check("example.com", Answers(f"{OTHER} {PUBLIC} 1.1.1.1")) == (OTHER, PUBLIC, "1.1.1.1")


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("169.254.169.254", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("168.63.129.16", "metadata"),
        ("10.0.0.1", "private"),
        ("100.64.0.1", "cgnat"),
        ("::ffff:169.254.169.254", "mapped"),
        ("64:ff9b::a9fe:a9fe", "nat64"),
        ("2002:7f00:1::", "6to4"),
        ("fe80::1%1", "zone"),
        ("224.0.0.1", "multicast"),
    ],
)
def test_one_refused_address_refuses_the_name(address: str, word: str) -> None:
    assert check("example.com", Answers(f"{PUBLIC} {OTHER}")) == (PUBLIC, OTHER)
    for answer in (
        address,
        f"{PUBLIC} {address}",
        f"{address} {PUBLIC}",
        f"{PUBLIC} {address} {OTHER}",
    ):
        error = refusal("example.com", Answers(answer))
        assert error.code == "CW-ADDRESS"
        # The message goes to the code, which has no business with addresses of the inner network,
        # nor with which of them are this host's own: all are told alike.
        assert error.message == "example.com resolves to a blocked address"
        assert error.hint == refusal("example.com", Answers("192.168.0.1")).hint
        assert address not in str(error)
        assert error.detail == f"{ip_address(address)} is {word}"


def test_an_address_behind_many_others_is_checked_too() -> None:
    many = " ".join(f"1.1.1.{last}" for last in range(1, 65))
    assert len(check("example.com", Answers(many))) == 8
    assert refusal("example.com", Answers(f"{many} 127.0.0.1")).code == "CW-ADDRESS"
    more = " ".join(f"1.1.{third}.{last}" for third in range(8) for last in range(1, 65))
    assert refusal("example.com", Answers(more)).code == "CW-NO-ADDRESS"


@pytest.mark.requirement("NET-3")
def test_a_name_is_asked_for_once() -> None:
    """DNS rebinding: the second answer would be another one, so there is no second question."""
    answers = Answers(PUBLIC, "127.0.0.1")
    assert check("example.com", answers) == (PUBLIC,)
    assert answers.asked == ["example.com"]
    assert refusal("example.com", answers).code == "CW-ADDRESS"


def test_the_hosts_own_and_the_allowed_addresses_are_passed_on() -> None:
    assert refusal("example.com", Answers(PUBLIC), own=[PUBLIC]).code == "CW-ADDRESS"
    assert check("example.com", Answers("10.0.0.7"), allowed=["10.0.0.0/8"]) == ("10.0.0.7",)
    assert (
        refusal("example.com", Answers("10.0.0.7"), own=["10.0.0.7"], allowed=["10.0.0.0/8"]).code
        == "CW-ADDRESS"
    )


@pytest.mark.requirement("NET-3")
def test_a_literal_address_is_checked_and_not_asked_for() -> None:
    nobody = Answers()
    literals = [PUBLIC, OTHER, f"[{OTHER}]", IPv4Address(PUBLIC), IPv6Address(OTHER)]
    assert [check(host, nobody) for host in literals] == [
        (PUBLIC,),
        (OTHER,),
        (OTHER,),
        (PUBLIC,),
        (OTHER,),
    ]
    refused = ["127.0.0.1", "[::1]", "::1", "::ffff:1.1.1.1", IPv4Address("169.254.169.254")]
    assert [refusal(host, nobody).code for host in refused] == ["CW-ADDRESS"] * 5
    assert nobody.asked == []


@pytest.mark.requirement("NET-3")
def test_no_answer_is_a_refusal() -> None:
    error = refusal("example.com", Answers(""))
    assert (error.code, error.message) == (
        "CW-NO-ADDRESS",
        "example.com does not resolve to an address",
    )
    assert error.hint


# The system's resolver.


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "hosts"
    monkeypatch.setattr(resolution, "_HOSTS", str(path))
    return path


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the C library is asked for; its answer is always the same."""
    asked: list[str] = []

    def getaddrinfo(host: str, *_: object, **more: object) -> list[object]:
        asked.append(host)
        found = [(PUBLIC, 0), (OTHER, 0, 0, 0), (PUBLIC, 0)]
        return [(0, socket.SOCK_STREAM, 6, "", address) for address in found]

    monkeypatch.setattr(resolution.socket, "getaddrinfo", getaddrinfo)
    return asked


def test_the_library_is_asked_for_the_whole_name(hosts: Path, library: list[str]) -> None:
    """Without the dot it would go on with the search list, to names that nobody allowed."""
    assert check("api.example.com", SystemResolver(LONG_S)) == (PUBLIC, OTHER)
    assert library == ["api.example.com."]


def test_the_hosts_table_comes_first(hosts: Path, library: list[str]) -> None:
    hosts.write_text(
        f"# 1.2.3.4 example.com\n\n{PUBLIC} other.example.com Example.COM # example.net\n"
        f"{OTHER}\texample.com\n{OTHER} example.com\n127.0.0.1 blocked.example.com\n"
        "nonsense broken.example.com\nfe80::1%lo zone.example.com\n10.0.0.1\n"
    )
    resolver = SystemResolver(LONG_S)
    assert check("example.com", resolver) == (PUBLIC, OTHER)
    assert refusal("blocked.example.com", resolver).code == "CW-ADDRESS"
    assert refusal("zone.example.com", resolver).code == "CW-ADDRESS"
    assert refusal("broken.example.com", resolver).code == "CW-NO-ADDRESS"
    assert library == []
    assert check("example.net", resolver) == (PUBLIC, OTHER)
    assert library == ["example.net."]


@pytest.mark.requirement("NET-3")
def test_localhost_of_this_host_is_refused() -> None:
    """As it is really resolved here."""
    with pytest.raises(EgressRefused) as refused:
        asyncio.run(
            resolve_checked("localhost", SystemResolver(LONG_S), own=own_addresses(), allowed=())
        )
    assert refused.value.code in {"CW-ADDRESS", "CW-NO-ADDRESS"}


@pytest.mark.parametrize(
    "failure", [socket.gaierror(-2, "no"), OSError(5, "no"), UnicodeError("no"), ValueError("no")]
)
def test_a_failing_library_is_a_refusal(
    failure: Exception, hosts: Path, library: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **more: object) -> None:
        raise failure

    assert check("example.com", SystemResolver(LONG_S)) == (PUBLIC, OTHER)
    monkeypatch.setattr(resolution.socket, "getaddrinfo", fails)
    error = refusal("example.com", SystemResolver(LONG_S))
    assert (error.code, error.detail) == ("CW-NO-ADDRESS", repr(failure))


def test_a_late_library_is_a_refusal(hosts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    def waits(*_: object, **more: object) -> list[object]:
        end.wait(LONG_S)
        return [(0, socket.SOCK_STREAM, 6, "", (PUBLIC, 0))]

    monkeypatch.setattr(resolution.socket, "getaddrinfo", waits)
    try:
        assert refusal("example.com", SystemResolver(0.05)).code == "CW-NO-ADDRESS"
    finally:
        end.set()
    assert check("example.com", SystemResolver(LONG_S)) == (PUBLIC,)


# DNS servers that are named, here a real one on loopback.

Reply = Callable[[dns.message.Message], bytes]


def records(question: dns.message.Message, *rows: str) -> bytes:
    """Rows such as `example.com. A 192.0.2.1`, those that answer this question; others are left out."""
    reply = dns.message.make_response(question)
    wanted = question.question[0]
    for row in rows:
        name, kind, value = row.split()
        if kind in {"CNAME", wanted.rdtype.name}:
            reply.answer.append(dns.rrset.from_text(name, 60, "IN", kind, value))
    return reply.to_wire()


def failing(question: dns.message.Message, code: dns.rcode.Rcode) -> bytes:
    reply = dns.message.make_response(question)
    reply.set_rcode(code)
    return reply.to_wire()


class Server(asyncio.DatagramProtocol):
    def __init__(self, reply: Reply) -> None:
        self.asked: list[str] = []
        self._reply = reply
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]  # it is one
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        self.asked.append(question.question[0].to_text())
        answer = self._reply(question)
        if answer:
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def serving(reply: Reply) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: Server(reply), ("127.0.0.1", 0))
    try:
        yield server, transport.get_extra_info("sockname")
    finally:
        transport.close()


def served(
    host: str, reply: Reply, *, timeout_s: float = LONG_S
) -> tuple[tuple[str, ...], list[str]]:
    async def run() -> tuple[tuple[str, ...], list[str]]:
        async with serving(reply) as (server, address):
            resolver = ServersResolver([address], timeout_s)
            found = await resolve_checked(host, resolver, own=frozenset(), allowed=())
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return tuple(map(str, found)), sorted(server.asked)

    return asyncio.run(run())


BOTH = (f"example.com. A {PUBLIC}", f"example.com. AAAA {OTHER}")


def test_a_named_server_is_asked_for_both_families_of_the_very_name() -> None:
    found = served("example.com", lambda question: records(question, *BOTH))
    assert found == ((OTHER, PUBLIC), ["example.com. IN A", "example.com. IN AAAA"])


@pytest.mark.parametrize(("row", "address"), [(BOTH[0], PUBLIC), (BOTH[1], OTHER)])
def test_one_family_is_enough(row: str, address: str) -> None:
    assert served("example.com", lambda question: records(question, row))[0] == (address,)


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize(
    "rows",
    [
        ["example.com. A 127.0.0.1"],
        [*BOTH, "example.com. A 169.254.169.254"],
        [BOTH[0], "example.com. AAAA ::ffff:127.0.0.1"],
        ["example.com. CNAME inner.example.net.", "inner.example.net. A 10.0.0.1"],
    ],
)
def test_an_allowed_name_that_leads_inside_is_refused(rows: list[str]) -> None:
    alias = ["example.com. CNAME outer.example.net.", f"outer.example.net. A {PUBLIC}"]
    assert served("example.com", lambda question: records(question, *alias))[0] == (PUBLIC,)
    with pytest.raises(EgressRefused) as refused:
        served("example.com", lambda question: records(question, *rows))
    assert refused.value.code == "CW-ADDRESS"


def for_aaaa(reply: Reply) -> Reply:
    """A good answer for one family, and this one for the other."""
    return lambda question: (
        reply(question) if "AAAA" in question.question[0].to_text() else records(question, *BOTH)
    )


FAILURES: dict[str, Reply] = {
    "no such name": lambda question: failing(question, dns.rcode.NXDOMAIN),
    "server failure": lambda question: failing(question, dns.rcode.SERVFAIL),
    "refused": lambda question: failing(question, dns.rcode.REFUSED),
    "empty": records,
    "other name": lambda question: records(question, f"example.net. A {PUBLIC}"),
    "alias without end": lambda question: records(question, "example.com. CNAME example.com."),
    "failure of one family": for_aaaa(lambda question: failing(question, dns.rcode.SERVFAIL)),
}


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("reply", FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_to_resolve_is_a_refusal(reply: Reply) -> None:
    with pytest.raises(EgressRefused) as refused:
        served("example.com", reply)
    assert refused.value.code == "CW-NO-ADDRESS"
    assert refused.value.message == "example.com does not resolve to an address"


SILENCE: dict[str, Reply] = {
    "nothing": lambda question: b"",
    "garbage": lambda question: b"\xff" * 40,
    "other question's answer": lambda question: bytes(2) + records(question, *BOTH)[2:],
    "nothing for one family": for_aaaa(lambda question: b""),
}


@pytest.mark.requirement("NET-3")
@pytest.mark.parametrize("reply", SILENCE.values(), ids=SILENCE.keys())
def test_a_server_that_does_not_answer_in_time_is_a_refusal(reply: Reply) -> None:
    with pytest.raises(EgressRefused) as refused:
        served("example.com", reply, timeout_s=0.3)
    assert refused.value.code == "CW-NO-ADDRESS"


def test_a_name_that_dns_cannot_hold_is_a_refusal() -> None:
    resolver = ServersResolver([("127.0.0.1", 53)], LONG_S)
    for host in ("a..b", "a" * 64, "a." * 200):
        assert refusal(host, resolver).code == "CW-NO-ADDRESS"


@pytest.mark.parametrize("server", ["dns.example.com", "127.1", "", "1.1.1.1:53", "fe80::1%lo"])
def test_a_server_is_given_by_its_address(server: str) -> None:
    ServersResolver([("1.1.1.1", 53), ("2606:4700:4700::1111", 53)], LONG_S)
    with pytest.raises(BadInput) as refused:
        ServersResolver([(server, 53)], LONG_S)
    assert refused.value.code == "CW-BAD-DNS-SERVER"


def test_no_server_answers_nothing() -> None:
    assert refusal("example.com", ServersResolver([], LONG_S)).code == "CW-NO-ADDRESS"
