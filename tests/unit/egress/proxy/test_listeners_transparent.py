"""Programs that know no proxy: the cell's DNS, and connections to the addresses it gave out."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network

import dns.message
import dns.rcode
import pytest

from cellwall.egress.proxy.cell_network import ProxyNetwork
from unit.egress.loopback import (
    WAIT_S,
    Cell,
    House,
    echo,
    everything,
    final_bytes,
    refusal_of,
    repeat_requests,
)
from unit.egress.proxy.test_listeners import hello

INSIDE = IPv4Network("127.64.0.0/15")
"""Stands for 198.18.0.0/15: in a cell its init makes that local, here all of 127/8 is."""


@pytest.fixture(autouse=True)
def addresses_of_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellwall.egress.destinations.cell_dns.TRANSPARENT_NET", INSIDE)


def listen(network: ProxyNetwork, address: str, port: int) -> None:
    """On the port that the server outside has, as in a cell; loopback has it on each address."""
    network.adopt({f"tcp:{port}": socket.create_server((address, port))})


def name_server(network: ProxyNetwork) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.settimeout(WAIT_S)
    client.connect(server.getsockname())
    network.adopt({"dns": server})
    return client


def look_up(client: socket.socket, name: str, kind: str = "A") -> dns.message.Message:
    query = dns.message.make_query(name, kind)
    client.send(query.to_wire())
    reply = dns.message.from_wire(client.recv(4096))
    assert reply.id == query.id
    return reply


def address_of(reply: dns.message.Message) -> str:
    (rrset,) = reply.answer
    (record,) = rrset
    return str(record)


@pytest.mark.requirement("NET-7", "NET-2")
def test_allowed_name_has_an_address_inside_and_no_other_name_has(house: House) -> None:
    cell = house.cell("api.example.com", "*.wild.example.com")
    with name_server(cell.network) as client:
        found = [
            address_of(look_up(client, name)) for name in ("api.example.com", "API.example.com.")
        ]
        assert found[0] == found[1]
        assert IPv4Address(found[0]) in INSIDE
        assert address_of(look_up(client, "a.wild.example.com")) != found[0]
        assert look_up(client, "api.example.com", "AAAA").answer == []
        for name in (
            "evil.example.net",
            "wild.example.com",
            "example.com",
            "x" * 50 + ".wild.example.com",
        ):
            reply = look_up(client, name)
            assert (reply.answer, reply.rcode() == dns.rcode.NOERROR) == ([], False), name
    # Nothing was asked outside: a query is no way to carry something out.
    assert house.zone.asked == []
    cell.network.end()
    assert {(body["via"], body["code"]) for body in house.record.of("refused")} == {
        ("dns", "CW-NO-NAME")
    }
    assert cell.network.ports == (80, 443)
    assert cell.network.files["resolv.conf"].startswith(b"nameserver 127.0.0.1\n")


def looked_up(cell: Cell, name: str, port: int) -> tuple[str, int]:
    """Where a program would connect to, with somebody listening there."""
    with name_server(cell.network) as client:
        address = address_of(look_up(client, name))
    listen(cell.network, address, port)
    return address, port


@pytest.mark.requirement("NET-7")
def test_connection_to_the_address_of_a_name_reaches_the_host(house: House) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    place = looked_up(cell, "api.example.com", server.port)
    with socket.create_connection(place, timeout=WAIT_S) as sock:
        sock.sendall(b"hello")
        assert sock.recv(5) == b"hello", house.record.bodies
    listen(cell.network, "127.65.1.1", server.port)
    # A refusal is a reset, which may come before `connect` has seen that it was let in.
    with (
        suppress(ConnectionResetError),
        socket.create_connection(("127.65.1.1", server.port), timeout=WAIT_S) as sock,
    ):
        assert final_bytes(sock) == b""
    cell.network.end()
    assert server.connections == 1
    assert [body["via"] for body in house.record.of("opened")] == ["transparent"]
    assert [body["code"] for body in house.record.of("refused")] == ["CW-NO-ADDRESS"]


@pytest.mark.requirement("NET-7", "NET-6")
def test_tls_to_such_an_address_must_name_its_host(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = house.server(echo, "api.example.com")
    monkeypatch.setattr("cellwall.egress.proxy.tunnel._TLS_PORT", server.port)
    cell = house.cell(f"api.example.com:{server.port}")
    place = looked_up(cell, "api.example.com", server.port)
    with socket.create_connection(place, timeout=WAIT_S) as sock:
        sock.sendall(hello("api.example.com"))
        assert sock.recv(1) == b"\x16"
    with socket.create_connection(place, timeout=WAIT_S) as sock:
        sock.sendall(hello("evil.example.net"))
        assert everything(sock)[:1] == b"\x15"
    with socket.create_connection(place, timeout=WAIT_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert final_bytes(sock) == b""


@pytest.mark.requirement("NET-7", "NET-2")
def test_http_to_such_an_address_is_judged_by_request(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = house.server(repeat_requests, "api.example.com")
    for name in ("tunnel", "listeners"):
        monkeypatch.setattr(f"cellwall.egress.proxy.{name}._HTTP_PORT", server.port)
    cell = house.cell(f"GET api.example.com:{server.port}/v1", f"b.example.com:{server.port}")
    place = looked_up(cell, "api.example.com", server.port)

    def ask(path: str, host: str) -> bytes:
        with socket.create_connection(place, timeout=WAIT_S) as sock:
            lines = (f"GET {path} HTTP/1.1", f"Host: {host}:{server.port}", "Connection: close")
            sock.sendall("\r\n".join((*lines, "", "")).encode())
            return everything(sock)

    assert ask("/v1/x", "api.example.com").startswith(b"HTTP/1.1 200 ")
    assert refusal_of(ask("/v2", "api.example.com")) == (403, "CW-NOT-ALLOWED")
    assert refusal_of(ask("/v1", "b.example.com")) == (403, "CW-HOST-MISMATCH")
    assert server.connections == 1


def test_flood_of_queries_does_not_get_answers_without_end(house: House) -> None:
    cell = house.cell("api.example.com")
    query = dns.message.make_query("api.example.com", "A").to_wire()
    with name_server(cell.network) as client:
        assert look_up(client, "api.example.com").answer
        for _ in range(5000):
            client.send(query)
        cell.network.end()
        client.setblocking(False)
        count = 0
        try:
            while client.recv(4096):
                count += 1
        except OSError:
            pass
    assert count < 2000
