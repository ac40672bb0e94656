"""Servers inside a sandbox, reached by the process that made it."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator

import anyio
import pytest

import cellwall
from cellwall import AsyncSandbox, Sandbox
from conftest import audit_records

# Answers each request with the bytes that it got, and ends the connection.
ECHO = """
import socket
server = socket.create_server((HOST, 8000), family=FAMILY)
while True:
    line, _ = server.accept()
    got = b""
    while b"\\r\\n\\r\\n" not in got and (part := line.recv(65536)): got += part
    line.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\n" + got)
    line.close()
"""


def start(sandbox: Sandbox, host: str = "127.0.0.1", family: str = "socket.AF_INET") -> None:
    code = ECHO.replace("HOST", repr(host)).replace("FAMILY", family)
    sandbox.commands.run(["python3", "-c", code], background=True)
    deadline = time.monotonic() + 20
    while True:
        try:
            with sandbox.ports.connect(8000):
                return
        except cellwall.BadInput:  # CW-NO-SERVER
            assert time.monotonic() < deadline, "the server did not start"


def ask(port: int, headers: dict[str, str], path: str = "/") -> tuple[int, str, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    line.request("GET", path, headers=headers)
    answer = line.getresponse()
    return answer.status, answer.read().decode(), answer.headers.get("Location", "")


@pytest.fixture(scope="module")
def sbx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        start(sandbox)
        yield sandbox


@pytest.mark.requirement("INT-2")
def test_connection_reaches_the_server_and_is_recorded(state_home) -> None:
    with Sandbox.create() as sandbox:
        start(sandbox)
        with sandbox.ports.connect(8000) as line:
            line.sendall(b"hello\r\n\r\n")
            with line.makefile("rb") as answer:
                assert answer.read().endswith(b"\r\n\r\nhello\r\n\r\n")
        with pytest.raises(cellwall.BadInput) as refused, sandbox.ports.connect(3128):
            pass
        assert refused.value.code == "CW-BAD-PORT"
    bodies = [each["body"] for each in audit_records()]
    assert any(body.get("port") == 8000 for body in bodies)
    traffic = [body["traffic"] for body in bodies if body.get("traffic")]
    assert any(each["sent_bytes"] == 9 and each["received_bytes"] > 9 for each in traffic), traffic


def test_server_on_the_other_loopback_address_is_found() -> None:
    with Sandbox.create() as sandbox:
        start(sandbox, "::1", "socket.AF_INET6")


@pytest.mark.requirement("INT-2")
def test_forwarded_port_opens_for_the_token_alone_and_hides_it(sbx: Sandbox) -> None:
    with sbx.ports.forward(8000) as forward:
        own = {"Host": f"{forward.host}:{forward.port}"}
        status, seen, _ = ask(forward.port, {**forward.headers, "Cookie": "dashboard=secret"})
        assert status == 200
        # Browsers send the cookies of 127.0.0.1 to all of its ports.
        assert "secret" not in seen
        assert forward.token not in seen
        bearer = {"Authorization": f"Bearer {forward.token}"}
        assert forward.token not in ask(forward.port, bearer)[1]
        with_cookie = {**own, "Cookie": f"a=b; cellwall_token={forward.token}"}
        status, seen, _ = ask(forward.port, with_cookie)
        assert (status, "Cookie: a=b\r\n" in seen, forward.token in seen) == (200, True, False)
        query = f"//evil.example/?x&cellwall_token={forward.token}"
        assert ask(forward.port, own, query) == (303, "", "/evil.example/?x")
        for headers in (
            {},
            own,
            {"X-Cellwall-Token": "guess"},
            {"Cookie": f"cellwall_token={forward.token}"},  # under the name 127.0.0.1
        ):
            assert ask(forward.port, headers)[0] == 401
        assert ask(forward.port, {}, f"/?cellwall_token={forward.token}")[0] == 401
        with socket.create_connection(("127.0.0.1", forward.port), timeout=20) as line:
            line.sendall(b"\x16\x03\x01 no request\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 400")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", forward.port), timeout=5)


@pytest.mark.requirement("ISO-5")
def test_connection_gives_code_inside_no_way_out(sbx: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        with sbx.ports.connect(8000):
            code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
            refused = sbx.commands.run(["python3", "-c", code])
        assert "ConnectionRefusedError" in refused.stderr
        with socket.create_connection(("127.0.0.1", port), 2):  # the control
            pass


def test_async_connection() -> None:
    async def work() -> bytes:
        async with AsyncSandbox.create() as sandbox:
            code = ECHO.replace("HOST", "'127.0.0.1'").replace("FAMILY", "socket.AF_INET")
            await sandbox.commands.run(["python3", "-c", code], background=True)
            with anyio.fail_after(20):
                while True:
                    try:
                        async with sandbox.ports.connect(8000) as line:
                            line.send(b"x\r\n\r\n")
                            await anyio.wait_readable(line)
                            return line.recv(100)
                    except cellwall.BadInput:
                        await anyio.sleep(0.01)

    assert anyio.run(work).startswith(b"HTTP/1.1 200")


@pytest.mark.requirement("POL-1")
def test_rules_deny_a_port_ask_about_another_and_leave_the_rest_open(tmp_path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[permissions]\nallow = ["Bash"]\nask = ["Port(8001)"]\ndeny = ["Port(8002)"]\n'
    )
    asked: list[str] = []

    def answer(question) -> str:
        asked.append(question.shown)
        return "deny"

    with Sandbox.create(policy=str(rules), on_question=answer) as sandbox:
        start(sandbox)
        for port in (8001, 8002):
            with pytest.raises(cellwall.Denied), sandbox.ports.connect(port):
                pass
    assert len(asked) == 1
    assert "connect to port 8001 of the sandbox" in asked[0]
