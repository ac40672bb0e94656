"""Services of this process behind the proxy: real clients, over TLS and without."""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
import threading
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cellwall.core.network import HostReply, HostRequest
from unit.egress.loopback import WAIT_S, Cell, House, final_bytes, get, is_ended, refusal_of

HOST = "registry.example"


class Service:
    """Answers with what was asked, or with a file."""

    hosts = frozenset({HOST})
    offered = MappingProxyType[str, bytes]({})

    def __init__(self, file: Path | None = None, start: int = 0, size: int | None = None) -> None:
        self.file, self.start, self.size = file, start, size
        self.opened: list[Any] = []
        self.asked: list[HostRequest] = []
        self.is_over = False
        self.waits = False
        self.began = threading.Semaphore(0)
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def accept(self, _context: Any, _report: Any) -> Any:
        return None if self.is_over else self.answer

    async def answer(self, asked: HostRequest) -> HostReply:
        self.asked.append(asked)
        gate = asyncio.Event()
        self._waiting.append((asyncio.get_running_loop(), gate))
        self.began.release()
        if self.waits:
            await gate.wait()
        if self.file is None:
            sent = dict(asked.headers)
            body = f"{asked.method} {asked.scheme}://{asked.host}{asked.path} ".encode()
            body += sent.get(b"accept", b"")
            return HostReply(200, "text/plain", body, size=len(body), headers=(("etag", '"1"'),))
        stream = self.file.open("rb")
        self.opened.append(stream)
        size = self.file.stat().st_size - self.start if self.size is None else self.size
        return HostReply(
            200, "application/octet-stream", stream=stream, start=self.start, size=size
        )

    def go_on(self) -> None:
        self.waits = False
        for loop, gate in self._waiting:
            loop.call_soon_threadsafe(gate.set)

    async def close(self) -> None:
        pass


def cell_with(house: House, service: Service, **changes: Any) -> Cell:
    return house.cell(services={"here": service}, **changes)


def client_of(house: House, cell: Cell, *, tls: bool = True) -> http.client.HTTPConnection:
    client = http.client.HTTPConnection(HOST)
    if tls:
        client.sock = cell.trust().wrap_socket(cell.tunnel(HOST, 443), server_hostname=HOST)
    else:
        client.sock = cell.connect()
    house.stack.callback(client.close)
    return client


def ask(client: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str) -> Any:
    is_plain = type(client.sock) is socket.socket
    client.request(method, f"http://{HOST}{path}" if is_plain else path, headers=headers)
    return client.getresponse()


@pytest.mark.requirement("NET-2", "AUD-1")
@pytest.mark.parametrize("tls", [True, False])
def test_requests_are_answered_on_one_connection_and_on_record(house: House, tls: bool) -> None:
    cell = cell_with(house, Service())
    client = client_of(house, cell, tls=tls)
    scheme = "https" if tls else "http"
    for path in ("/a?b=c", "/%2f", "/x"):
        reply = ask(client, path, Accept="a/b")
        assert reply.read() == f"GET {scheme}://{HOST}{path} a/b".encode()
        assert (reply.headers["content-type"], reply.headers["etag"]) == ("text/plain", '"1"')
    head = ask(client, "/y", "HEAD")
    assert (head.read(), int(head.headers["content-length"]) > 0) == (b"", True)
    assert ask(client, "/z").read().startswith(b"GET ")
    client.close()
    cell.network.end()
    opened, closed = house.record.bodies
    facts = {"connection": 1, "host": HOST, "port": 443 if tls else 80}
    assert {**opened, **facts} == opened
    assert (opened["event"], opened["addresses"]) == ("opened", [])
    assert (closed["event"], closed["requests"]) == ("closed", 5)
    assert closed["bytes_up"] > 100
    assert closed["bytes_down"] > 500


def test_clients_at_the_same_time_share_one_record_that_counts_for_all(house: House) -> None:
    service = Service()
    service.waits = True
    cell = cell_with(house, service)
    clients = [client_of(house, cell) for _ in range(4)]
    for client in clients:
        client.request("GET", "/x")
    for _ in clients:
        assert service.began.acquire(timeout=WAIT_S)
    service.go_on()
    assert {client.getresponse().read() for client in clients} == {
        f"GET https://{HOST}/x ".encode()
    }
    for client in clients:
        client.close()
    cell.network.end()
    assert [body["event"] for body in house.record.bodies] == ["opened", "closed"]
    assert house.record.of("closed")[0]["requests"] == len(clients)
    assert cell.network.usage.connections == 1


def test_one_of_two_clients_that_leaves_does_not_end_the_connection(house: House) -> None:
    cell = cell_with(house, Service())
    leaves, stays = client_of(house, cell), client_of(house, cell)
    for client in (leaves, stays):
        assert ask(client, "/x").read()
    leaves.close()
    assert ask(stays, "/y").read()
    stays.close()
    cell.network.end()
    assert [body.get("requests") for body in house.record.bodies] == [None, 3]


@pytest.mark.requirement("AUD-1")
def test_without_a_record_the_service_is_not_asked(house: House) -> None:
    service = Service()
    cell = cell_with(house, service)
    house.record.fails = True
    answer = cell.ask(get(f"http://{HOST}/x"))
    assert refusal_of(answer)[1] == "CW-AUDIT-FAILED"
    assert service.asked == []


def test_a_service_that_does_not_answer_in_time_is_refused(house: House) -> None:
    service = Service()
    service.waits = True
    cell = cell_with(house, service, idle_timeout_s=0.1)
    assert refusal_of(cell.ask(get(f"http://{HOST}/x"))) == (504, "CW-LATE")
    service.waits = False
    assert cell.ask(get(f"http://{HOST}/x")).startswith(b"HTTP/1.1 200 ")


def test_a_session_that_has_ended_gets_no_answer(house: House) -> None:
    service = Service()
    service.is_over = True
    cell = cell_with(house, service)
    assert refusal_of(cell.ask(get(f"http://{HOST}/x"))) == (502, "CW-BAD-RESPONSE")
    assert service.asked == []
    service.is_over = False
    assert cell.ask(get(f"http://{HOST}/x")).startswith(b"HTTP/1.1 200 ")


def test_the_end_of_a_cell_ends_what_the_service_does_for_it(house: House) -> None:
    service = Service()
    service.waits = True
    cell = cell_with(house, service)
    client = client_of(house, cell)
    client.request("GET", "/x")
    assert service.began.acquire(timeout=WAIT_S)
    cell.network.end()
    assert is_ended(client.sock)
    assert [body["event"] for body in house.record.bodies] == ["opened", "closed"]


def test_a_body_is_refused_by_the_method_or_ends_the_connection(house: House) -> None:
    service = Service()
    cell = cell_with(house, service)
    client = client_of(house, cell)
    assert ask(client, "/x", "POST").status == 403
    client.close()
    client = client_of(house, cell)
    client.request("GET", "/x", body=b"abc")
    assert client.getresponse().read()
    # The body comes later, or never: the answer arrives, and the connection ends.
    with cell.connect() as sock:
        sock.sendall(
            f"GET http://{HOST}/y HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: 5\r\n\r\n".encode()
        )
        assert final_bytes(sock).startswith(b"HTTP/1.1 200 ")
    assert [each.path for each in service.asked] == ["/x", "/y"]


@pytest.mark.parametrize("size", [0, 10, 65_536, 65_537, 3_000_000])
@pytest.mark.parametrize("tls", [True, False])
def test_a_part_of_a_file_is_sent_whole_and_the_file_closed(
    house: House, tmp_path: Path, size: int, tls: bool
) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(random.Random(size).randbytes(size + 7))
    service = Service(path, start=7)
    cell = cell_with(house, service)
    client = client_of(house, cell, tls=tls)
    for _ in range(2):
        assert ask(client, "/x").read() == path.read_bytes()[7:]
    cell.network.end()
    assert [stream.closed for stream in service.opened] == [True, True]


@pytest.mark.parametrize("size", [20, 3_000_000])
def test_a_file_that_was_cut_ends_the_connection_before_the_whole_answer(
    house: House, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(b"x" * (size // 2))
    service = Service(path, size=size)
    cell = cell_with(house, service)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(client_of(house, cell, tls=False), "/x").read()
    cell.network.end()
    assert service.opened[0].closed
    assert house.record.of("refused")[0]["code"] == "CW-BAD-RESPONSE"


def test_a_client_that_leaves_in_the_middle_closes_the_file(house: House, tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(bytes(30_000_000))
    service = Service(path)
    cell = cell_with(house, service)
    client = client_of(house, cell)
    client.request("GET", "/x")
    client.sock.recv(10)
    client.close()
    cell.network.end()
    assert service.opened[0].closed


@pytest.mark.requirement("NET-3")
def test_answers_count_for_the_download_limit_of_the_session(house: House, tmp_path: Path) -> None:
    path = tmp_path / "artifact"
    path.write_bytes(bytes(300_000))
    cell = cell_with(house, Service(path), max_download_bytes=400_000)
    assert len(cell.ask(get(f"http://{HOST}/x"))) > 300_000
    with cell.connect() as sock:
        sock.sendall(get(f"http://{HOST}/x"))
        assert len(final_bytes(sock)) < 100_000
    assert refusal_of(cell.ask(get(f"http://{HOST}/x"))) == (429, "CW-NET-LIMIT")
    assert cell.network.usage.bytes_down == 400_000
