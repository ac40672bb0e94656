"""Requests and answers through the proxy, against real servers: framing, rules, leaks, upgrades."""

from __future__ import annotations

import gzip
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from unit.egress.loopback import (
    WAIT_S,
    Cell,
    House,
    Known,
    answer,
    everything,
    final_bytes,
    get,
    head_of,
    refusal_of,
    repeat_requests,
    request_of,
)

HOST = "api.example.com"
SECRET = b"correct-horse-battery-staple-42"


def served(house: House, talk: Callable[[socket.socket], None], **changes: Any) -> tuple[Cell, str]:
    """A cell that may reach a server, and the server's URL."""
    server = house.server(talk, HOST)
    return house.cell(f"{HOST}:{server.port}", **changes), f"http://{HOST}:{server.port}"


def body_of(reply: bytes) -> bytes:
    return reply.partition(b"\r\n\r\n")[2]


def connect(host: str, port: int) -> bytes:
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


def post(url: str, body: bytes, *headers: str) -> bytes:
    return get(url, f"Content-Length: {len(body)}", *headers, method="POST") + body


def test_requests_share_a_connection_on_both_sides(house: House) -> None:
    server = house.server(repeat_requests, HOST, "other.example.com")
    cell = house.cell(f"{HOST}:{server.port}", f"other.example.com:{server.port}")
    with cell.connect() as sock:
        for number, host in enumerate((HOST, HOST, HOST, "other.example.com")):
            url = f"http://{host}:{server.port}/{number}"
            sock.sendall(get(url).replace(b"Connection: close\r\n", b""))
            head, body = request_of(sock)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert body.startswith(b"GET /%d HTTP/1.1\r\nhost: %s" % (number, host.encode()))
    cell.network.end()
    assert server.connections == 2
    assert [body["requests"] for body in house.record.of("closed")] == [3, 1]


def test_connection_that_is_left_over_serves_the_next_client_of_the_session_only(
    house: House,
) -> None:
    server = house.server(repeat_requests, HOST)
    cells = [house.cell(f"{HOST}:{server.port}") for _ in range(2)]
    for cell in cells:
        for _ in range(3):
            assert cell.ask(get(f"http://{HOST}:{server.port}/")).startswith(b"HTTP/1.1 200 ")
    assert server.connections == 2
    for cell in cells:
        cell.network.end()
    assert [body["requests"] for body in house.record.of("closed")] == [3, 3]


def test_connection_that_nobody_uses_again_is_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def talk(sock: socket.socket) -> None:
        repeat_requests(sock)
        ended.set()

    monkeypatch.setattr("cellwall.egress.limits._KEPT_S", 0.05)
    cell, url = served(house, talk)
    assert cell.ask(get(url + "/")).startswith(b"HTTP/1.1 200 ")
    assert ended.wait(WAIT_S)


def test_answer_that_came_before_its_request_is_given_to_nobody(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        request_of(sock)
        sock.sendall(answer(b"first") + answer(b"smuggled"))
        request_of(sock)
        sock.sendall(answer(b"second"))

    server = house.server(talk, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    replies = [body_of(cell.ask(get(f"http://{HOST}:{server.port}/"))) for _ in range(3)]
    assert replies == [b"first"] * 3
    assert server.connections == 3


def test_requests_sent_ahead_are_answered_in_their_order(house: House) -> None:
    cell, url = served(house, repeat_requests)
    ahead = get(f"{url}/1").replace(b"Connection: close\r\n", b"")
    reply = cell.ask(ahead + get(f"{url}/2"))
    assert reply.count(b"HTTP/1.1 200 ") == 2
    assert reply.index(b"GET /1 ") < reply.index(b"GET /2 ")


def test_bodies_in_chunks_go_both_ways_and_trailers_go_nowhere(house: House) -> None:
    got: list[bytes] = []

    def talk(sock: socket.socket) -> None:
        head = head_of(sock)
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += sock.recv(65536)
        got.append(head + data)
        sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        sock.sendall(b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n")

    cell, url = served(house, talk)
    request = get(url + "/", "Transfer-Encoding: chunked", method="POST")
    with cell.connect() as sock:
        sock.sendall(request + b"5\r\nhello\r\n")
        sock.sendall(b"6\r\n world\r\n0\r\n\r\n")
        reply = everything(sock)
    assert b"\r\ntransfer-encoding: chunked\r\n" in got[0].lower()
    assert unchunked(body_of(got[0])) == b"hello world"
    assert unchunked(body_of(reply)) == b"abcde"
    assert b"trailer" not in reply.lower()


def unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return found


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answer_without_a_body_ends_with_its_head(house: House, status: bytes) -> None:
    def talk(sock: socket.socket) -> None:
        while head_of(sock):
            sock.sendall(b"HTTP/1.1 %s\r\nETag: x\r\n\r\n" % status)

    cell, url = served(house, talk)
    reply = cell.ask(get(url + "/"))
    assert reply.startswith(b"HTTP/1.1 %s\r\n" % status)
    assert body_of(reply) == b""


def test_answer_to_head_keeps_its_length_and_has_no_body(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        while head_of(sock):
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")

    cell, url = served(house, talk)
    reply = cell.ask(get(url + "/", method="HEAD"))
    assert b"content-length: 1000\r\n" in reply.lower()
    assert body_of(reply) == b""


def test_answer_that_ends_with_its_connection_reaches_old_and_new_clients(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    cell, url = served(house, talk)
    assert unchunked(body_of(cell.ask(get(url + "/")))) == b"all of it"
    old = get(url + "/").replace(b"HTTP/1.1", b"HTTP/1.0")
    assert body_of(cell.ask(old)) == b"all of it"


def test_client_that_waits_for_continue_is_told_to_go_on(house: House) -> None:
    cell, url = served(house, repeat_requests)
    head = get(f"{url}/", "Content-Length: 5", "Expect: 100-continue", method="PUT")
    with cell.connect() as sock:
        sock.sendall(head)
        assert head_of(sock) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"hello")
        reply = everything(sock)
    assert body_of(reply).endswith(b"\r\n\r\nhello")
    assert b"expect" not in body_of(reply)
    # Who is refused is not asked for the body.
    with cell.connect() as sock:
        sock.sendall(head.replace(HOST.encode(), b"evil.example.net"))
        assert refusal_of(everything(sock)) == (403, "CW-NOT-ALLOWED")


def test_server_may_answer_before_it_has_read_everything(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        sock.shutdown(socket.SHUT_WR)
        everything(sock)

    cell, url = served(house, talk)
    with cell.connect() as sock:
        sock.sendall(get(f"{url}/", "Content-Length: 1000000", method="POST") + bytes(1000))
        assert head_of(sock).startswith(b"HTTP/1.1 413 ")
        assert final_bytes(sock) == b"no"


def test_kept_connection_that_the_server_has_closed_is_replaced(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        request_of(sock)
        sock.sendall(answer(b"once"))

    server = house.server(talk, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    request = get(f"http://{HOST}:{server.port}/").replace(b"Connection: close\r\n", b"")
    with cell.connect() as sock:
        for _ in range(3):
            sock.sendall(request)
            assert request_of(sock)[1] == b"once"
    assert server.connections == 3


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", (502, "CW-BAD-RESPONSE")),
        (b"HTTP/1.1 200", (502, "CW-BAD-RESPONSE")),
        (b"SSH-2.0-hello\r\n\r\n", (502, "CW-BAD-RESPONSE")),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            (502, "CW-BAD-RESPONSE"),
        ),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
            (502, "CW-BAD-RESPONSE"),
        ),
    ],
)
def test_answer_that_cannot_be_trusted_is_not_passed_on(
    house: House, said: bytes, expected: tuple[int, str]
) -> None:
    def talk(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(said)

    cell, url = served(house, talk)
    assert refusal_of(cell.ask(get(url + "/"))) == expected


def test_answer_that_is_cut_short_ends_with_an_error(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    cell, url = served(house, talk)
    with cell.connect() as sock:
        sock.sendall(get(url + "/"))
        assert head_of(sock).startswith(b"HTTP/1.1 200 ")
        with pytest.raises(ConnectionResetError):
            everything(sock)


SMUGGLED = {
    "both lengths": "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil",
    "two lengths": "Content-Length: 0\r\nContent-Length: 5\r\n\r\nGET /",
    "a coding by another name": "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a folded line": "X: a\r\n Transfer-Encoding: chunked\r\n\r\n",
    "a bare line feed": "X: a\nTransfer-Encoding: chunked\r\n\r\n",
    "a bare carriage return": "X: a\rTransfer-Encoding: chunked\r\n\r\n",
    "a space before the colon": "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a NUL": "X: a\x00b\r\n\r\n",
    "another host": "Host: evil.example.net\r\n\r\n",
    "a length with a sign": "Content-Length: +5\r\n\r\nGET /",
    "a chunk with an extension": "Transfer-Encoding: chunked\r\n\r\n0;a\nb\r\n\r\n",
    "a header taken away": "Connection: host\r\n\r\n",
}


@pytest.mark.requirement("NET-2")
def test_what_two_readers_could_read_differently_reaches_no_server(house: House) -> None:
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"{HOST}:{server.port}")
    start = f"POST http://{HOST}:{server.port}/ HTTP/1.1\r\nHost: {HOST}:{server.port}\r\n"
    for name, rest in SMUGGLED.items():
        reply = cell.ask((start + rest).encode("latin-1"))
        assert refusal_of(reply) == (400, "CW-BAD-REQUEST"), name
    assert server.connections == 0
    good = cell.ask((start + "Content-Length: 5\r\nConnection: close\r\n\r\nGET /").encode())
    assert body_of(good).endswith(b"\r\n\r\nGET /")


@pytest.mark.requirement("NET-2")
def test_method_and_path_rules_hold_for_every_request_of_a_connection(house: House) -> None:
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"GET {HOST}:{server.port}/v1", f"POST {HOST}:{server.port}/v2/put")
    url = f"http://{HOST}:{server.port}"
    refused = [
        get(f"{url}/"),
        get(f"{url}/v1x"),
        get(f"{url}/v1", method="DELETE"),
        get(f"{url}/v1", "X-HTTP-Method-Override: DELETE"),
        get(f"{url}/v1/../admin"),
        get(f"{url}/v1/..%2fadmin"),
        get(f"{url}/v1/%2e%2e/admin"),
        get(f"{url}/v1//../admin"),
        get(f"{url}/v1/..;/admin"),
        post(f"{url}/v1", b"x"),
    ]
    for request in refused:
        assert refusal_of(cell.ask(request)) == (403, "CW-NOT-ALLOWED"), request
    assert server.connections == 0
    ahead = get(f"{url}/v1/things?a=..").replace(b"Connection: close\r\n", b"")
    reply = cell.ask(ahead + get(f"{url}/admin"))
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b"CW-NOT-ALLOWED" in reply
    assert b"GET /admin" not in reply
    assert cell.ask(post(f"{url}/v2/put", b"x")).startswith(b"HTTP/1.1 200 ")


def leaks(url: str) -> dict[str, bytes]:
    hidden = SECRET.hex()
    half = len(SECRET) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (SECRET[:half], SECRET[half:]))
    chunked = get(url + "/", "Transfer-Encoding: chunked", method="POST") + chunks + b"0\r\n\r\n"
    packed = gzip.compress(b"a" * 100 + SECRET + b"b" * 100)
    return {
        "path": get(f"{url}/{SECRET.decode()}"),
        "query": get(f"{url}/?q={hidden}"),
        "header": get(f"{url}/", f"X-Data: {hidden.upper()}"),
        "body": post(f"{url}/", b"{" + SECRET + b"}"),
        "chunks": chunked,
        "gzip": post(f"{url}/", packed, "Content-Encoding: gzip"),
        "unknown coding": post(f"{url}/", SECRET[::2], "Content-Encoding: br"),
        "shape": post(f"{url}/", b"ghp_" + b"A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"),
    }


@pytest.mark.requirement("NET-5")
@pytest.mark.slow
def test_secret_does_not_leave_by_any_part_of_a_request(house: House) -> None:
    server = house.server(repeat_requests, HOST)
    url = f"http://{HOST}:{server.port}"
    for name, request in leaks(url).items():
        cell = house.cell(f"{HOST}:{server.port}", known=Known(token=SECRET))
        reply = cell.ask(request)
        code = "CW-CONTENT-ENCODING" if name == "unknown coding" else "CW-LEAK"
        assert refusal_of(reply) == (403, code), name
        assert SECRET not in reply
        assert SECRET.hex().encode() not in reply.lower()
        cell.network.end()
        assert b"token" not in reply.replace(b"github-token", b""), (
            "inside not even the name is told"
        )
    cell = house.cell(f"{HOST}:{server.port}", known=Known(token=SECRET))
    assert server.connections == 0
    harmless = SECRET[:-1] + b"x"
    packed = gzip.compress(harmless)
    for request in (post(f"{url}/", harmless), post(f"{url}/", packed, "Content-Encoding: gzip")):
        assert cell.ask(request).startswith(b"HTTP/1.1 200 ")
    cell.network.end()
    told = house.record.of("leak-refused")
    assert {(body["secret"], body["kind"]) for body in told[:-1]} == {("token", "known")}
    assert told[-1]["kind"] == "pattern"
    assert SECRET.decode() not in repr(house.record.bodies)


@pytest.mark.requirement("NET-5")
def test_egress_closes_for_a_session_that_guesses_secrets(house: House) -> None:
    """Each refusal would confirm a guess."""
    server = house.server(repeat_requests, HOST)
    cell = house.cell(f"{HOST}:{server.port}", known=Known(token=SECRET))
    url = f"http://{HOST}:{server.port}"
    harmless = get(f"{url}/")
    for _ in range(5):
        assert cell.ask(harmless).startswith(b"HTTP/1.1 200 ")
        assert refusal_of(cell.ask(get(f"{url}/{SECRET.decode()}"))) == (403, "CW-LEAK")
    shape = get(f"{url}/ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8")
    for request in (harmless, get(f"{url}/{SECRET.decode()}"), shape):
        assert refusal_of(cell.ask(request)) == (403, "CW-LEAK-LIMIT")
    assert refusal_of(cell.ask(connect(HOST, server.port))) == (403, "CW-LEAK-LIMIT")
    # What only looks like a secret confirms nothing, and closes nothing.
    other = house.cell(f"{HOST}:{server.port}", known=Known(token=SECRET))
    for _ in range(6):
        assert refusal_of(other.ask(shape)) == (403, "CW-LEAK")
    assert other.ask(harmless).startswith(b"HTTP/1.1 200 ")


@pytest.mark.requirement("NET-5")
def test_secret_does_not_leave_as_the_name_of_a_host(house: House) -> None:
    server = house.server(repeat_requests, "correct-horse.wild.example")
    cell = house.cell(f"*.wild.example:{server.port}", known=Known(token=SECRET))
    host = f"{SECRET.decode()}.wild.example"
    asked = get(f"http://{host}:{server.port}/")
    assert refusal_of(cell.ask(asked)) == (403, "CW-LEAK")
    assert refusal_of(cell.ask(connect(host, server.port))) == (403, "CW-LEAK")
    harmless = get(f"http://correct-horse.wild.example:{server.port}/")
    assert cell.ask(harmless).startswith(b"HTTP/1.1 200 ")
    assert set(house.zone.asked) == {"correct-horse.wild.example"}
    cell.network.end()
    told = house.record.of("leak-refused")
    assert [(body["secret"], body["host"]) for body in told] == [("token", "")] * 2


@pytest.mark.requirement("NET-5")
def test_secret_late_in_a_long_upload_ends_it_before_any_of_the_secret_is_sent(
    house: House,
) -> None:
    uploads: queue.Queue[bytes] = queue.Queue()  # the server's thread may end after the proxy

    def talk(sock: socket.socket) -> None:
        uploads.put(final_bytes(sock))

    cell, url = served(house, talk, known=Known(token=SECRET))
    body = b"." * 600_000 + SECRET + b"." * 100_000
    with cell.connect() as sock:
        sock.sendall(get(f"{url}/", f"Content-Length: {len(body)}", method="POST"))
        sock.sendall(body)
        assert refusal_of(everything(sock)) == (403, "CW-LEAK")
    upload = uploads.get(timeout=WAIT_S)
    house.stack.close()
    assert uploads.empty()
    assert b"POST / HTTP/1.1" in upload
    assert 0 < body_of(upload).count(b".") <= 600_000
    assert SECRET[:4] not in upload


@pytest.mark.requirement("NET-2")
def test_websocket_goes_through_and_is_still_looked_at(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        head = head_of(sock)
        assert b"\r\nupgrade: websocket" in head.lower()
        sock.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: x\r\n\r\nfirst"
        )
        while data := sock.recv(65536):
            sock.sendall(data.upper())

    cell, url = served(house, talk, known=Known(token=SECRET))
    upgrade = get(
        f"{url}/chat",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ).replace(b"Connection: close", b"Connection: Upgrade")
    with cell.connect() as sock:
        sock.sendall(upgrade)
        assert head_of(sock).startswith(b"HTTP/1.1 101 ")
        assert sock.recv(5) == b"first"
        sock.sendall(b"frame")
        assert sock.recv(5) == b"FRAME"
        sock.sendall(SECRET)
        assert final_bytes(sock) == b""
    cell.network.end()
    assert [body["secret"] for body in house.record.of("leak-refused")] == ["token"]


def test_upload_beyond_its_bound_is_ended(house: House) -> None:
    sizes: queue.Queue[int] = queue.Queue()  # the server's thread may end after the proxy

    def talk(sock: socket.socket) -> None:
        sizes.put(len(final_bytes(sock)))

    cell, url = served(house, talk, max_upload_bytes=100_000)
    assert refusal_of(cell.ask(post(f"{url}/", bytes(2_000_000)))) == (429, "CW-NET-LIMIT")
    cell.network.end()
    assert sizes.get(timeout=WAIT_S) == 100_000
    house.stack.close()
    assert sizes.empty()


def test_download_beyond_its_bound_is_cut(house: House) -> None:
    def talk(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(answer(bytes(2_000_000)))

    cell, url = served(house, talk, max_download_bytes=100_000)
    with cell.connect() as sock:
        sock.sendall(get(url + "/"))
        assert len(final_bytes(sock)) < 101_000  # and the head that was written anew
    cell.network.end()
    assert [body["bytes_down"] for body in house.record.of("closed")] == [100_000]
