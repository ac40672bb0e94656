"""What a front does before and behind the calls of its hosts (SRV-6)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cellwall.admin.fleet import (
    HostState,
    Message,
    Place,
    RequestBodies,
    Scope,
    Wish,
    host_lost,
    no_host,
)
from cellwall.interfaces.http import fleet_front
from cellwall.interfaces.http.fleet_front import FleetFront

pytestmark = pytest.mark.requirement("SRV-6")
SESSION = "ses_01234567890123456789012345"
HTTP = {"type": "http", "method": "GET", "path": f"/v1/sessions/{SESSION}", "headers": []}
MIB = 1024 * 1024


class Fleet:
    """One host, whose answers a test gives."""

    is_claiming = False

    def __init__(self, answer: Callable[..., Awaitable[None]], *, is_lost: bool = False) -> None:
        self._answer, self._is_lost = answer, is_lost
        self.wishes: list[Wish] = []

    async def place(self, wish: Wish) -> str:
        self.wishes.append(wish)
        if wish.labels:
            raise no_host("none has the labels that it asks for")
        return "svc_1"

    async def release(self, host_id: str) -> None:
        pass

    async def find(self, kind: str, name: str) -> Place | None:
        del kind, name
        return Place("svc_0", is_lost=self._is_lost)

    async def list(self) -> tuple[HostState, ...]:
        return (HostState(id="svc_1", incarnation="inc_1"),)

    async def call(self, host_id: str, scope: Scope, receive: Any, send: Any) -> None:
        del host_id
        await self._answer(scope, receive, send)


def front_of(fleet: Any) -> FleetFront:
    return FleetFront(
        fleet,
        RequestBodies(max_bytes=64 * MIB, max_total_bytes=64 * MIB),
        max_body_bytes=16 * MIB,
    )


async def ask(front: FleetFront, scope: dict[str, Any], *messages: Message) -> list[Message]:
    """What the client gets; it sends nothing behind these messages, and waits."""
    left, got = list(messages), list[Message]()

    async def receive() -> Message:
        if left:
            return left.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        got.append(message)

    async with asyncio.timeout(30):
        await front(scope, receive, send)
    return got


def json_of(got: list[Message]) -> Any:
    return json.loads(b"".join(each.get("body", b"") for each in got[1:]))


def test_a_websocket_whose_host_is_lost_before_it_is_accepted_is_refused_at_once() -> None:
    async def lose(_scope: Scope, receive: Any, _send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        raise host_lost(was_sent=True)

    async def go() -> None:
        scope = {**HTTP, "type": "websocket"}
        got = await ask(front_of(Fleet(lose)), scope, {"type": "websocket.connect"})
        assert got == [{"type": "websocket.close", "code": 1011}]

    asyncio.run(go())


def answering(status: int, code: str) -> Callable[..., Awaitable[None]]:
    async def answer(_scope: Scope, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        body = json.dumps({"error": {"code": code}}).encode()
        await send({"type": "http.response.body", "body": body[:9], "more_body": True})
        await send({"type": "http.response.body", "body": body[9:]})

    return answer


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (421, "CW-ELSEWHERE", (410, "CW-HOST-LOST")),
        (421, "CW-HOST", (421, "CW-HOST")),  # of a stranger, who names a wrong host
        (404, "CW-NOT-FOUND", (404, "CW-NOT-FOUND")),
    ],
)
def test_the_owner_alone_learns_that_a_host_was_lost(
    status: int, code: str, told: tuple[int, str]
) -> None:
    async def go() -> None:
        front = front_of(Fleet(answering(status, code), is_lost=True))
        got = await ask(front, dict(HTTP))
        assert (got[0]["status"], json_of(got)["error"]["code"]) == told

    asyncio.run(go())


class TestNewSessions:
    NEW = {"type": "http", "method": "POST", "path": "/v1/sessions", "headers": []}  # noqa: RUF012  # a constant

    @pytest.fixture
    def parsed(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        found: list[int] = []
        loads = json.loads

        def counted(text: Any) -> Any:
            found.append(len(text))
            return loads(text)

        monkeypatch.setattr(fleet_front.json, "loads", counted)
        return found

    @staticmethod
    def host_that_knows(*, is_known: bool) -> Callable[..., Awaitable[None]]:
        async def answer(scope: Scope, _receive: Any, send: Any) -> None:
            is_question = scope["path"] == "/v1/auth/session"
            status = (200 if is_known else 401) if is_question else 201
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

        return answer

    @pytest.mark.parametrize(
        ("body", "is_known", "is_read"),
        [
            (b'{"memory": 5}', False, True),
            (b'{"memory": 5}' + bytes([32]) * MIB, True, True),
            (b'{"memory": 5}' + bytes([32]) * MIB, False, False),  # of a stranger
            (b'{"memory": 5, "x": [' + b"[]," * 200_000 + b"0]}", True, False),
            (b'{"memory": 5}' + bytes([32]) * 17 * MIB, True, False),  # the host refuses it
        ],
    )
    def test_a_large_body_is_parsed_for_known_callers_alone(
        self, parsed: list[int], body: bytes, is_known: bool, is_read: bool
    ) -> None:
        async def go() -> None:
            fleet = Fleet(self.host_that_knows(is_known=is_known))
            message = {"type": "http.request", "body": body, "more_body": False}
            got = await ask(front_of(fleet), dict(self.NEW), message)
            assert got[0]["status"] == 201  # the hosts decide
            assert [each.memory_bytes for each in fleet.wishes] == [5 if is_read else 0]
            assert (len(body) in parsed) == is_read

        asyncio.run(go())

    @pytest.mark.parametrize(
        ("name", "is_asked"), [(SESSION, True), ("\ud800", False), ("x", False)]
    )
    def test_a_kept_session_is_looked_for_by_an_id_alone(
        self,
        name: str,
        is_asked: bool,
    ) -> None:
        """A database fails on a text that is no UTF-8."""

        async def go() -> None:
            fleet = Fleet(self.host_that_knows(is_known=True))
            body = json.dumps({"resume": name}).encode()
            message = {"type": "http.request", "body": body, "more_body": False}
            got = await ask(front_of(fleet), dict(self.NEW), message)
            assert got[0]["status"] == 201
            assert [each.host_id for each in fleet.wishes] == ["svc_0" if is_asked else ""]

        asyncio.run(go())

    @pytest.mark.parametrize(
        ("status", "told"),
        [
            (200, (503, "CW-FLEET-FULL")),
            (401, (401, "CW-SIGN-IN")),
            (429, (503, "CW-FLEET-FULL")),  # it may be a known one
        ],
    )
    def test_strangers_do_not_learn_which_labels_hosts_have(
        self, status: int, told: tuple[int, str]
    ) -> None:
        async def go() -> None:
            front = front_of(Fleet(answering(status, "CW-X")))
            scope = {**self.NEW, "headers": [(b"cellwall-labels", b"tenant=acme")]}
            message = {"type": "http.request", "body": b"{}", "more_body": False}
            got = await ask(front, scope, message)
            assert (got[0]["status"], json_of(got)["error"]["code"]) == told

        asyncio.run(go())

    @pytest.mark.parametrize(
        ("status", "code", "told"),
        [
            (421, "CW-ELSEWHERE", (410, "CW-HOST-LOST")),  # to its owner
            (404, "CW-NOT-FOUND", (404, "CW-NOT-FOUND")),
            (401, "CW-SIGN-IN-MISSING", (401, "CW-SIGN-IN-MISSING")),
        ],
    )
    def test_the_owner_alone_learns_that_kept_files_were_lost(
        self, status: int, code: str, told: tuple[int, str]
    ) -> None:
        async def go() -> None:
            front = front_of(Fleet(answering(status, code), is_lost=True))
            body = json.dumps({"resume": SESSION}).encode()
            message = {"type": "http.request", "body": body, "more_body": False}
            got = await ask(front, dict(self.NEW), message)
            assert (got[0]["status"], json_of(got)["error"]["code"]) == told

        asyncio.run(go())
