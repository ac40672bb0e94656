"""A running service with its neighbours: the operator's commands, other supervisors, slow clients,
housekeeping. Real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from cellwall.interfaces.http.terminal import MAX_FRAME_BYTES
from interfaces.mcp_service import RawClient
from interfaces.served import DEADLINE_S, Place, Served, new_place, until
from interfaces.test_cli_process import error_code
from interfaces.test_serve import new_session, refusal, run

pytestmark = pytest.mark.requirement("SRV-1")
QUICK = "[server]\nrequest_timeout_s = 1.0\nmax_connections = 8\nhousekeeping_s = 1.0\n"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One for all tests, which leave it as it was."""
    with new_place(QUICK + "[accounts]\nsigning_key_days = 0.01\n") as place:
        place.environment["TOKEN"] = place.token()
        place.environment["CELLWALL_SUPERVISOR"] = "on"
        with place.serving() as found:
            yield found


@pytest.fixture
def ann(served: Served) -> Iterator[httpx.Client]:
    with served.client(served.place.environment["TOKEN"]) as client:
        yield client


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as found:
        found.environment["CELLWALL_SUPERVISOR"] = "on"
        yield found


def address(served: Served) -> tuple[str, int]:
    return "127.0.0.1", int(served.url.rpartition(":")[2])


# The operator


def test_the_operator_sees_reads_and_ends_sessions_of_users_and_it_is_recorded(served, ann):
    session = new_session(ann)
    assert run(ann, session, "echo", "told by a user").json()["status"] == "ok"
    listed = json.loads(served.place.done("ps", "--json"))
    assert listed["supervisor"] == served.process.pid
    shown = [each for each in listed["sandboxes"] if each["id"] == session]
    assert [(each["owner"], each["calls"], each["is_busy"]) for each in shown] == [
        ("ann", 1, False)
    ]
    assert f"{session} " in served.place.done("ps").decode()
    assert served.place.done("logs", session) == b"told by a user\n"
    served.place.done("kill", session)
    assert ann.get(f"/v1/sessions/{session}").json().get("state") != "live"
    assert run(ann, session, "true").status_code in {404, 409, 410}
    found = served.place.done("audit", "search", "--session", session, "--json")
    ended = [row["body"] for row in json.loads(found)["records"] if row["kind"] == "session"]
    assert "ended by the operator" in [body["status"] for body in ended]
    again = served.place.cellwall("kill", session)
    assert error_code(again) == "CW-NO-SANDBOX"


def test_the_operator_sees_and_ends_sandboxes_of_mcp_clients_as_well(served):
    token = served.place.environment["TOKEN"]
    service: Any = SimpleNamespace(http=served.client, url=f"{served.url}/mcp")
    agent = RawClient(service, token)
    before = {each["id"] for each in json.loads(served.place.done("ps", "--json"))["sandboxes"]}
    ran = agent.ask("tools/call", name="run_code", arguments={"code": "6 * 7"})
    assert "42" in ran.text
    listed = json.loads(served.place.done("ps", "--json"))["sandboxes"]
    (made,) = [each for each in listed if each["id"] not in before]
    assert made["owner"] == "ann"
    assert served.place.done("logs", made["id"]) == b""
    served.place.done("kill", made["id"])
    assert made["id"] not in served.place.done("ps").decode()
    again = agent.ask("tools/call", name="run_code", arguments={"code": "6 * 7"})
    assert "42" in again.text  # in a new sandbox
    agent.http.close()


def test_commands_of_the_same_account_run_in_the_service(served):
    made = served.place.done("create").decode().strip()
    try:
        assert served.place.done("exec", made, "--", "echo", "inside") == b"inside\n"
        assert made in served.place.done("ps").decode()
        status = json.loads(served.place.done("supervisor", "status", "--json"))
        assert status["pid"] == served.process.pid
    finally:
        served.place.done("kill", made)


def test_agents_reach_the_tools_over_mcp(served, ann):
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "run_code", "arguments": {"code": "6 * 7"}, "_meta": meta}
    told = ann.post(
        "/mcp",
        json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
        headers={
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "run_code",
        },
    )
    result = told.json()["result"]["structuredContent"]
    assert "42" in result["output"]
    # The operator sees it, and ends it.
    listed = json.loads(served.place.done("ps", "--json"))["sandboxes"]
    assert [each["owner"] for each in listed if each["id"] == result["session"]] == ["ann"]
    [known] = [
        each
        for each in ann.get("/v1/sessions", params={"state": "all"}).json()["sessions"]
        if each["id"] == result["session"]
    ]
    assert known["state"] == "live"
    served.place.done("kill", result["session"])
    listed = json.loads(served.place.done("ps", "--json"))["sandboxes"]
    assert result["session"] not in [each["id"] for each in listed]
    assert ann.get(f"/v1/sessions/{result['session']}").json()["state"] == "ended"


def test_the_supervisor_of_a_service_is_not_stopped_alone(served):
    done = served.place.cellwall("supervisor", "stop")
    assert (done.returncode, error_code(done)) == (125, "CW-SUPERVISOR-SERVES")
    assert served.process.poll() is None


def test_no_user_can_name_the_sandbox_of_the_operator(served, ann):
    made = served.place.done("create").decode().strip()
    try:
        foreign, missing = (ann.get(f"/v1/sessions/{name}") for name in (made, "sbx_" + "0" * 26))
        assert (foreign.status_code, foreign.json()) == (missing.status_code, missing.json())
    finally:
        served.place.done("kill", made)


# Who owns cells


def test_a_second_service_of_the_same_folder_is_refused(served):
    assert refusal(served.place, "--port", "0") == (125, "CW-SERVE-RUNNING")


def test_an_idle_supervisor_gives_way_and_one_with_a_sandbox_does_not(place):
    made = place.done("create").decode().strip()  # starts a supervisor
    before = json.loads(place.done("ps", "--json"))["supervisor"]
    try:
        assert refusal(place, "--port", "0") == (125, "CW-SERVE-SUPERVISOR")
        assert made in place.done("ps").decode()  # untouched
        place.done("kill", made)
        with place.serving() as served:
            assert json.loads(place.done("ps", "--json"))["supervisor"] == served.process.pid
            until(lambda: not os.path.exists(f"/proc/{before}"))
    finally:
        place.cellwall("supervisor", "stop")


# Accounts change under a running service


@pytest.mark.requirement("SRV-2")
def test_a_token_a_role_and_a_user_that_the_operator_ends_have_ended_at_once(served):
    place = served.place
    place.done("user", "add", "bob", "--role", "power-user")
    made = json.loads(place.done("token", "create", "--user", "bob", "--json"))
    with served.client(made["token"]) as bob:
        assert bob.get("/v1/sessions").status_code == 200
        place.done("token", "revoke", made["id"])
        assert bob.get("/v1/sessions").status_code == 401
    token = place.done("token", "create", "--user", "bob").decode().strip()
    with served.client(token) as bob:
        plain, networked = (
            bob.post("/v1/sessions", json=body).json()["id"]
            for body in ({}, {"allow_domains": ["example.com"]})
        )
        place.done("user", "role", "bob", "user")
        # Its programs would keep an egress that the role no longer has; the other sandbox stays.
        until(lambda: bob.get(f"/v1/sessions/{networked}").json().get("state") != "live")
        assert bob.get(f"/v1/sessions/{plain}").json()["state"] == "live"
        place.done("user", "role", "bob", "guest")
        assert bob.post("/v1/sessions", json={}).status_code == 403
        place.done("user", "remove", "bob")
        assert bob.get("/v1/sessions").status_code == 401
    until(lambda: b" bob\n" not in place.done("ps"))  # his sandbox as well


# Slow and greedy clients


def read_to_end(line: socket.socket) -> bytes:
    line.settimeout(DEADLINE_S)
    data = b""
    try:
        while chunk := line.recv(65_536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST /v1/scan HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_client_that_stops_sending_is_disconnected(served, sent):
    with socket.create_connection(address(served)) as line:
        line.sendall(sent)
        assert b" 200 " not in read_to_end(line)


HEAD = b"GET /v1/healthz HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = (
    b"GET /v1/sessions/x/terminal HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
CHUNKED = (
    b"POST /v1/auth/token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def test_an_empty_line_does_not_hold_a_connection(served):
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        line.sendall(HEAD + b"\r\n\r\n" + HEAD + b"\r\n")  # the control: a request may follow
        answer = b""
        while answer.count(b'"status":"ok"') < 2:
            answer += line.recv(65_536)
        line.sendall(b"\r\n")
        assert read_to_end(line) == b""


@pytest.mark.parametrize("field", [b"Content-Length: 9", b"Transfer-Encoding: chunked"])
def test_a_websocket_handshake_with_a_body_does_not_hold_a_connection(served, field):
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        line.sendall(UPGRADE + field + b"\r\n\r\n")
        assert read_to_end(line).startswith(b"HTTP/1.1 400 ")
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        line.sendall(UPGRADE + b"\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 101 ")  # the control


def test_a_message_of_an_unknown_client_is_bounded_while_it_comes(served):
    def close_code(size: int) -> int:
        path = f"ws://localhost:{address(served)[1]}/v1/sessions/x/terminal"
        with connect(path, open_timeout=DEADLINE_S, proxy=None) as line:
            line.send("x" * size)
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    line.recv(timeout=DEADLINE_S)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code

    assert close_code(MAX_FRAME_BYTES + 1) == 1009  # not read to its end
    assert close_code(MAX_FRAME_BYTES) == 1008  # the control: read, and no token


def test_trailers_are_not_taken_for_headers(served):
    def session(*, head: bytes, trailer: bytes) -> bytes:
        with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
            line.sendall(
                b"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
                + head + b"\r\n2\r\n{}\r\n0\r\n" + trailer + b"\r\n"
            )  # fmt: skip
            return read_to_end(line)

    token = f"Authorization: Bearer {served.place.environment['TOKEN']}\r\n".encode()
    assert session(head=b"", trailer=token).startswith(b"HTTP/1.1 401 ")
    assert session(head=token, trailer=b"Host: evil.example\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"0\r\n", b"X-Filler: " + b"x" * 8000 + b"\r\n"),
        (b"0\r\nX-Filler: ", b"x" * 8000),
        (b"2;", b"x" * 8000),
    ],
    ids=["trailers", "one trailer", "a chunk extension"],
)
def test_endless_framing_of_a_body_is_cut_off(served, start, piece):
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        line.sendall(CHUNKED + b"2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 4")  # the control: both are permitted
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        sent = 0
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            line.sendall(CHUNKED + start)
            while sent < 1 << 28:
                line.sendall(piece)
                sent += len(piece)
        assert sent < 16 << 20  # what the kernel's buffers hold


def test_an_endless_head_is_cut_off(served):
    with socket.create_connection(address(served)) as line:
        line.settimeout(DEADLINE_S)
        sent = 0
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            line.sendall(b"GET /v1/healthz HTTP/1.1\r\n")
            while sent < 1 << 28:
                line.sendall(b"X-Filler: " + b"x" * 8000 + b"\r\n")
                sent += 8000
        assert sent < 16 << 20  # what the kernel's buffers hold


def test_a_body_that_comes_byte_by_byte_is_cut_off(served):
    start = b"POST /v1/scan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        line.sendall(start + b" " * 60_000)
        assert line.recv(65_536).startswith(b"HTTP/1.1 401 ")  # the control: it comes at once
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        line.sendall(start)
        line.settimeout(0.1)

        def is_closed() -> bool:
            try:
                line.sendall(b" ")  # never silent for as long as the service waits
                return not line.recv(65_536)
            except TimeoutError:
                return False
            except OSError:
                return True

        until(is_closed)


def test_a_client_that_reads_no_answer_is_disconnected(served):
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def is_held(line: socket.socket) -> bool:
        """Whether the service's end is established; this end cannot know before it reads."""
        ends = f":{address(served)[1]:04X}", f":{line.getsockname()[1]:04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()]
        return any((row[1][8:], row[2][8:], row[3]) == (*ends, "01") for row in rows)

    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(DEADLINE_S)
        line.connect(address(served))
        assert is_held(line)
        line.sendall(ask * 40)
        until(lambda: not is_held(line))
        assert line.recv(4096).startswith(b"HTTP/1.1 200 ")  # the control: it did answer


def test_idle_connections_do_not_take_all_places_for_long(served, ann):
    lines = [socket.create_connection(address(served)) for _ in range(20)]
    try:
        for line in lines:
            assert read_to_end(line) == b""
        assert ann.get("/v1/healthz").status_code == 200
    finally:
        for line in lines:
            line.close()


@pytest.mark.parametrize(
    "flood",
    [b"\x89\x80\0\0\0\0", b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0"],
    ids=["pings", "parts"],
)
def test_a_websocket_that_floods_is_disconnected(served, flood):
    """Without an account: the token would come with the first message."""
    with socket.create_connection(address(served), timeout=DEADLINE_S) as line:
        line.sendall(
            b"GET /v1/sessions/sbx_x/terminal HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert line.recv(65_536).startswith(b"HTTP/1.1 101 ")
        line.sendall(b"\x89\x80\0\0\0\0" * 100)
        answers = b""
        while len(answers) < 200:  # the control: an ordinary number of pings is answered
            answers += line.recv(65_536)
        assert answers == b"\x8a\0" * 100
        line.sendall(flood[:6])
        with pytest.raises(ConnectionError):
            while True:
                line.sendall(flood[-6:] * 1000)


# Housekeeping


@pytest.mark.requirement("SRV-2")
def test_expired_tokens_are_deleted_now_and_then(served):
    place = served.place
    made = json.loads(place.done("token", "create", "--user", "ann", "--ttl", "1s", "--json"))

    def listed() -> list[str]:
        found = json.loads(place.done("token", "list", "--json"))
        return [each["id"] for each in found["tokens"]]

    until(lambda: made["id"] not in listed())
    assert listed()  # the others stay


# doctor


def test_doctor_finds_the_running_service_and_a_certificate_that_is_none(served, place):
    found = json.loads(served.place.cellwall("doctor", "--service", "--json").stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["port"]["found"] == "the service is running"
    assert checks["database"]["status"] == checks["state folder"]["status"] == "ok"
    assert checks["service account"]["status"] == ("ok" if served.place.user else "weak")
    place.configure('[server]\ntls_certificate = "/dev/null"\ntls_key = "/dev/null"\n')
    found = json.loads(place.cellwall("doctor", "--service", "--json").stdout)
    assert not found["usable"]
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["TLS"]["status"] == "missing"
    assert checks["database"]["found"] == "created by the first start"


def test_a_hangup_drains_as_well(place):
    with place.serving() as served:
        served.process.send_signal(signal.SIGHUP)
        assert served.ended() == 0


def test_a_removed_state_folder_ends_the_service(place):
    with place.serving() as served:
        place.home.rename(place.folder / "moved")
        assert served.ended() == 0
