"""A terminal of a sandbox over a WebSocket, with a real client."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from cellwall.interfaces.http import terminal
from interfaces.http.running_service import DEADLINE_S, PASSWORD, RunningService, new_session
from interfaces.test_cli_process import until

pytestmark = pytest.mark.slow
TYPED_FIRST, TYPED_SECOND = b"stty size; tty\n", b"stty size\n"
TYPED_LAST = b"echo kept > mark; exit 7\n"


def open_terminal(service: RunningService, session: str, **more: Any) -> ClientConnection:
    address = f"ws://127.0.0.1:{service.port}/v1/sessions/{session}/terminal"
    return connect(address, open_timeout=DEADLINE_S, close_timeout=DEADLINE_S, proxy=None, **more)


def read_until(line: ClientConnection, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        message = line.recv(timeout=DEADLINE_S)
        assert isinstance(message, bytes), message
        seen += message
    return seen


def last_text(line: ClientConnection) -> dict[str, Any]:
    """The last message before the end, which is a text."""
    found = {}
    try:
        while True:
            message = line.recv(timeout=DEADLINE_S)
            if isinstance(message, str):
                found = json.loads(message)
    except ConnectionClosed:
        return found


@pytest.mark.requirement("SRV-1")
def test_a_shell_runs_on_a_terminal_of_its_size(
    service: RunningService, user: httpx.Client
) -> None:
    session = new_session(user)
    with open_terminal(service, session) as line:
        line.send(json.dumps({"token": service.tokens["user"], "rows": 31, "columns": 99}))
        line.send(TYPED_FIRST)
        assert b"31 99" in read_until(line, b"/dev/pts/")
        line.send(json.dumps({"rows": 12, "columns": 34}))
        line.send(TYPED_SECOND)
        read_until(line, b"12 34")
        line.send(TYPED_LAST)
        assert last_text(line) == {"exit_code": 7}
    assert user.get(f"/v1/sessions/{session}/files/mark").content == b"kept\n"
    records = user.get("/v1/audit", params={"session": session, "limit": 1000}).json()["records"]
    typed = [
        each["body"]["data_bytes"] for each in records if each["body"].get("process") == "write"
    ]
    assert sorted(typed) == sorted(map(len, (TYPED_FIRST, TYPED_SECOND, TYPED_LAST)))


def test_the_program_ends_with_the_connection(service: RunningService, user: httpx.Client) -> None:
    session = new_session(user)
    code = "import glob; sum('sleep' in open(p).read() for p in glob.glob('/proc/[0-9]*/comm'))"

    def seen() -> int:
        ran = user.post(f"/v1/sessions/{session}/code", json={"code": code}).json()
        assert ran["status"] == "ok", ran
        return ran["value"]

    with open_terminal(service, session) as line:
        start = {"token": service.tokens["user"], "command": ["sleep", "4321"]}
        line.send(json.dumps(start))
        until(lambda: seen() == 1)
    until(lambda: seen() == 0)


@pytest.mark.requirement("SRV-2", "RBAC-3")
def test_without_a_right_there_is_no_terminal(service: RunningService, user: httpx.Client) -> None:
    session = new_session(user)
    answers = []
    for name, where in (("owner", session), ("owner", "sbx_" + "0" * 26)):
        with open_terminal(service, where) as line:
            line.send(json.dumps({"token": service.tokens[name]}))
            answers.append(last_text(line))
    assert answers[0] == answers[1]
    assert answers[0]["error"]["code"] == "CW-NOT-FOUND"
    starts = [{}, {"token": ""}, {"token": 5}, {"token": "cws_wrong"}, {"csrf_token": "x"}, []]
    for start in starts:
        with open_terminal(service, session) as line:
            line.send(json.dumps(start))
            assert set(last_text(line)) == {"error"}
    for raw in (b"\xff\xfe", "no json", "[" * 100_000, "x" * 70_000):
        with open_terminal(service, session) as line:
            line.send(raw)
            assert set(last_text(line)) == {"error"}
    with (
        pytest.raises(InvalidStatus),
        open_terminal(service, session, origin="http://evil.example"),
    ):
        pass


@pytest.mark.requirement("SRV-1")
def test_the_first_message_is_bounded(service: RunningService, user: httpx.Client) -> None:
    session = new_session(user)
    start = json.dumps({"token": service.tokens["user"], "command": ["true"]})
    most = terminal.MAX_FRAME_BYTES // 2
    with open_terminal(service, session) as line:
        line.send(start.ljust(most))
        assert last_text(line) == {"exit_code": 0}  # the control
    with open_terminal(service, session) as line:
        line.send(start.ljust(most + 1))
        assert last_text(line)["error"]["code"] == "CW-TOO-LARGE"


@pytest.mark.requirement("SRV-2")
def test_a_revoked_token_ends_the_terminal(service: RunningService) -> None:
    service.add_user("dora")
    service.set_password("dora")
    with service.client() as client:
        body = {"name": "dora", "password": PASSWORD}
        access = client.post("/v1/auth/token", json=body).json()["access_token"]
        client.headers["Authorization"] = f"Bearer {access}"
        session = new_session(client)
        with open_terminal(service, session) as line:
            line.send(json.dumps({"token": access}))
            line.send(b"echo begun-$((1+1))\n")
            read_until(line, b"begun-2")
            assert client.post("/v1/auth/revoke").status_code == 204
            # A prompt that came meanwhile was a read of its own: the terminal has ended then.
            with suppress(ConnectionClosed):
                line.send(b"echo on > file\n")
            assert last_text(line)["error"]["code"] == "CW-SIGN-IN-TOKEN"


def test_a_browser_opens_a_terminal_by_its_cookie_and_csrf_token(service: RunningService) -> None:
    service.add_user("emil")
    service.set_password("emil")
    with service.client() as browser:
        body = {"name": "emil", "password": PASSWORD, "cookie": True}
        csrf = browser.post("/v1/auth/token", json=body).json()["csrf_token"]
        browser.headers["X-CSRF-Token"] = csrf
        session = new_session(browser)
        cookie = {"Cookie": "; ".join(f"{k}={v}" for k, v in browser.cookies.items())}
        own = {"origin": service.url, "additional_headers": cookie}
        with open_terminal(service, session, **own) as line:
            line.send(json.dumps({"csrf_token": "wrong"}))
            assert last_text(line)["error"]["code"] == "CW-SIGN-IN-MISSING"
        with open_terminal(service, session, **own) as line:
            line.send(json.dumps({"csrf_token": csrf}))
            line.send(b"exit 3\n")
            assert last_text(line) == {"exit_code": 3}
