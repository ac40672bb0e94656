"""The proxy's door, with real sockets, servers and DNS: who gets in, where to, and what is told."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import need
from unit.egress.loopback import (
    WAIT_S,
    House,
    echo,
    everything,
    final_bytes,
    get,
    head_of,
    is_ended,
    refusal_of,
    repeat_requests,
)


def connect_to(host: str, port: int) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode("latin-1")


def socks_to(host: bytes, port: int, *, command: int = 1) -> bytes:
    request = bytes([5, command, 0, 3, len(host)]) + host + port.to_bytes(2, "big")
    return b"\x05\x01\x00" + request


@pytest.mark.requirement("NET-2", "AUD-1")
def test_plain_request_reaches_an_allowed_host_and_is_on_record(house: House) -> None:
    server = house.server(repeat_requests, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    authority = f"api.example.com:{server.port}"
    answer = cell.ask(get(f"http://{authority}/a?b=c", "X-Mine: 1", "Proxy-Secret: no"))
    asked = f"GET /a?b=c HTTP/1.1\r\nhost: {authority}\r\nx-mine: 1\r\n\r\n".encode()
    assert answer.partition(b"\r\n\r\n")[2] == asked
    cell.network.end()
    facts = {
        "connection": 1,
        "host": "api.example.com",
        "port": server.port,
        "rule": authority,
        "via": "http",
    }
    opened, closed = house.record.bodies
    assert opened == {
        "event": "opened",
        **facts,
        "addresses": ["127.0.0.1"],
        "tls_opened": False,
    }
    assert closed.pop("duration_s") >= 0
    assert closed == {
        "event": "closed",
        **facts,
        "address": "127.0.0.1",
        "bytes_up": len(asked),
        "bytes_down": len(answer) - len(b"Connection: close\r\n"),
        "requests": 1,
    }
    assert {context.principal for context in house.record.travellers} == {"somebody"}


@pytest.mark.requirement("NET-2")
def test_tunnel_carries_any_bytes_on_a_port_that_was_allowed_by_number(house: House) -> None:
    server = house.server(echo, "raw.example.com")
    cell = house.cell(f"raw.example.com:{server.port}")
    with cell.tunnel("raw.example.com", server.port) as sock:
        sock.sendall(b"\x00hello\xff")
        assert sock.recv(100) == b"\x00hello\xff"
        sock.shutdown(socket.SHUT_WR)
        assert everything(sock) == b""
    cell.network.end()
    assert [(body["bytes_up"], body["bytes_down"]) for body in house.record.of("closed")] == [
        (7, 7)
    ]


@pytest.mark.requirement("NET-2", "ERR-1")
def test_host_that_nobody_allowed_is_refused_before_it_is_looked_up(house: House) -> None:
    server = house.server(echo, "api.example.com", "evil.example.net")
    cell = house.cell(f"api.example.com:{server.port}")
    answers = [
        cell.ask(connect_to("evil.example.net", server.port)),
        cell.ask(get(f"http://evil.example.net:{server.port}/")),
    ]
    assert [refusal_of(answer) for answer in answers] == [(403, "CW-NOT-ALLOWED")] * 2
    told = json.loads(answers[0].partition(b"\r\n\r\n")[2])["error"]
    assert f"--allow-domain evil.example.net:{server.port}" in told["hint"]
    assert cell.ask(socks_to(b"evil.example.net", server.port)) == b"\x05\x00" + bytes(
        [5, 2, 0, 1, 0, 0, 0, 0, 0, 0]
    )
    assert (house.zone.asked, server.connections) == ([], 0)
    cell.network.end()
    assert [(body["event"], body["host"], body["via"]) for body in house.record.bodies] == [
        ("refused", "evil.example.net", "connect"),
        ("refused", "evil.example.net", "http"),
        ("refused", "evil.example.net", "socks"),
    ]
    # The same client, to the host that is allowed.
    cell = house.cell(f"api.example.com:{server.port}")
    cell.tunnel("api.example.com", server.port).close()


TRICKS = (
    "2130706433",
    "127.1",
    "0x7f.1",
    "0177.0.0.1",
    "[::ffff:127.0.0.1]",
    "[::1%25lo]",
    "api.example.com@evil.example.net",
    "evilapi.example.com",
    "api.example.com.evil.example.net",
    "api.example.com\x00.evil.example.net",
    "api.example.com%00.evil.example.net",
    "api.example.com\t",
    "api.example.com..",
    "127.0.0.1",
)


@pytest.mark.requirement("NET-2")
def test_tricks_with_the_name_do_not_get_through(house: House) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    for host in TRICKS:
        for data in (connect_to(host, server.port), get(f"http://{host}:{server.port}/")):
            assert refusal_of(cell.ask(data))[0] in (400, 403), host
        answer = cell.ask(socks_to(host.encode(), server.port))
        assert (answer[:3], answer[3:4] != b"\x00") == (b"\x05\x00\x05", True), host
    assert (house.zone.asked, server.connections) == ([], 0)
    # What differs in spelling only is the same host.
    cell.tunnel("API.Example.COM.", server.port).close()


@pytest.mark.requirement("NET-3")
def test_name_that_leads_to_a_forbidden_address_is_refused(house: House) -> None:
    server = house.server(echo, "api.example.com")
    bad = (["169.254.169.254"], ["10.0.0.1"], ["127.0.0.1", "169.254.169.254"])
    for number, addresses in enumerate(bad):
        house.zone.names[f"bad{number}.example.com"] = addresses
    cell = house.cell(f"*.example.com:{server.port}")
    for number in range(len(bad)):
        answer = cell.ask(connect_to(f"bad{number}.example.com", server.port))
        assert refusal_of(answer) == (403, "CW-ADDRESS")
    assert server.connections == 0
    cell.tunnel("api.example.com", server.port).close()


@pytest.mark.requirement("NET-3")
def test_address_that_was_checked_is_the_one_dialled_when_the_answer_changes(house: House) -> None:
    server = house.server(echo, "api.example.com")
    answers: Iterator[list[str]] = iter((["127.0.0.1"], ["169.254.169.254"]))
    house.zone.names["api.example.com"] = lambda: next(answers)
    cell = house.cell(f"api.example.com:{server.port}")
    with cell.tunnel("api.example.com", server.port) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    assert house.zone.asked == ["api.example.com"]
    # The changed answer is checked as the first one was.
    again = house.cell(f"api.example.com:{server.port}")
    answer = again.ask(connect_to("api.example.com", server.port))
    assert refusal_of(answer) == (403, "CW-ADDRESS")
    assert (server.connections, next(answers, None)) == (1, None)


@pytest.mark.requirement("NET-3")
def test_loopback_is_refused_unless_somebody_dangerously_allowed_it(house: House) -> None:
    server = house.server(echo, "api.example.com")
    rule = f"api.example.com:{server.port}"
    refusing = house.cell(rule, dangerously_allow_addresses=())
    answer = refusing.ask(connect_to("api.example.com", server.port))
    assert refusal_of(answer) == (403, "CW-ADDRESS")
    house.cell(rule).tunnel("api.example.com", server.port).close()


@pytest.mark.requirement("NET-2")
def test_name_without_an_address_and_host_that_does_not_answer_are_told_apart(
    house: House,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    house.zone.names["down.example.com"] = ["127.0.0.1"]
    cell = house.cell(f"down.example.com:{port}", f"none.example.com:{port}")
    assert refusal_of(cell.ask(connect_to("down.example.com", port))) == (502, "CW-UNREACHABLE")
    assert refusal_of(cell.ask(connect_to("none.example.com", port))) == (502, "CW-NO-ADDRESS")
    cell.network.end()
    events = [(body["event"], body.get("code")) for body in house.record.bodies]
    assert events[:2] == [("opened", None), ("closed", "CW-UNREACHABLE")]


@pytest.mark.requirement("NET-2")
def test_socks_client_gets_through_with_a_name_and_is_told_what_is_not_served(
    house: House,
) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    with cell.connect() as sock:
        sock.sendall(socks_to(b"api.example.com", server.port) + b"early")
        expected = b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6) + b"early"
        data = b""
        while len(data) < len(expected):
            data += sock.recv(100)
        assert data == expected
    udp = cell.ask(socks_to(b"api.example.com", server.port, command=3))
    assert udp == b"\x05\x00" + bytes([5, 7, 0, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.requirement("AUD-1")
def test_connection_that_cannot_be_recorded_is_not_made(house: House) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    cell.tunnel("api.example.com", server.port).close()
    house.record.fails = True
    answer = cell.ask(connect_to("api.example.com", server.port))
    assert refusal_of(answer) == (403, "CW-AUDIT-FAILED")
    assert server.connections == 1


def test_refusals_beyond_some_in_a_second_are_counted_and_told_as_one(house: House) -> None:
    cell = house.cell("api.example.com")
    for _ in range(60):
        cell.ask(connect_to("evil.example.net", 443))
    cell.network.end()
    told = len(house.record.of("refused"))
    counted = [body["count"] for body in house.record.of("refused-more")]
    assert told < 60
    assert told + sum(counted) == 60


@pytest.mark.requirement("NET-2")
def test_client_that_does_not_finish_its_first_message_is_ended(house: House) -> None:
    server = house.server(repeat_requests, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}", head_timeout_s=0.2)
    beginnings = (b"", b"G", b"GET http://api.example.com/ HTTP/1.1\r\nHost: a", b"\x05", b"\x16")
    sockets = [cell.connect() for _ in beginnings]
    for sock, data in zip(sockets, beginnings, strict=True):
        sock.sendall(data)
    for sock in sockets:
        final_bytes(sock)  # a time-out of the test if there were no end
        sock.close()
    assert server.connections == 0
    answer = cell.ask(get(f"http://api.example.com:{server.port}/"))
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_tunnel_in_which_nothing_moves_is_ended(house: House) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}", idle_timeout_s=0.2)
    with cell.tunnel("api.example.com", server.port) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        assert is_ended(sock)
    cell.network.end()
    assert [body["code"] for body in house.record.of("closed")] == ["CW-LATE"]


@pytest.mark.requirement("NET-2")
def test_one_connection_too_many_is_told_so_and_room_comes_back(house: House) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}", max_connections=2)
    held = [cell.tunnel("api.example.com", server.port) for _ in range(2)]
    request = connect_to("api.example.com", server.port)
    assert refusal_of(cell.ask(request)) == (429, "CW-NET-LIMIT")
    assert cell.ask(socks_to(b"api.example.com", server.port))[3:4] not in (b"", b"\x00")
    for sock in held:
        sock.close()
    for _ in range(1000):
        with cell.connect() as sock:
            sock.sendall(request)
            if head_of(sock).startswith(b"HTTP/1.1 200 "):
                return
    pytest.fail("no room came back")


class Full(socket.socket):
    """A listening socket of a process that has no descriptors left, for a while."""

    refusals = 3
    attempts = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.attempts += 1
        if self.attempts <= self.refusals:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_lack_of_descriptors_is_waited_out_and_not_asked_for_again_at_once(house: House) -> None:
    server = house.server(repeat_requests, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    listener = Full()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    cell.proxy = listener.getsockname()
    cell.network.adopt({"proxy": listener})
    answer = cell.ask(get(f"http://api.example.com:{server.port}/"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    # Once more for each pause, and one that finds the queue empty.
    assert listener.attempts == Full.refusals + 2


def test_connections_in_total_are_bounded(house: House) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}", max_total_connections=1)
    cell.tunnel("api.example.com", server.port).close()
    answer = cell.ask(connect_to("api.example.com", server.port))
    assert refusal_of(answer) == (429, "CW-NET-LIMIT")


@pytest.mark.requirement("NET-6")
def test_tls_must_name_the_host_that_was_asked_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = house.server(echo, "api.example.com", "other.example.com")
    monkeypatch.setattr("cellwall.egress.proxy.tunnel._TLS_PORT", server.port)
    cell = house.cell(f"api.example.com:{server.port}", f"other.example.com:{server.port}")
    good = hello("api.example.com")
    with cell.tunnel("api.example.com", server.port) as sock:
        sock.sendall(good[:20])
        sock.sendall(good[20:])
        data = b""
        while len(data) < len(good):
            data += sock.recv(65536)
        assert data == good
    for bad in (hello("other.example.com"), hello(None), b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x"):
        with cell.tunnel("api.example.com", server.port) as sock:
            sock.sendall(bad)
            alert = b"\x15\x03\x03\x00\x02\x02\x31" if bad[0] == 0x16 else b""
            assert final_bytes(sock) == alert
    cell.network.end()
    assert [body["code"] for body in house.record.of("refused")] == [
        "CW-SNI",
        "CW-SNI",
        "CW-NOT-TLS",
        "CW-NOT-TLS",
    ]
    passed = [body["bytes_down"] for body in house.record.of("closed")]
    # The client of the first goes away, and that may be noticed after the second was refused.
    assert sorted(passed, reverse=True) == [len(good), 0, 0, 0, 0]


@pytest.mark.requirement("NET-6")
def test_tls_on_a_port_of_its_own_must_name_the_host_too(house: House) -> None:
    server = house.server(echo, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    with cell.tunnel("api.example.com", server.port) as sock:
        sock.sendall(hello("other.example.com"))
        assert everything(sock)[:1] == b"\x15"
    with cell.tunnel("api.example.com", server.port) as sock:
        sock.sendall(hello("api.example.com"))
        assert sock.recv(1) == b"\x16"


def test_server_that_speaks_first_is_heard_before_the_client_says_anything(house: House) -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(b"220 ready\r\n")
        sock.sendall(sock.recv(100))

    server = house.server(greet, "mail.example.com")
    cell = house.cell(f"mail.example.com:{server.port}")
    with cell.tunnel("mail.example.com", server.port) as sock:
        assert sock.recv(100) == b"220 ready\r\n"
        sock.sendall(b"HELO")
        assert sock.recv(100) == b"HELO"


def test_service_that_ends_in_the_middle_of_a_transfer_cuts_it_with_an_error(house: House) -> None:
    def pour(sock: socket.socket) -> None:
        while True:
            sock.sendall(bytes(65536))

    server = house.server(pour, "api.example.com")
    cell = house.cell(f"api.example.com:{server.port}")
    with cell.tunnel("api.example.com", server.port) as sock:
        assert sock.recv(1) == b"\x00"
        cell.service.close()
        with pytest.raises(ConnectionResetError):
            everything(sock)
    with pytest.raises(OSError, match=r"refused|reset"):
        cell.connect()
    closed = house.record.of("closed")
    assert len(closed) == 1
    assert closed[0]["bytes_down"] > 0


@pytest.mark.requirement("NET-2")
@pytest.mark.slow
def test_a_thousand_connections_at_once_all_work(house: House) -> None:
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need(hard == resource.RLIM_INFINITY or hard >= 6000, "6000 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    port = _echo_for_many(house)
    house.zone.names["api.example.com"] = ["127.0.0.1"]
    # All share one look-up, whose answer waits its turn behind the work for all of them: on a busy
    # machine longer than `WAIT_S`, and the name would have no address.
    waits = ("connect_timeout_s", "head_timeout_s", "idle_timeout_s")
    patience = dict.fromkeys(waits, 10 * WAIT_S)
    cell = house.cell(f"api.example.com:{port}", max_connections=count, **patience)
    sockets = [cell.connect() for _ in range(count)]
    try:
        for sock in sockets:
            sock.settimeout(10 * WAIT_S)
        for sock in sockets:
            sock.sendall(connect_to("api.example.com", port))
        for sock in sockets:
            assert head_of(sock).startswith(b"HTTP/1.1 200 ")
        for number, sock in enumerate(sockets):
            sock.sendall(b"%04d" % number)
        assert [sock.recv(4) for sock in sockets] == [b"%04d" % n for n in range(count)]
        assert refusal_of(cell.ask(connect_to("api.example.com", port))) == (429, "CW-NET-LIMIT")
    finally:
        for sock in sockets:
            sock.close()
    cell.network.end()
    assert len(house.record.of("closed")) == count


def _echo_for_many(house: House) -> int:
    """A server of one thread: a thread for each of a thousand connections would be the test."""
    listener = house.stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
    stop, stopped = socket.socketpair()
    house.stack.enter_context(stop)

    def serve() -> None:
        poll = select.epoll()
        poll.register(listener, select.EPOLLIN)
        poll.register(stopped, select.EPOLLIN)
        open_now: dict[int, socket.socket] = {}
        while True:
            for number, _ in poll.poll(WAIT_S):
                if number == stopped.fileno():
                    for sock in (*open_now.values(), stopped):
                        sock.close()
                    poll.close()
                    return
                if number == listener.fileno():
                    sock, _address = listener.accept()
                    open_now[sock.fileno()] = sock
                    poll.register(sock, select.EPOLLIN)
                elif data := open_now[number].recv(65536):
                    open_now[number].sendall(data)
                else:
                    open_now.pop(number).close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    house.stack.callback(thread.join, WAIT_S)
    house.stack.callback(stop.close)
    return int(listener.getsockname()[1])


def hello(name: str | None) -> bytes:
    """What OpenSSL says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()
