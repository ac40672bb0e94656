"""HTTP/1.1 between the egress proxy and the registries, with a real client."""

from __future__ import annotations

import asyncio
import http.client
import random
import socket
import threading

import pytest

from cellwall.packages.registry.downloads import Artifact
from cellwall.packages.registry.http_server import serve_connection
from cellwall.packages.registry.messages import RegistryReply, artifact_reply

ARTIFACT = Artifact("https://pypi.org/x-1.0.whl", "x-1.0.whl", "1.0", "sha256", "a" * 64)


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


class FileService:
    """Answers as the registry does for a file."""

    def __init__(self, path):
        self.path = path

    async def respond(self, request):
        size = self.path.stat().st_size
        return artifact_reply(request, ARTIFACT, self.path.open("rb"), size)


@pytest.mark.parametrize("size", [10, 65_536, 65_537, 3_000_000])
def test_parts_of_a_file_follow_each_other_on_one_connection(connect, tmp_path, size):
    path = tmp_path / "artifact"
    path.write_bytes(random.Random(size).randbytes(size))
    client = client_on(connect(FileService(path)))
    whole = ask(client, "GET", "/x")
    assert (whole.status, whole.read()) == (200, path.read_bytes())
    for first, last in ((0, 0), (3, 7), (size // 2, size - 1), (1, size + 5)):
        part = ask(client, "GET", "/x", Range=f"bytes={first}-{last}")
        assert (part.status, part.read()) == (206, path.read_bytes()[first : last + 1])
    outside = ask(client, "GET", "/x", Range=f"bytes={size}-")
    assert (outside.status, outside.read()) == (416, b"")
    same = ask(client, "GET", "/x", **{"If-None-Match": whole.headers["etag"]})
    assert (same.status, same.read(), same.headers["content-length"]) == (304, b"", None)
    assert ask(client, "GET", "/x", Range="bytes=-2").read() == path.read_bytes()[-2:]


def test_a_file_that_was_cut_ends_the_connection(connect, tmp_path):
    path = tmp_path / "artifact"
    path.write_bytes(b"x" * 10)
    client = client_on(connect(Service(path.open("rb"))))
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(client, "GET", "/x").read()


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
