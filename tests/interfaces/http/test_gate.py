"""Checks before every route: names, origins, sizes; and clients that misbehave."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import httpx2 as httpx
import pytest

from interfaces.http.running_service import (
    DEADLINE_S,
    RunningService,
    new_session,
    running_service,
)

pytestmark = pytest.mark.slow


def raw(service: RunningService, data: bytes, *, half_close: bool = False) -> bytes:
    """What the server answers to these bytes, until it closes."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S) as line:
        line.sendall(data)
        if half_close:
            line.shutdown(socket.SHUT_WR)
        seen = b""
        while part := line.recv(65_536):
            seen += part
        return seen


def head(service: RunningService, method: str, path: str, *lines: str) -> bytes:
    token = service.tokens["user"]
    own = [f"{method} {path} HTTP/1.1", f"Authorization: Bearer {token}", *lines]
    return ("\r\n".join(own) + "\r\n\r\n").encode("latin-1")


@pytest.mark.requirement("SRV-3")
@pytest.mark.parametrize(
    "hosts",
    [
        ["Host: evil.example"],
        ["Host: evil.example:{port}"],
        ["Host: 127.0.0.1.evil.example:{port}"],
        ["Host: 127.0.0.1:{port}@evil.example"],
        ["Host: "],
        [],
        ["Host: 127.0.0.1:{port}", "Host: evil.example"],
        ["Host: evil.example", "Host: 127.0.0.1:{port}"],
        ["Host: 127.0.0.1:{port}", "X-Forwarded-Host: x", "Host: 127.0.0.1:{port}"],
    ],
)
def test_only_requests_for_the_own_name_are_served(
    service: RunningService, hosts: list[str]
) -> None:
    lines = [each.format(port=service.port) for each in hosts]
    answer = raw(service, head(service, "GET", "/v1/sessions", *lines, "Connection: close"))
    assert answer.split(b" ", 2)[1] in {b"400", b"421"}, answer
    own = f"Host: LocalHost:{service.port}"
    right = raw(service, head(service, "GET", "/v1/sessions", own, "Connection: close"))
    assert right.split(b" ", 2)[1] == b"200"


@pytest.mark.requirement("SRV-3")
def test_pages_of_other_origins_are_refused_and_named_ones_get_cors(tmp_path: Path) -> None:
    named = "https://panel.example"
    public = {"hosts": ("127.0.0.1", "cellwall.example"), "public_url": "https://cellwall.example"}
    with running_service(tmp_path, origins=(named,), **public) as service:
        own = service.url
        odd = own.replace("http:", "ftp:")
        with service.client("user") as client:
            # A page without TLS at the own name: everybody on the network can write such a page.
            for origin, status in (("http://cellwall.example", 403), (public["public_url"], 200)):
                headers = {"Host": "cellwall.example", "Origin": origin}
                assert client.get("/v1/sessions", headers=headers).status_code == status
            others = ("https://evil.example", "null", f"{named}.evil", "http://panel.example", odd)
            for origin in others:
                refused = client.get("/v1/sessions", headers={"Origin": origin})
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "CW-ORIGIN")
                assert "access-control-allow-origin" not in refused.headers
            assert client.get("/v1/sessions", headers={"Origin": own}).status_code == 200
            allowed = client.get("/v1/sessions", headers={"Origin": named})
            assert allowed.headers["access-control-allow-origin"] == named
            assert "access-control-allow-credentials" not in allowed.headers
            preflight = client.options(
                "/v1/sessions", headers={"Origin": named, "Access-Control-Request-Method": "POST"}
            )
            assert preflight.status_code == 204
            assert preflight.headers["access-control-allow-origin"] == named


@pytest.mark.requirement("SRV-3")
def test_every_answer_has_the_security_headers(service: RunningService) -> None:
    with service.client("user") as client:
        answers = [client.get("/v1/sessions"), client.get("/nothing"), client.get("/v1/healthz")]
        answers.append(client.get("/v1/sessions", headers={"Host": "evil.example"}))
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"


def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (
        running_service(tmp_path, max_body_bytes=10_000, max_file_bytes=20_000) as service,
        service.client("user") as client,
    ):
        session = new_session(client)

        def send(method: str, path: str, count: int, *, is_chunked: bool) -> httpx.Response:
            data = b'{"code": "' + b"#" * (count - 12) + b'"}'
            content = iter([data[:5000], data[5000:]]) if is_chunked else data
            kind = {"Content-Type": "application/json"}
            address = f"/v1/sessions/{session}{path}"
            return client.request(method, address, content=content, headers=kind)

        for method, path, most in (("POST", "/code", 10_000), ("PUT", "/files/a", 20_000)):
            for is_chunked in (False, True):
                assert send(method, path, most, is_chunked=is_chunked).status_code in {200, 204}
                refused = send(method, path, most + 1, is_chunked=is_chunked)
                code = refused.json()["error"]["code"]
                assert (refused.status_code, code) == (413, "CW-TOO-LARGE")


def test_slow_half_closed_and_broken_clients_harm_nobody(service: RunningService) -> None:
    with service.client("user") as client:
        session = new_session(client)
        host = f"Host: 127.0.0.1:{service.port}"
        path = f"/v1/sessions/{session}/commands"
        slow = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(40)]
        for line in slow:  # headers that never end, bodies that never come
            line.sendall(head(service, "POST", path, host, "Content-Length: 500")[:-20])
        for line in slow[20:]:
            line.sendall(b"\r\nX: y\r\n\r\n{")
        body = json.dumps({"command": "sleep 3600"}).encode()
        begun = head(service, "POST", path, host, f"Content-Length: {len(body)}") + body
        raw(service, begun, half_close=True)
        with socket.create_connection(("127.0.0.1", service.port)) as line:
            line.sendall(begun)  # and gone
        for garbage in (
            b"\0" * 100,
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            b"\r\n" * 9,
        ):
            raw(service, garbage, half_close=True)
        both = head(service, "POST", path, host, "Content-Length: 4", "Transfer-Encoding: chunked")
        smuggled = raw(service, both + b"0\r\n\r\nGET /v1/users HTTP/1.1\r\n\r\n", half_close=True)
        assert smuggled.count(b"HTTP/1.1 200") == 0
        # All that while, others are served.
        ran = client.post(path, json={"command": "echo on"})
        assert ran.json()["stdout"] == "on\n"
        for line in slow:
            line.close()


def test_curl_sees_the_same_service(service: RunningService, tmp_path: Path) -> None:
    def curl(*words: str) -> str:
        token = f"Authorization: Bearer {service.tokens['user']}"
        line = ["curl", "-sS", "--noproxy", "*", "-m", "60", "-H", token, *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    url = f"{service.url}/v1/sessions"
    session = json.loads(curl("--json", "{}", url))["id"]
    (tmp_path / "a").write_text("from curl")
    curl("-T", str(tmp_path / "a"), f"{url}/{session}/files/dir/a")
    body = json.dumps({"command": ["cat", "dir/a"]})
    assert json.loads(curl("--json", body, f"{url}/{session}/commands"))["stdout"] == "from curl"
    events = curl(
        "-N", "--json", body, "-H", "Accept: text/event-stream", f"{url}/{session}/commands"
    )
    assert 'data: {"text":"from curl"}' in events
    assert curl(f"{url}/{session}/files/dir/a") == "from curl"
    listed = json.loads(curl(f"{url}/{session}/files/dir/"))
    assert [each["name"] for each in listed["entries"]] == ["a"]
    assert (
        curl("-o", "/dev/null", "-w", "%{http_code}", "-X", "DELETE", f"{url}/{session}") == "204"
    )
