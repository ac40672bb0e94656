"""Answers of several hosts to one request, and the one answer made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import anyio

from cellwall.admin.fleet import AnswerBroken, Message, Receive, Scope, Send

_DEFAULT_LIMIT = 100
MAX_ANSWER_BYTES = 32 * 1024 * 1024
_LISTS = ("sessions", "approvals", "snapshots")


@dataclass(slots=True)
class BufferedResponse:
    """One whole answer."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def take(self, message: Message) -> None:
        """The `send` of a call. A front holds the whole answer: a host that was taken over must
        not fill the front's memory with an endless one."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            if len(self.body) > MAX_ANSWER_BYTES:
                raise AnswerBroken

    async def send(self, send: Send) -> None:
        own = [(name, value) for name, value in self.headers if name != b"content-length"]
        own.append((b"content-length", str(len(self.body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": own})
        await send({"type": "http.response.body", "body": self.body})


def merged(scope: Scope, answers: Sequence[BufferedResponse]) -> BufferedResponse:
    """One list out of the lists of all hosts; a refusal of any host is the answer of all."""
    for answer in answers:
        if answer.status != 200:
            return answer
    bodies: list[Any] = [json.loads(each.body) for each in answers]
    first = answers[0]
    if all(isinstance(each, list) for each in bodies):  # as E2B lists
        rows = [row for each in bodies for row in each]
        return BufferedResponse(200, first.headers, json.dumps(rows).encode())
    name = next(each for each in _LISTS if each in bodies[0])
    page: dict[str, Any] = {**bodies[0], name: _rows(bodies, name)}
    if "next" in page:
        limit = _limit(scope)
        is_more = len(page[name]) > limit or any(each["next"] for each in bodies)
        page[name] = page[name][:limit]
        page["next"] = page[name][-1]["id"] if is_more and page[name] else None
    return BufferedResponse(200, first.headers, json.dumps(page).encode())


def _rows(bodies: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Each id once, by id: the host that has a session knows more of it than the others."""
    found: dict[str, Any] = {}
    for row in (row for each in bodies for row in each[name]):
        if row["id"] not in found or row.get("ends_in") is not None:
            found[row["id"]] = row
    return [found[key] for key in sorted(found)]


def _limit(scope: Scope) -> int:
    """The hosts have checked the number."""
    asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("limit")
    return int(asked[0]) if asked else _DEFAULT_LIMIT


async def _nothing_more() -> Message:
    await anyio.sleep_forever()
    raise AssertionError  # unreachable


def with_body(body: bytes, then: Receive | None = None) -> Receive:
    """A `receive` that gives this body, and then waits for what follows."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if pending:
            return pending.pop()
        return await (_nothing_more() if then is None else then())

    return receive
