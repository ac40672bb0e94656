"""HTTP/1.1 between the egress proxy and the registries, with a real client."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading

import pytest

from cellwall.packages.registry.http_server import serve_connection
from cellwall.packages.registry.service import RegistryReply


class Service:
    """Answers with what was asked."""

    def __init__(self, stream=None):
        self.stream = stream

    async def respond(self, request):
        if self.stream is not None:
            return RegistryReply(
                200, "application/octet-stream", stream=self.stream, size=3_000_000
            )
        body = f"{request.method} {request.host} {request.path} {request.accept}".encode()
        return RegistryReply(200, "text/plain", body, size=len(body))


@pytest.fixture
def connect():
    threads, sockets = [], []

    def start(service):
        ours, theirs = socket.socketpair()
        thread = threading.Thread(
            target=lambda: asyncio.run(serve_connection(theirs, service.respond))
        )
        thread.start()
        threads.append(thread)
        sockets.append(ours)
        return ours

    yield start
    for each in sockets:
        each.close()
    for each in threads:
        each.join(10)
        assert not each.is_alive()


def client_on(sock):
    client = http.client.HTTPConnection("pypi.org")
    client.sock = sock
    return client


def ask(client, method, path, **headers):
    client.request(method, path, headers=headers)
    return client.getresponse()


def test_requests_are_answered_one_after_the_other_on_one_connection(connect):
    client = client_on(connect(Service()))
    bodies = [ask(client, "GET", f"/simple/x{n}/", Accept="a/b").read().decode() for n in range(3)]
    assert bodies == [f"GET pypi.org /simple/x{n}/ a/b" for n in range(3)]


def test_the_answer_to_head_has_no_body(connect):
    client = client_on(connect(Service()))
    reply = ask(client, "HEAD", "/simple/x/")
    assert (reply.read(), int(reply.headers["content-length"]) > 0) == (b"", True)
    assert ask(client, "GET", "/y").read()


def test_a_file_is_streamed_and_closed(connect, tmp_path):
    path = tmp_path / "artifact"
    path.write_bytes(bytes(3_000_000))
    opened = path.open("rb")
    client = client_on(connect(Service(opened)))
    assert len(ask(client, "GET", "/x").read()) == 3_000_000
    client.sock.shutdown(socket.SHUT_WR)
    assert client.sock.recv(1) == b""  # the server has ended
    assert opened.closed


def test_a_client_that_leaves_in_the_middle_closes_the_file(connect, tmp_path):
    path = tmp_path / "artifact"
    path.write_bytes(bytes(3_000_000))
    opened = path.open("rb")
    sock = connect(Service(opened))
    sock.sendall(b"GET /x HTTP/1.1\r\nhost: pypi.org\r\n\r\n")
    sock.recv(10)
    sock.close()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n",
        b"nonsense",
        b"GET /" + b"x" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"\x16\x03\x01\x00",
    ],
)
def test_what_is_no_request_ends_the_connection(connect, data):
    sock = connect(Service())
    sock.settimeout(10)
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        assert b" 200 " not in sock.recv(1000)
    except ConnectionError:
        pass


def test_the_host_is_taken_without_its_port(connect):
    sock = connect(Service())
    sock.sendall(b"GET /x HTTP/1.1\r\nhost: pypi.org:443\r\n\r\n")
    reply = http.client.HTTPResponse(sock)
    reply.begin()
    assert reply.read() == b"GET pypi.org /x "
