"""Programs outside of any sandbox: told apart by their tokens, bound by the rules of a cell."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.from_thread
import pytest

from cellwall.core.errors import BadInput
from cellwall.core.network import EgressContext
from cellwall.core.types import Action, Principal, ServeClient
from cellwall.egress.proxy import gateway as gateway_module
from cellwall.egress.service import EgressService
from unit.egress.loopback import (
    WAIT_S,
    House,
    Server,
    echo,
    everything,
    final_bytes,
    get,
    head_of,
    is_ended,
    refusal_of,
    repeat_requests,
    request_of,
)
from unit.egress.proxy.test_listeners import socks_to

SITE, OTHER = "api.example.com", "b.example.com"
OTHER_UID = 61_234


async def _hold(*_: object) -> None:
    """The service never calls it."""


def token_of(client: str) -> str:
    return f"token-of-{client}"


def signed(client: str, token: str | None = None) -> str:
    pair = f"{client}:{token_of(client) if token is None else token}"
    return f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}"


@dataclass
class Gate:
    """A gateway, and the sessions of its clients."""

    house: House
    service: EgressService
    address: tuple[str, int]
    tokenless: tuple[str, int]
    portal: anyio.from_thread.BlockingPortal
    sessions: dict[str, contextlib.ExitStack] = field(default_factory=dict)

    def admit(self, client: str, *domains: str) -> None:
        digest = hashlib.sha256(token_of(client).encode()).digest()
        action = Action(
            principal=Principal("somebody", "test"),
            operation=ServeClient(client, digest, _hold),
            allow_domains=domains,
        )
        entered = contextlib.ExitStack()
        session = self.service.session(action, ())
        entered.enter_context(self.portal.wrap_async_context_manager(session))
        self.sessions[client] = self.house.stack.enter_context(entered)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=WAIT_S)

    def ask(self, data: bytes) -> bytes:
        """Everything that is said until the end of the connection."""
        with self.connect() as sock:
            sock.sendall(data)
            return everything(sock)

    def tunnel(self, client: str, place: str) -> socket.socket:
        sock = self.connect()
        sock.sendall(connect_request(place, signed(client)))
        assert head_of(sock).startswith(b"HTTP/1.1 200 ")
        return sock


def connect_request(place: str, *headers: str) -> bytes:
    return "\r\n".join((f"CONNECT {place} HTTP/1.1", f"Host: {place}", *headers, "", "")).encode()


def open_gate(
    house: House, clients: Mapping[str, Sequence[str]], *, tokenless: str = "", **changes: Any
) -> Gate:
    service = house.service(**changes)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    extra = socket.create_server(("127.0.0.1", 0))
    address, port = listener.getsockname(), extra.getsockname()
    context = EgressContext(action_id="", principal="somebody", interface="test")
    service.open_gateway(context, listener, tokenless={tokenless: extra})
    portal = house.stack.enter_context(anyio.from_thread.start_blocking_portal())
    gate = Gate(house, service, address, port, portal)
    for client, domains in clients.items():
        gate.admit(client, *domains)
    return gate


@pytest.fixture
def site(house: House) -> Server:
    """A server whose answer is the request."""
    return house.server(repeat_requests, SITE)


@pytest.fixture
def gate(house: House, site: Server) -> Gate:
    """Two clients: both reach the site, one of them another name as well."""
    rule = f"{SITE}:{site.port}"
    house.zone.names[OTHER] = ["127.0.0.1"]
    return open_gate(house, {"ann": [rule], "bob": [rule, f"{OTHER}:{site.port}"]})


def url(server: Server, name: str = SITE) -> str:
    return f"http://{name}:{server.port}/"


@pytest.mark.requirement("NET-8")
def test_client_with_its_token_is_served_and_the_token_goes_no_further(
    house: House, site: Server, gate: Gate
) -> None:
    for header in (signed("ann"), f"Proxy-Authorization: Bearer {token_of('ann')}"):
        reply = gate.ask(get(url(site), header))
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"authorization" not in reply.lower()
    with gate.tunnel("bob", f"{SITE}:{site.port}") as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in head_of(sock)
    gate.service.close()
    assert sorted(context.client for context in house.record.travellers) == [
        "ann",
        "ann",
        "bob",
        "bob",
    ]
    assert "token" not in repr(house.record.bodies)


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Proxy-Authorization: Basic",),
        ("Proxy-Authorization: Bearer wrong",),
        (signed("ann", "wrong"),),
        (signed("ann", token_of("bob")),),
        (signed("eve"),),
        (signed("ann").replace("Proxy-", ""),),
        (f"Authorization: Bearer {token_of('ann')}",),
        (f"X-Proxy-Authorization: Bearer {token_of('ann')}",),
        (f"Proxy_Authorization: Bearer {token_of('ann')}",),
    ],
)
def test_without_the_right_token_there_is_one_answer_and_no_connection(
    house: House, site: Server, gate: Gate, headers: tuple[str, ...]
) -> None:
    requests = (get(url(site), *headers), connect_request(f"{SITE}:{site.port}", *headers))
    answers = [gate.ask(request) for request in requests]
    assert answers[0] == answers[1]
    assert refusal_of(answers[0]) == (407, "CW-PROXY-TOKEN")
    assert b'\r\nProxy-Authenticate: Basic realm="cellwall"\r\n' in answers[0]
    assert (house.zone.asked, site.connections) == ([], 0)
    gate.service.close()
    refused = house.record.of("refused")
    assert [each["detail"] for each in refused] == ["from 127.0.0.1"] * 2
    # An unauthenticated peer chooses no text in the audit log.
    assert not any(text in repr(house.record.bodies) for text in (SITE, "token-of", "wrong"))


@pytest.mark.requirement("NET-8")
def test_flood_without_a_token_is_counted_in_few_events(house: House, gate: Gate) -> None:
    for _ in range(200):
        assert refusal_of(gate.ask(get("http://x.test/")))[0] == 407
    gate.service.close()
    single, more = house.record.of("refused"), house.record.of("refused-more")
    assert len(single) + sum(each["count"] for each in more) == 200
    assert all(each["codes"] == {"CW-PROXY-TOKEN": each["count"]} for each in more)


@pytest.mark.requirement("NET-8")
def test_each_client_has_its_own_rules(site: Server, gate: Gate) -> None:
    request = url(site, OTHER)
    assert gate.ask(get(request, signed("bob"))).startswith(b"HTTP/1.1 200 OK\r\n")
    assert refusal_of(gate.ask(get(request, signed("ann")))) == (403, "CW-NOT-ALLOWED")


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize("second", [(), (signed("bob"),), (signed("ann", "wrong"),)])
def test_each_request_of_a_connection_needs_the_token(
    site: Server, gate: Gate, second: tuple[str, ...]
) -> None:
    keep = get(url(site), signed("ann")).replace(b"Connection: close\r\n", b"")
    with gate.connect() as sock:
        for _ in range(2):  # the control
            sock.sendall(keep)
            assert request_of(sock)[0].startswith(b"HTTP/1.1 200 OK\r\n")
        sock.sendall(get(url(site), *second))
        assert refusal_of(everything(sock)) == (407, "CW-PROXY-TOKEN")
    with gate.connect() as sock:  # and where both are sent at once
        sock.sendall(keep + get(url(site), *second))
        assert request_of(sock)[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert refusal_of(everything(sock)) == (407, "CW-PROXY-TOKEN")


@pytest.mark.requirement("NET-8", "NET-3")
@pytest.mark.parametrize(
    "place",
    [
        "127.0.0.1:80",
        "127.1:80",
        "2130706433:80",
        "0x7f000001:80",
        "[::1]:80",
        "[::ffff:127.0.0.1]:80",
        "localhost:80",
        "169.254.169.254:80",
        "[fd00:ec2::254]:80",
        "metadata.google.internal:80",
        "api.example.com.evil.test:443",
        "evilapi.example.com:443",
        "ann:x@api.example.com:443",
        "api.example.com\x00.evil.test:443",
    ],
)
def test_client_reaches_no_address_and_no_other_name(
    house: House, site: Server, gate: Gate, place: str
) -> None:
    status, _code = refusal_of(gate.ask(connect_request(place, signed("ann"))))
    assert status in (400, 403)
    assert house.zone.asked == []
    gate.tunnel("ann", f"{SITE}:{site.port}").close()  # the control


@pytest.mark.requirement("NET-8", "NET-3")
@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"])
def test_allowed_name_that_is_rebound_to_a_private_address_is_refused(
    house: House, site: Server, gate: Gate, address: str
) -> None:
    asked = iter([["127.0.0.1"], [address], ["127.0.0.1", address]])
    house.zone.names[SITE] = lambda: next(asked)
    place = f"{SITE}:{site.port}"
    gate.tunnel("ann", place).close()  # the control
    shared = gate.service._egress_loop.shared  # type: ignore[union-attr]  # it runs
    for _ in range(2):
        shared._addresses.clear()
        refused = refusal_of(gate.ask(connect_request(place, signed("ann"))))
        assert refused == (403, "CW-ADDRESS")


def _smuggled(target: str) -> dict[str, bytes]:
    plain = get(target, signed("ann"))
    head, body = plain[:-2], b"0\r\n\r\nGET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n"
    return {
        "Host differs from the URL": plain.replace(f"Host: {SITE}".encode(), b"Host: b.test"),
        "two Hosts": head + b"Host: b.test\r\n\r\n",
        "two tokens": head + f"{signed('ann')}\r\n\r\n".encode(),
        "length and chunks": head
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        + body,
        "two lengths": head + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + body,
        "a folded header": head + b"X: a\r\n b\r\n\r\n",
        "a space before the colon": head + b"X : a\r\n\r\n",
        "a bare line feed": head + b"X: a\nY: b\r\n\r\n",
        "a NUL": head + b"X: a\0b\r\n\r\n",
        "https in plain": plain.replace(b"GET http:", b"GET https:"),
        "an origin": plain.replace(target.encode(), b"/"),
        "a bad method": plain.replace(b"GET", b"G\tT"),
        "too large a head": head + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
        "too many headers": head + b"X: a\r\n" * 200 + b"\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "SOCKS": b"\x05\x01\x00\r\n\r\n",
    }


@pytest.mark.requirement("NET-8", "NET-2")
@pytest.mark.parametrize("name", _smuggled("http://x.test/"))
def test_ambiguous_request_is_refused_before_any_connection(
    site: Server, gate: Gate, name: str
) -> None:
    with gate.connect() as sock:
        with contextlib.suppress(OSError):  # it may be refused while it is still being sent
            sock.sendall(_smuggled(url(site))[name])
        assert refusal_of(final_bytes(sock)) == (400, "CW-BAD-REQUEST")
    assert site.connections == 0
    assert gate.ask(get(url(site), signed("ann"))).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.requirement("NET-8")
def test_slow_head_ends_at_its_deadline(house: House, site: Server, gate: Gate) -> None:
    assert gate.ask(get(url(site), signed("ann"))).startswith(b"HTTP/1.1 200 OK\r\n")  # the control
    gate = open_gate(house, {"ann": [f"{SITE}:{site.port}"]}, head_timeout_s=0.3)
    with gate.connect() as sock:
        sock.sendall(get(url(site), signed("ann"))[:-2])
        assert refusal_of(everything(sock)) == (504, "CW-LATE")
    with gate.connect() as sock:
        assert refusal_of(everything(sock)) == (504, "CW-LATE")


@pytest.mark.requirement("NET-8")
def test_half_closed_client_gets_its_answer_and_half_a_request_none(
    site: Server, gate: Gate
) -> None:
    with gate.connect() as sock:
        sock.sendall(get(url(site), signed("ann")))
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock).startswith(b"HTTP/1.1 200 OK\r\n")
    for part in (b"", b"GET http://"):
        with gate.connect() as sock:
            sock.sendall(part)
            sock.shutdown(socket.SHUT_WR)
            assert b"200 OK" not in final_bytes(sock)


@pytest.mark.requirement("NET-8")
def test_idle_connections_without_a_token_keep_no_client_out(
    site: Server, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "_MAX_UNIDENTIFIED", 8)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(gate.connect()) for _ in range(20)]
        assert gate.ask(get(url(site), signed("ann"))).startswith(b"HTTP/1.1 200 OK\r\n")
        assert all(map(is_ended, idle[:12]))
        idle[-1].sendall(get(url(site), signed("bob")))  # not all: the newest still wait
        assert head_of(idle[-1]).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.requirement("NET-8")
def test_limit_of_connections_is_each_clients_own(house: House) -> None:
    server = house.server(echo, SITE)
    place = f"{SITE}:{server.port}"
    gate = open_gate(house, {"ann": [place], "bob": [place]}, max_connections=2)
    with gate.tunnel("ann", place), gate.tunnel("ann", place):
        refused = gate.ask(connect_request(place, signed("ann")))
        assert refusal_of(refused) == (429, "CW-NET-LIMIT")
        gate.tunnel("bob", place).close()


@pytest.mark.requirement("NET-8")
def test_limit_of_bytes_is_each_clients_own(house: House, site: Server) -> None:
    rule = f"{SITE}:{site.port}"
    gate = open_gate(house, {"ann": [rule], "bob": [rule]}, max_upload_bytes=500)
    long = get(url(site), "X-Long: " + "a" * 400)
    first, *others = (gate.ask(long[:-2] + f"{signed('ann')}\r\n\r\n".encode()) for _ in range(3))
    assert first.startswith(b"HTTP/1.1 200 OK\r\n")
    assert refusal_of(others[-1]) == (429, "CW-NET-LIMIT")
    assert gate.ask(get(url(site), signed("bob"))).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.requirement("NET-8")
def test_token_and_connections_end_with_the_session(house: House) -> None:
    server = house.server(echo, SITE)
    place = f"{SITE}:{server.port}"
    gate = open_gate(house, {"ann": [place], "bob": [place]})
    with gate.tunnel("ann", place) as ended, gate.tunnel("bob", place) as stays:
        gate.sessions["ann"].close()
        assert is_ended(ended)
        refused = gate.ask(connect_request(place, signed("ann")))
        assert refusal_of(refused) == (407, "CW-PROXY-TOKEN")
        stays.sendall(b"still here")
        assert stays.recv(100) == b"still here"
    gate.admit("ann", place)
    gate.tunnel("ann", place).close()


@pytest.mark.requirement("NET-8", "AUD-1")
def test_client_without_an_audit_record_reaches_nothing(
    house: House, site: Server, gate: Gate
) -> None:
    assert gate.ask(get(url(site), signed("ann"))).startswith(b"HTTP/1.1 200 OK\r\n")
    count = site.connections
    house.record.fails = True
    refused = gate.ask(get(url(site, OTHER), signed("bob")))
    assert refusal_of(refused) == (403, "CW-AUDIT-FAILED")
    assert site.connections == count


@pytest.mark.requirement("NET-8")
def test_port_without_a_token_serves_one_client_and_one_user(house: House, site: Server) -> None:
    rule = f"{SITE}:{site.port}"
    gate = open_gate(house, {"ann": [rule], "bob": [f"{OTHER}:{site.port}"]}, tokenless="ann")

    def ask(data: bytes) -> bytes:
        with socket.create_connection(gate.tokenless, timeout=WAIT_S) as sock:
            sock.sendall(data)
            return everything(sock)

    for headers in ((), (signed("bob"),), (signed("ann", "wrong"),)):
        reply = ask(get(url(site), *headers))
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"authorization" not in reply.lower()
    # A token does not change who the port stands for.
    assert refusal_of(ask(get(url(site, OTHER), signed("bob")))) == (403, "CW-NOT-ALLOWED")
    with socket.create_connection(gate.tokenless, timeout=WAIT_S) as sock:
        sock.sendall(socks_to(SITE.encode(), site.port) + get(url(site)).replace(b"http://", b"/"))
        assert b"HTTP/1.1 200 OK\r\n" in head_of(sock)
    assert ask(socks_to(OTHER.encode(), site.port))[3:4] == b"\x02"  # not allowed
    # A page in a browser can send such a request, and only such a one.
    assert refusal_of(ask(get(url(site)).replace(url(site).encode(), b"/")))[0] == 400
    if os.geteuid() == 0:
        assert _asked_by_another_user(gate.tokenless, get(url(site))) == (403, "CW-PROXY-USER")
    gate.sessions["ann"].close()
    assert refusal_of(ask(get(url(site)))) == (407, "CW-PROXY-TOKEN")


_AS_OTHER = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
sock = socket.create_connection((sys.argv[2], int(sys.argv[3])))
sock.sendall(sys.stdin.buffer.read())
while data := sock.recv(65536):
    sys.stdout.buffer.write(data)
"""


def _asked_by_another_user(address: tuple[str, int], data: bytes) -> tuple[int, str]:
    words = [sys.executable, "-I", "-S", "-c", _AS_OTHER, str(OTHER_UID), *map(str, address)]
    return refusal_of(subprocess.run(words, input=data, stdout=subprocess.PIPE, check=True).stdout)


def test_two_clients_cannot_have_one_name_and_no_gateway_serves_none(house: House) -> None:
    gate = open_gate(house, {"ann": [SITE]})
    with pytest.raises(BadInput, match="two clients"):
        gate.admit("ann", SITE)
    context = EgressContext(action_id="", principal="x", interface="test")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(BadInput, match="already listens"),
    ):
        gate.service.open_gateway(context, listener, tokenless={})
    gate.service = house.service()
    with pytest.raises(BadInput, match="no proxy listens"):
        gate.admit("ann", SITE)
