"""kill -9 of a service under load: what it has acknowledged is there after the next start."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import pytest

from databases import postgres  # noqa: F401  # a fixture
from interfaces.served import DEADLINE_S, Place, Served, new_place, processes_with, until

pytestmark = pytest.mark.requirement("SRV-1", "SRV-4")
WORKERS, ENOUGH = 3, 4


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    config = ""
    if request.param == "postgresql":
        config = f'[storage]\nurl = "{request.getfixturevalue("postgres").new_url()}"\n'
    with new_place(config) as found:
        yield found


@dataclass
class Acknowledged:
    """What the service has answered with success."""

    runs: set[str] = field(default_factory=set)
    users: set[str] = field(default_factory=set)
    kept_tokens: set[str] = field(default_factory=set)
    ended_tokens: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def least(self) -> int:
        return min(len(self.runs), len(self.users), len(self.kept_tokens), len(self.ended_tokens))


def work(served: Served, token: str, mark: str, number: int, found: Acknowledged) -> None:
    """All kinds of changes, until the service is gone."""
    try:
        with served.client(token) as client:
            session = client.post("/v1/sessions", json={}).json()["id"]
            while True:
                command = {"command": ["sh", "-c", f": {mark}; echo {number}"]}
                ran = client.post(f"/v1/sessions/{session}/commands", json=command).json()
                name = f"u{uuid.uuid4().hex[:12]}"
                made = client.post("/v1/users", json={"name": name, "role": "user"})
                assert made.status_code == 201, made.text
                tokens = [client.post("/v1/tokens", json={"name": "t"}).json() for _ in range(2)]
                ended = client.delete(f"/v1/tokens/{tokens[0]['id']}")
                assert ended.status_code == 204, ended.text
                with found.lock:
                    found.runs.add(ran["audit_id"])
                    found.users.add(name)
                    found.ended_tokens.add(tokens[0]["token"])
                    found.kept_tokens.add(tokens[1]["token"])
    except (httpx.TransportError, json.JSONDecodeError):
        return  # killed


def become_owner(served: Served) -> tuple[str, str]:
    """An access token, which alone can make service tokens, and a service token."""
    link = served.told["sign_in_link"].rpartition("=")[2]
    body = {"link": link, "name": "ann", "password": "correct horse battery"}
    with served.client() as client:
        person = client.post("/v1/auth/token", json=body).json()["access_token"]
    with served.client(person) as client:
        return person, client.post("/v1/tokens", json={"name": "own"}).json()["token"]


@pytest.mark.requirement("ISO-8")
def test_kill_9_under_load_loses_nothing_acknowledged_and_leaves_no_cell(place: Place) -> None:
    mark, found = uuid.uuid4().hex, Acknowledged()
    with place.serving() as served:
        person, token = become_owner(served)
        each: Any = [(served, person, mark, number, found) for number in range(WORKERS)]
        threads = [threading.Thread(target=work, args=arguments) for arguments in each]
        for thread in threads:
            thread.start()
        until(lambda: found.least >= ENOUGH or not any(one.is_alive() for one in threads))
        served.process.kill()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert found.least >= ENOUGH
    until(lambda: not processes_with(mark))
    with place.serving() as again, again.client(token) as client:
        assert client.get("/v1/sessions").json()["sessions"] == []
        every = client.get("/v1/sessions", params={"state": "all"}).json()["sessions"]
        assert {one["state"] for one in every} == {"ended"}
        listed = {one["name"] for one in json.loads(place.done("user", "list", "--json"))["users"]}
        assert found.users <= listed
        answers = {secret: status_of(again, secret) for secret in found.ended_tokens}
        assert set(answers.values()) == {401}  # an end that is lost would be a door
        answers = {secret: status_of(again, secret) for secret in found.kept_tokens}
        assert set(answers.values()) == {200}
        assert found.runs <= {row["id"] for row in records_of(place)}
        assert place.done("audit", "verify")


def status_of(served: Served, secret: str) -> int:
    with served.client(secret) as client:
        return client.get("/v1/sessions").status_code


def records_of(place: Place) -> list[dict[str, Any]]:
    lines = place.done("audit", "export", "--form", "jsonl", "--to", "-").decode().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
