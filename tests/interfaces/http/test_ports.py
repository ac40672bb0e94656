"""Servers inside sandboxes over the service: links, tokens, streams, WebSockets and origins."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from interfaces.http.running_service import RunningService, new_session

pytestmark = pytest.mark.slow
# Tells what it gets; /stream answers in pieces, /ws echoes, /bad is no HTTP.
SERVER = r"""
import base64, hashlib, http.server, json, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path.startswith("/ws"):
            return self.echo()
        if self.path == "/bad":
            self.wfile.write(b"no http at all\r\n\r\n"); self.close_connection = True; return
        size = int(self.headers.get("content-length") or 0)
        said = {"method": self.command, "path": self.path, "body": self.rfile.read(size).decode(),
                "headers": [[k.lower(), v] for k, v in self.headers.items()]}
        data = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Set-Cookie", "a=b; Domain=localhost; Path=/")
        self.send_header("Alt-Svc", 'h2="evil.example:443"')
        self.send_header("Clear-Site-Data", '"cookies"')
        self.send_header("Content-Security-Policy", "default-src *")
        if self.path == "/stream":
            self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for n in range(5):
                self.wfile.write(b"%x\r\n%s\r\n" % (5, b"part%d" % n)); self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n"); return
        self.send_header("Content-Length", str(len(data))); self.end_headers(); self.wfile.write(data)
    do_POST = do_PUT = do_GET
    def echo(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101); self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade"); self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        while True:
            first = self.rfile.read(2)
            if len(first) < 2 or first[0] & 15 == 8: break
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(first[1] & 127)))
            self.wfile.write(bytes([first[0], len(data)]) + data); self.wfile.flush()
        self.close_connection = True
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def session(service: RunningService) -> Iterator[str]:
    """A sandbox with a running server."""
    with service.client("user") as user:
        made = new_session(user)
        base = f"/v1/sessions/{made}"
        user.put(f"{base}/files/server.py", content=SERVER.encode()).raise_for_status()
        start = {"command": "python3 server.py >log 2>&1 & sleep 0.1; cat log"}
        assert user.post(f"{base}/commands", json=start).json()["status"] == "ok"
        deadline = time.monotonic() + 30
        while user.get(f"{base}/ports/8000/").status_code != 200:
            assert time.monotonic() < deadline, "the server did not start"
        yield made


@pytest.fixture
def other(service: RunningService) -> Iterator[httpx.Client]:
    with service.client("power-user") as client:
        yield client


@pytest.fixture
def link(user: httpx.Client, session: str) -> dict[str, Any]:
    made = user.post(f"/v1/sessions/{session}/ports/8000", json={})
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def at_host(service: RunningService, session: str, path: str = "/", port: int = 8000, **options):
    """A request under the name of a port, whatever resolves that name."""
    headers = {"Host": f"{port}-{session}.localhost:{service.port}", **options.pop("headers", {})}
    method = options.pop("method", "GET")
    with service.client(headers=headers) as client:
        return client.request(method, f"{service.url}{path}", **options)


@pytest.mark.requirement("INT-2")
def test_link_opens_the_port_once_and_goes_on_with_a_cookie(
    service: RunningService, session: str, link: dict[str, Any]
) -> None:
    assert link["address"] == f"http://8000-{session}.localhost:{service.port}/"
    assert link["url"] == f"{link['address']}?cellwall_token={link['token']}"
    first = at_host(service, session, f"//evil.example/x?a=1&cellwall_token={link['token']}&b")
    assert (first.status_code, first.headers["location"]) == (303, "/evil.example/x?a=1&b")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "domain" not in cookie.lower()
    shown = {"Cookie": f"own=1; cellwall_token={link['token']}", "Authorization": "Basic own"}
    found = at_host(service, session, "/x?a=1&b=%20+", headers=shown, method="POST", content=b"in")
    said = found.json()
    assert (said["method"], said["path"], said["body"]) == ("POST", "/x?a=1&b=%20+", "in")
    inner = dict(said["headers"])
    assert inner["cookie"] == "own=1"
    assert inner["authorization"] == "Basic own"  # the server's own
    assert link["token"] not in found.text
    assert found.headers["set-cookie"] == "a=b; Path=/"
    assert {"alt-svc", "clear-site-data"}.isdisjoint(found.headers)
    assert found.headers["cellwall-content"] == "untrusted"
    # A page of another origin brings the cookie along, and gets nothing for it.
    for foreign in (
        {"Origin": f"http://8000-sbx_other.localhost:{service.port}"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ):
        assert at_host(service, session, headers={**shown, **foreign}).status_code == 401
    streamed = at_host(service, session, "/stream", headers={"X-Cellwall-Token": link["token"]})
    assert streamed.text == "part0part1part2part3part4"
    broken = at_host(service, session, "/bad", headers={"X-Cellwall-Token": link["token"]})
    assert broken.status_code == 502


@pytest.mark.requirement("INT-2", "SRV-3")
def test_token_counts_for_its_port_of_its_sandbox_alone(
    service: RunningService, user: httpx.Client, other: httpx.Client, session: str, link
) -> None:
    token = {"X-Cellwall-Token": link["token"]}
    assert at_host(service, session, headers=token).status_code == 200  # the control
    second = new_session(user)
    for refused in (
        at_host(service, session),
        at_host(service, session, headers={"X-Cellwall-Token": "cwp_guess"}),
        at_host(service, session, port=8001, headers=token),
        at_host(service, second, headers=token),
        at_host(service, session, headers={"Authorization": f"Bearer {service.tokens['user']}"}),
    ):
        assert refused.status_code == 401, refused.text
    assert other.post(f"/v1/sessions/{session}/ports/8000", json={}).status_code == 404
    assert other.get(f"/v1/sessions/{session}/ports/8000/").status_code == 404
    for port in (0, 65_536):
        assert user.post(f"/v1/sessions/{session}/ports/{port}", json={}).status_code == 400
    nothing = user.get(f"/v1/sessions/{session}/ports/8001/")
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (400, "CW-NO-SERVER")
    proxy = user.get(f"/v1/sessions/{session}/ports/3128/")
    assert proxy.json()["error"]["code"] == "CW-BAD-PORT"


@pytest.mark.requirement("SRV-3")
def test_no_route_of_the_service_exists_under_the_name_of_a_port(
    service: RunningService, session: str, link: dict[str, Any]
) -> None:
    own = {"Authorization": f"Bearer {service.tokens['user']}"}
    assert (
        httpx.get(f"{service.url}/v1/sessions", trust_env=False, headers=own).status_code == 200
    )  # the control
    assert at_host(service, session, "/v1/sessions", headers=own).status_code == 401
    asked = {**own, "X-Cellwall-Token": link["token"]}
    assert at_host(service, session, "/v1/sessions", headers=asked).json()["path"] == "/v1/sessions"
    # A page inside cannot use the service from its own origin.
    origin = {**own, "Origin": link["address"].rstrip("/")}
    assert (
        httpx.get(f"{service.url}/v1/sessions", trust_env=False, headers=origin).status_code == 403
    )
    # Names that only look like one are the gate's.
    for host in (f"8000-{session}.localhost.evil.example", f"8000-{session}", "x.localhost"):
        asked = {"Host": host, "X-Cellwall-Token": link["token"]}
        assert httpx.get(service.url, trust_env=False, headers=asked).status_code == 421


@pytest.mark.requirement("INT-2")
def test_path_of_the_port_is_for_programs_and_inert_in_browsers(
    user: httpx.Client, session: str
) -> None:
    found = user.put(f"/v1/sessions/{session}/ports/8000/a%2Fb/c?x=%2B", content=b"in")
    said = found.json()
    assert (said["path"], said["body"]) == ("/a%2Fb/c?x=%2B", "in")
    assert "authorization" not in dict(said["headers"])
    assert "set-cookie" not in found.headers
    assert found.headers["content-security-policy"] == "sandbox; default-src 'none'"


@pytest.mark.requirement("INT-2")
def test_websocket_reaches_the_server_inside(
    service: RunningService, session: str, link: dict[str, Any]
) -> None:
    def opened(token: str):
        host = f"8000-{session}.localhost:{service.port}"
        sock = socket.create_connection(("127.0.0.1", service.port))
        headers = {"X-Cellwall-Token": token}
        return connect(f"ws://{host}/ws", sock=sock, additional_headers=headers, proxy=None)

    with opened(link["token"]) as line:
        line.send("hello")
        assert line.recv(timeout=20) == "hello"
        line.send(b"\0\xff")
        assert line.recv(timeout=20) == b"\0\xff"
    with pytest.raises(InvalidStatus):
        opened("cwp_guess")


@pytest.mark.requirement("AUD-1")
def test_connections_are_in_the_record(user: httpx.Client, session: str) -> None:
    assert user.get(f"/v1/sessions/{session}/ports/8000/recorded").status_code == 200
    found = user.get("/v1/audit", params={"limit": 200}).json()["records"]
    records = [json.dumps(each) for each in found]
    assert any('"port": 8000' in each for each in records)
    assert any('"received_bytes"' in each and '"traffic"' in each for each in records)
