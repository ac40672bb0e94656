"""Attacks on MCP over HTTP: hostile bodies and headers, floods of sessions, connections cut short."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from cellwall.accounts.service import Accounts
from cellwall.interfaces.mcp import http_client, http_endpoint
from cellwall.interfaces.mcp.http_events import EventLog
from conftest import need
from interfaces.mcp_agent import until
from interfaces.mcp_service import BOSS, HANDSHAKE, MODERN, McpService, RawClient, serving

pytestmark = pytest.mark.only_on("warm", reason="the service makes its own cells")
MIB = 1024 * 1024
MAX_PER_USER = 4
CONFIG = f"[sandbox]\nmax_code_bytes = {MIB}\n[mcp]\nmax_sessions_per_user = {MAX_PER_USER}\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpService]:
    need(shutil.which("bwrap"), "bubblewrap")
    with serving(tmp_path_factory.mktemp("mcp-attacked"), CONFIG) as found:
        yield found


@pytest.fixture(scope="module")
def other_token(service: McpService) -> str:
    return service.token("other")[0]


@pytest.fixture(autouse=True)
def still_serves(service: McpService, other_token: str) -> Iterator[None]:
    """Whatever was sent: other users notice nothing."""
    yield
    service.disconnect()
    assert RawClient(service, other_token).ask("tools/list").status_code == 200
    service.disconnect()


@pytest.fixture(params=[MODERN, HANDSHAKE])
def version(request: pytest.FixtureRequest) -> str:
    return request.param


def _call(arguments: str) -> bytes:
    params = f'{{"name":"run_code","arguments":{arguments}}}'
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + params.encode() + b"}"


BODIES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "no JSON": b"{",
    "a string": b'"tools/list"',
    "null": b"null",
    "a batch": b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]',
    "not UTF-8": _call('{"code":"\xff"}').replace("\xff".encode(), b"\xff"),
    "UTF-16": _call("{}").decode().encode("utf-16"),
    "a lone surrogate as id": b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/list"}',
    "id null": b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}',
    "id an object": b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
    "id a fraction": b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}',
    "id too long": b'{"jsonrpc":"2.0","id":"' + b"x" * 5000 + b'","method":"tools/list"}',
    "nested lists": b"[" * 100_000 + b"]" * 100_000,
    "nested arguments": _call('{"code":' * 5000 + "1" + "}" * 5000),
    "many values": _call('{"code":[' + "0," * 20_000 + "0]}"),
    "many keys": _call("{" + ",".join(f'"k{n}":0' for n in range(20_000)) + "}"),
    "a huge number": b'{"jsonrpc":"2.0","id":' + b"9" * 10_000 + b',"method":"tools/list"}',
}


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize("body", BODIES)
def test_a_hostile_body_is_a_short_error(service: McpService, version: str, body: str) -> None:
    client = RawClient(service, service.token("mallory")[0], version)
    client.open()
    headers = {**client.headers(), "content-type": "application/json", "mcp-method": "tools/call"}
    answer = client.http.post(service.url, content=BODIES[body], headers=headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert len(error["message"]) < 100
    assert client.send("DELETE").status_code in {200, 405}


@pytest.mark.requirement("LIM-1")
def test_a_body_beyond_the_limit_is_refused_while_it_comes(
    service: McpService, version: str
) -> None:
    client = RawClient(service, service.token("mallory")[0], version)
    client.open()
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        yield b'{"jsonrpc":"2.0","id":1,"method":"'
        while True:
            sent += MIB
            yield b"x" * MIB

    headers = {**client.headers(), "content-type": "application/json"}
    try:
        answer = client.http.post(service.url, content=endless(), headers=headers)
    except (
        httpx2.WriteError,
        httpx2.ReadError,
        httpx2.RemoteProtocolError,
    ):  # refused, and closed while we were still sending
        pass
    else:
        assert answer.status_code == 413
    assert sent < 40 * MIB
    # One that says so is refused before it comes.
    said = client.http.build_request("POST", service.url, headers=headers, content=b"{}")
    said.headers["content-length"] = str(10**12)
    assert _raw(service, said).startswith(b"HTTP/1.1 413 ")
    # A call of the permitted size is taken.
    assert client.call("run_code", code="#" * (MIB - 10))["status"] == "ok"
    client.send("DELETE")


def _raw(service: McpService, request: httpx2.Request) -> bytes:
    """The first bytes of the response to a request written by hand."""
    lines = [f"{request.method} /mcp HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    with _connected(service) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection.recv(1000)


def _connected(service: McpService) -> socket.socket:
    parts = urlsplit(service.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


HEADERS: dict[str, tuple[list[tuple[str, str]], int]] = {
    "two versions": ([("mcp-protocol-version", MODERN), ("mcp-protocol-version", HANDSHAKE)], 400),
    "a list of versions": ([("mcp-protocol-version", f"{MODERN}, {HANDSHAKE}")], 400),
    "an unknown version": ([("mcp-protocol-version", "2099-01-01")], 400),
    "no version at all": ([("mcp-protocol-version", "")], 400),
    "a long version": ([("mcp-protocol-version", "2" * 8000)], 400),
    "two sessions": ([("mcp-session-id", "a"), ("mcp-session-id", "b")], 400),
    "an empty session": ([("mcp-session-id", "")], 404),
    "a path as session": ([("mcp-session-id", "../../etc/passwd")], 404),
    "a long session": ([("mcp-session-id", "x" * 8000)], 404),
    "a session in Latin-1": ([("mcp-session-id", "\xff\xfe")], 404),
    "no session": ([("mcp-protocol-version", HANDSHAKE)], 400),
    "another method": ([("mcp-protocol-version", MODERN), ("mcp-method", "ping")], 400),
    "no method": ([("mcp-protocol-version", MODERN)], 400),
    "no JSON": (
        [("mcp-protocol-version", MODERN), ("mcp-method", "tools/list"), ("content-type", "x/y")],
        400,
    ),
    "accepts nothing": (
        [("mcp-protocol-version", MODERN), ("mcp-method", "tools/list"), ("accept", "image/png")],
        406,
    ),
}


@pytest.mark.requirement("SRV-3")
@pytest.mark.parametrize("headers", HEADERS)
def test_malformed_headers_are_refused(service: McpService, headers: str) -> None:
    sent, status = HEADERS[headers]
    client = RawClient(service, service.token("mallory")[0])
    usual = [
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
    ]
    names = {name for name, _ in sent}
    body = json.dumps(client.message("tools/list"))
    answer = client.http.post(
        service.url,
        content=body,
        headers=[
            *(each for each in usual if each[0] not in names),
            *((name, value.encode("latin-1")) for name, value in sent),
        ],
    )
    assert answer.status_code == status, answer.text


def test_two_tokens_are_no_token(service: McpService) -> None:
    own, other = service.token("mallory")[0], service.token("other")[0]
    client = RawClient(service, own)
    both = [("authorization", f"Bearer {own}"), ("authorization", f"Bearer {other}")]
    message = client.message("tools/list")
    with httpx2.Client(timeout=60) as http:
        known = {**client.headers(message), "accept": "application/json, text/event-stream"}
        answer = http.post(service.url, json=message, headers=[*known.items(), *both])
        assert answer.status_code == 400


@pytest.mark.requirement("SRV-3")
def test_pages_of_others_reach_nothing_even_with_a_token(service: McpService) -> None:
    client = RawClient(service, service.token("mallory")[0])
    port = urlsplit(service.url).port
    assert client.send(host=f"evil.example:{port}").status_code == 421
    assert client.send(origin="https://evil.example").status_code == 403
    assert client.send(origin="null").status_code == 403
    assert client.send(origin=service.url.removesuffix("/mcp")).status_code == 200


@pytest.mark.requirement("SRV-2")
def test_guesses_are_slowed_down_and_known_tokens_go_on(tmp_path_factory: Any) -> None:
    config = "[accounts]\nfree_guesses_per_address = 3\nargon2_memory_kib = 64\n"
    with serving(tmp_path_factory.mktemp("guessed"), config, accounts="") as service:
        known = RawClient(service, service.token("ann")[0])
        assert known.ask("tools/list").status_code == 200
        guesses = [RawClient(service, f"cws_guess{number}").send() for number in range(12)]
        slowed = [each for each in guesses if each.status_code == 429]
        assert slowed
        assert all(int(each.headers["retry-after"]) > 0 for each in slowed)
        assert known.ask("tools/list").status_code == 200


@pytest.mark.requirement("LIM-1")
def test_hundreds_of_sessions_take_the_room_of_a_few(service: McpService) -> None:
    """Unused ones make room; those with sandboxes are kept, and more are refused."""
    token = service.token("flooder")[0]
    opened = [RawClient(service, token, HANDSHAKE) for _ in range(100)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(_open, opened))
    alive = [each for each in opened if each.send().status_code == 200]
    assert len(alive) == MAX_PER_USER
    for each in alive:
        assert each.call("run_code", code="1")["status"] == "ok"
    refused = RawClient(service, token, HANDSHAKE).send(message=_initialize())
    assert (refused.status_code, "CW-TOO-MANY-SESSIONS" in refused.text) == (503, True)
    assert RawClient(service, service.token("bystander")[0], HANDSHAKE).ask("ping").is_success
    for each in alive:
        each.send("DELETE")


def _open(client: RawClient) -> None:
    """On a busy machine a session may have made room before it is initialised."""
    opened = client.send(message=_initialize())
    opened.raise_for_status()
    client.session_id = opened.headers["mcp-session-id"]
    said = {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}
    assert client.send(message=said).status_code in (202, 404)


def _initialize() -> dict[str, Any]:
    hello = {"protocolVersion": HANDSHAKE, "capabilities": {}}
    hello["clientInfo"] = {"name": "x", "version": "1"}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}


@pytest.mark.requirement("LIM-1")
def test_sandboxes_of_all_sessions_of_a_user_count_together(service: McpService) -> None:
    """With those of the API."""
    clients = [RawClient(service, service.token("hoarder")[0], version) for version in [MODERN] * 3]
    made = [
        client.call("new_session") for client in clients for _ in range(8)
    ]  # 24, and 20 are permitted
    refused = [each for each in made if each["status"] != "ok"]
    assert [each["error"]["code"] for each in refused] == ["CW-TOO-MANY-SESSIONS"] * 4
    with service.http(service.token("hoarder")[0]) as http:
        api = service.url.removesuffix("/mcp") + "/v1/sessions"
        assert http.post(api, json={}).json()["error"]["code"] == "CW-TOO-MANY-SESSIONS"
    service.run(
        lambda: service.accounts.directory.revoke_user(service.user_ids["hoarder"], by=BOSS)
    )
    names = {each["session"] for each in made if each["status"] == "ok"}
    until(lambda: not names & set(os.listdir(service.home / "workspaces")))


@pytest.mark.requirement("LIM-1")
def test_an_idle_session_ends_with_its_sandboxes(tmp_path_factory: Any) -> None:
    home = tmp_path_factory.mktemp("idle")
    with serving(home, "[mcp]\nidle_s = 1\n") as service:
        clients = [
            RawClient(service, service.token("ann")[0], each) for each in (MODERN, HANDSHAKE)
        ]
        for client in clients:
            client.call("run_code", code="1")
        old = clients[1]
        # A stream that only waits keeps nothing alive; it ends with the session.
        with old.http.stream("GET", old.url, headers=old.headers()) as waiting:
            assert waiting.status_code == 200
            until(lambda: os.listdir(home / "workspaces") == [])
            assert list(waiting.iter_raw()) is not None
        assert old.send().status_code == 404
        # A call that runs longer is no idle time.
        assert clients[0].call("run_code", code="import time; time.sleep(2.5)")["status"] == "ok"


def test_a_connection_cut_short_costs_nothing(
    service: McpService, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_endpoint, "_BODY_WITHIN_S", 0.2)
    client = RawClient(service, service.token("mallory")[0], version)
    client.open()
    request = client.http.build_request(
        "POST", service.url, headers=client.headers(), json=client.message("tools/list")
    )
    request.headers["content-length"] = "1000"  # more than will come
    assert _raw(service, request).startswith(b"HTTP/1.1 408 ")
    head = "\r\n".join(
        ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in request.headers.items())]
    )
    for cut in (b"", b"{", b'{"jsonrpc"'):
        with _connected(service) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + cut)
            connection.shutdown(socket.SHUT_WR)
    until(lambda: service.run(lambda: _in_flight(service)) == 0)
    client.send("DELETE")


@pytest.mark.requirement("SRV-2")
def test_a_revocation_counts_for_a_request_whose_body_is_still_coming(
    service: McpService, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a body sent slowly would keep a revoked token alive."""
    for is_revoked in (False, True):
        token, token_id = service.token("slow")
        client = RawClient(service, token, version)
        client.open()
        asked = CountedAccounts(service.accounts)
        monkeypatch.setattr(service.endpoint, "accounts", asked)
        message = client.message("tools/list")
        request = client.http.build_request(
            "POST", service.url, headers=client.headers(message), json=message
        )
        lines = ["POST /mcp HTTP/1.1", *(f"{k}: {v}" for k, v in request.headers.items()), "", ""]
        body = request.read()
        with _connected(service) as connection:
            connection.sendall("\r\n".join(lines).encode() + body[:5])
            until(lambda asked=asked: asked.count == 1)  # the token has been accepted
            if is_revoked:
                user_id, revoke = service.user_ids["slow"], service.store.revoke_service_token
                service.run(lambda: revoke(token_id, user_id=user_id))  # noqa: B023  # called now
            connection.sendall(body[5:])
            status = connection.recv(12)
        assert status == (b"HTTP/1.1 401" if is_revoked else b"HTTP/1.1 200")


class CountedAccounts:
    """The accounts, and how often they were asked about a token."""

    def __init__(self, accounts: Accounts) -> None:
        self.count = 0
        self._accounts = accounts

    async def authenticate(self, *words: Any, **named: Any) -> Any:
        found = await self._accounts.authenticate(*words, **named)
        self.count += 1
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accounts, name)


async def _in_flight(service: McpService) -> int:
    assert service.endpoint._clients is not None
    return sum(len(each._requests) for each in service.endpoint._clients._live.values())


def test_streams_that_nobody_reads_hold_up_nobody(service: McpService) -> None:
    client = RawClient(service, service.token("mallory")[0], HANDSHAKE)
    client.open()
    names = {**client.http.headers, **client.headers(), "host": urlsplit(service.url).netloc}
    head = "\r\n".join(["GET /mcp HTTP/1.1", *(f"{name}: {names[name]}" for name in names)])
    opened = []
    for _ in range(20):  # one stream is open, and further ones are refused
        connection = _connected(service)
        connection.sendall(head.encode() + b"\r\n\r\n")
        opened.append(connection)
    assert sorted({connection.recv(12) for connection in opened}) == [
        b"HTTP/1.1 200",
        b"HTTP/1.1 409",
    ]
    assert client.call("run_code", code="1")["status"] == "ok"
    for connection in opened:
        connection.close()
    until(lambda: service.run(lambda: _in_flight(service)) == 0)
    with _connected(service) as connection:  # the control: a stream opens once the other has ended
        connection.sendall(head.encode() + b"\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
    until(lambda: service.run(lambda: _in_flight(service)) == 0)
    client.send("DELETE")


@pytest.mark.requirement("LIM-1")
def test_requests_of_one_client_are_bounded(
    service: McpService, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = RawClient(service, service.token("mallory")[0], version)
    client.open()
    until(lambda: service.run(lambda: _in_flight(service)) == 0)
    monkeypatch.setattr(http_client, "MAX_REQUESTS", 1)
    wait = {"code": "import time; time.sleep(600)"}
    with client.stream("tools/call", name="run_code", arguments=wait) as events:
        next(events)
        busy = client.send()
        assert (busy.status_code, "CW-BUSY" in busy.text) == (503, True)
    until(lambda: client.send("DELETE").status_code in {200, 405})


def test_concurrent_first_calls_share_one_client_and_one_sandbox(service: McpService) -> None:
    token = service.token("eager")[0]
    clients = [RawClient(service, token) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda each: each.call("list_files"), clients))
    assert len({each["session"] for each in found}) == 1
    assert {each["status"] for each in found} == {"ok"}


def test_the_log_of_events_is_bounded() -> None:
    async def work() -> None:
        log = EventLog(max_events=3, max_bytes=10_000)
        ids = [await log.store_event(stream, None) for stream in "aabab"]
        replayed: list[Any] = []

        async def keep(event: Any) -> None:
            replayed.append(event)

        for gone in (*ids[:2], "", "0", "-1", "x" * 1000, "9" * 5000):
            assert await log.replay_events_after(gone, keep) is None
        assert await log.replay_events_after(ids[2], keep) == "b"
        assert replayed == []  # positions alone

    anyio.run(work)
