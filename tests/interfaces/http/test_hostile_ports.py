"""Servers inside sandboxes that attack the service, and connections that should not go on."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from interfaces.http.running_service import ROOT, RunningService, new_session

pytestmark = pytest.mark.slow
# /left tells which paths have lost their client.
SERVER = r"""
import base64, hashlib, http.server, json
left = []
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        kind = self.path.split("?")[0]
        if kind == "/left":
            return self.answer(json.dumps(left).encode())
        if kind == "/headers":
            return self.answer(json.dumps({k.lower(): v for k, v in self.headers.items()}).encode())
        if kind == "/away":
            self.send_response(307); self.send_header("Location", "/v1/sessions")
            self.send_header("Content-Length", "0"); self.end_headers(); return
        if kind == "/ws":
            key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101); self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_header("Sec-WebSocket-Accept", accept); self.end_headers()
            self.wfile.write(b"\x81\x02hi"); self.wfile.flush()
        if kind == "/endless":
            self.send_response(200); self.send_header("Connection", "close"); self.end_headers()
            try:
                while True: self.wfile.write(b"x" * 65536)
            except OSError: pass
        elif kind == "/slow":
            self.send_response(200); self.send_header("Content-Length", "9"); self.end_headers()
            self.wfile.write(b"first"); self.wfile.flush()
        elif kind == "/cut":
            self.send_response(200); self.send_header("Content-Length", "9"); self.end_headers()
            self.wfile.write(b"first"); self.wfile.flush(); self.close_connection = True; return
        try:
            while self.rfile.read(1): pass
        except OSError: pass
        left.append(self.path); self.close_connection = True
    do_POST = do_GET
    def answer(self, data):
        self.send_response(200); self.send_header("Content-Length", str(len(data)))
        self.end_headers(); self.wfile.write(data)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def session(service: RunningService) -> Iterator[str]:
    with service.client("user") as user:
        made = new_session(user)
        base = f"/v1/sessions/{made}"
        user.put(f"{base}/files/server.py", content=SERVER.encode()).raise_for_status()
        start = {"command": "python3 server.py >log 2>&1 & sleep 0.1; cat log"}
        assert user.post(f"{base}/commands", json=start).json()["status"] == "ok"
        deadline = time.monotonic() + 30
        while user.get(f"{base}/ports/8000/left").status_code != 200:
            assert time.monotonic() < deadline, "the server did not start"
        yield made


def ask(
    service: RunningService, session: str, token: str, path: str, more: str = ""
) -> socket.socket:
    """A connection with one request under the name of the port."""
    line = socket.create_connection(("127.0.0.1", service.port))
    line.settimeout(20)
    head = f"GET {path} HTTP/1.1\r\nHost: 8000-{session}.localhost:{service.port}\r\n"
    line.sendall(f"{head}X-Cellwall-Token: {token}\r\n{more}\r\n".encode())
    return line


def link_token(client: httpx.Client, session: str) -> str:
    made = client.post(f"/v1/sessions/{session}/ports/8000", json={})
    return str(made.raise_for_status().json()["token"])


def left_by_client(user: httpx.Client, session: str, path: str, *, within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if path in user.get(f"/v1/sessions/{session}/ports/8000/left").json():
            return True
    return False


@pytest.mark.requirement("INT-2")
def test_connection_inside_ends_with_its_client(
    service: RunningService, user: httpx.Client, session: str
) -> None:
    token = link_token(user, session)
    paths = ("/silent", "/slow", "/endless", "/body")
    more = {"/body": "Content-Length: 5\r\n"}  # of which no byte comes
    lines = {path: ask(service, session, token, path, more.get(path, "")) for path in paths}
    lines["/endless"].recv(1)
    assert user.get(f"/v1/sessions/{session}/ports/8000/left").json() == []  # the control
    for path, line in lines.items():
        line.close()
        assert left_by_client(user, session, path), path


@pytest.mark.requirement("INT-2", "SRV-3")
def test_connection_inside_ends_with_the_credential_behind_it(
    service: RunningService, user: httpx.Client, session: str
) -> None:
    directory = service.accounts.directory
    made = directory.create_token(service.ids["user"], name="t", scopes=(), lives_s=99, by=ROOT)
    secret, token = service.call(made)
    kept = ask(service, session, link_token(user, session), "/slow?kept")  # the control
    with service.client(headers={"Authorization": f"Bearer {secret}"}) as client:
        opened = link_token(client, session)
        lines = [ask(service, session, opened, "/slow?revoked")]
        with client.stream("GET", f"/v1/sessions/{session}/ports/8000/slow?path") as streamed:
            assert streamed.status_code == 200
            with websocket(service, session, opened) as line:
                assert line.recv(timeout=20) == "hi"
                service.call(directory.revoke_token(token.id, by=ROOT))
                with pytest.raises(ConnectionClosed):
                    line.recv(timeout=20)
            for path in ("/slow?revoked", "/slow?path", "/ws"):
                assert left_by_client(user, session, path), path
    found = user.get(f"/v1/sessions/{session}/ports/8000/left").json()
    assert "/slow?kept" not in found
    for each in (kept, *lines):
        each.close()


@pytest.mark.requirement("SRV-3")
def test_server_inside_gets_no_credential_and_sends_no_program_to_the_service(
    service: RunningService, user: httpx.Client, session: str
) -> None:
    host = {"Host": f"8000-{session}.localhost:{service.port}"}
    shown = {**host, "X-Cellwall-Token": link_token(user, session)}
    with service.client(headers=shown) as client:
        for name in ("Authorization", "X-API-Key"):
            for value, is_kept in (
                ("Bearer own", True),
                (f"Bearer {service.tokens['user']}", False),
            ):
                found = client.get("/headers", headers={name: value}).json()
                assert (name.lower() in found) is is_kept
        assert client.get("/away").headers["location"] == "/v1/sessions"  # of its own origin
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/cut")
    count = len(user.get("/v1/sessions").json()["sessions"])
    path = f"/v1/sessions/{session}/ports/8000/away"
    sent = user.post(path, json={}, follow_redirects=True)
    assert (sent.status_code, sent.headers["cellwall-location"]) == (307, "/v1/sessions")
    assert len(user.get("/v1/sessions").json()["sessions"]) == count
    with pytest.raises(InvalidStatus) as refused:
        websocket(service, session, shown["X-Cellwall-Token"], "/away")
    assert refused.value.response.status_code == 403


def websocket(service: RunningService, session: str, token: str, path: str = "/ws"):
    line = socket.create_connection(("127.0.0.1", service.port))
    uri = f"ws://8000-{session}.localhost:{service.port}{path}"
    return connect(uri, sock=line, additional_headers={"X-Cellwall-Token": token}, proxy=None)
