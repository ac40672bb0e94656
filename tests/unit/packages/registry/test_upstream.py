"""Answers of a real HTTP server, bounded, and from the configured hosts alone (PKG-4)."""

from __future__ import annotations

import functools
import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from cellwall.core.errors import EgressRefused
from cellwall.packages.registry.upstream import HttpUpstream

pytestmark = pytest.mark.slow  # each client loads the authorities that the host trusts


@functools.cache
def bomb():
    return gzip.compress(gzip.compress(bytes(64 << 20)))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, self.headers.get("accept")))
        if self.path.startswith("/to/"):
            return self._answer(302, b"", Location=self.path.removeprefix("/to/"))
        if self.path == "/loop":
            return self._answer(302, b"", Location="/loop")
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return None
        if self.path == "/bomb":
            return self._answer(200, bomb(), **{"Content-Encoding": "gzip, gzip"})
        if self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            while not self.server.is_over.wait(0.02):
                self.wfile.write(b"x")
                self.wfile.flush()
            return None
        if self.path == "/absent":
            return self._answer(404, b"no")
        return self._answer(200, b"x" * 1000)

    def _answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "Content-Type": "text/plain",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.seen = []
        running.is_over = threading.Event()
        running.origin = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.is_over.set()
        running.shutdown()
        thread.join()


def get(server, path, *, origins=None, max_bytes=10_000):
    async def run():
        async with HttpUpstream(origins or [server.origin]) as upstream:
            return await upstream.get(server.origin + path, accept="a/b", max_bytes=max_bytes)

    return anyio.run(run)


def download(server, url):
    async def run():
        async with HttpUpstream([server.origin]) as upstream:
            return b"".join([chunk async for chunk in upstream.download(url)])

    return anyio.run(run)


def code_of(call, *arguments, **named):
    with pytest.raises(EgressRefused) as error:
        call(*arguments, **named)
    return error.value.code


def test_a_document_and_a_file_are_read_whole(server):
    document = get(server, "/x")
    assert (document.status, document.content_type, len(document.body)) == (200, "text/plain", 1000)
    assert get(server, "/absent").status == 404
    assert download(server, server.origin + "/x") == b"x" * 1000
    assert server.seen[0] == ("/x", "a/b")


def test_a_redirect_is_followed_to_the_same_hosts_alone(server):
    assert get(server, "/to//x").status == 200
    asked = len(server.seen)
    other = server.origin.replace("127.0.0.1", "localhost")
    assert code_of(get, server, f"/to/{other}/x") == "CW-PACKAGE-HOST"
    assert code_of(get, server, "/to/file:///etc/passwd") in (
        "CW-PACKAGE-HOST",
        "CW-PACKAGE-UNAVAILABLE",
    )
    assert len(server.seen) == asked + 2
    assert code_of(get, server, "/loop") == "CW-PACKAGE-UNAVAILABLE"


@pytest.mark.requirement("PKG-4")
@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/latest", "file:///etc/passwd", "https://127.0.0.1/x", "http://127.0.0.1:1/x",
     "http://user@127.0.0.1/x", "//x", ""],
)  # fmt: skip
def test_a_file_on_another_host_is_not_asked_for(server, url):
    assert code_of(download, server, url) == "CW-PACKAGE-HOST"
    assert server.seen == []


def test_an_answer_that_is_too_large_is_refused(server):
    assert code_of(get, server, "/x", max_bytes=999) == "CW-PACKAGE-TOO-LARGE"


def test_a_cut_answer_is_an_error_and_not_a_short_file(server):
    assert code_of(download, server, server.origin + "/cut") == "CW-PACKAGE-UNAVAILABLE"


def test_a_file_that_is_not_there_is_an_error(server):
    assert code_of(download, server, server.origin + "/absent") == "CW-PACKAGE-UNAVAILABLE"


def test_an_unreachable_registry_is_an_error_without_its_address(server):
    async def run():
        async with HttpUpstream(["http://127.0.0.1:9"]) as upstream:
            await upstream.get("http://127.0.0.1:9/x", accept="", max_bytes=1)

    with pytest.raises(EgressRefused) as error:
        anyio.run(run)
    assert "127.0.0.1" not in str(error.value)


def test_a_document_that_is_compressed_twice_is_not_unpacked_whole(server):
    assert len(bomb()) < 1000
    assert code_of(get, server, "/bomb", max_bytes=1 << 20) == "CW-PACKAGE-TOO-LARGE"


def test_a_server_that_sends_single_bytes_meets_the_deadline(server, monkeypatch):
    monkeypatch.setattr("cellwall.packages.registry.upstream._DOCUMENT_DEADLINE_S", 0.3)
    monkeypatch.setattr("cellwall.packages.registry.upstream._FILE_DEADLINE_S", 0.3)
    assert code_of(get, server, "/drip") == "CW-PACKAGE-UNAVAILABLE"
    assert code_of(download, server, server.origin + "/drip") == "CW-PACKAGE-UNAVAILABLE"
    assert get(server, "/x").status == 200


@pytest.mark.parametrize("path", ["/a\nb", "/\x00", "/" + "x" * 70_000])
def test_a_url_that_no_client_sends_is_an_error(server, path):
    assert code_of(download, server, server.origin + path) == "CW-PACKAGE-UNAVAILABLE"
    assert code_of(download, server, "http://[") == "CW-PACKAGE-HOST"
    assert server.seen == []
