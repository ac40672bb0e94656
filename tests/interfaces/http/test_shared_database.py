"""Two services on one PostgreSQL and one Redis: what they share, and what answers clearly."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from databases import PostgresServer, postgres, redis_url  # noqa: F401  # fixtures
from interfaces.served import DEADLINE_S, Place, Served, new_place, until
from interfaces.test_cli_process import error_code
from plain_http import NO_AUTHORITIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.requirement("SRV-4"),
    pytest.mark.xdist_group("postgresql"),
]
PUBLIC = "http://localhost:8750"
RATE = 12
PASSWORD = "correct horse battery"
POLICY = '[permissions]\nallow = ["Bash(echo *)"]\nask = ["Bash(touch *)"]\n'


@dataclass
class Pair:
    """Two services of different state folders."""

    places: tuple[Place, Place]
    ports: tuple[int, int]
    config: str
    owner: str = ""

    @contextmanager
    def clients(self, token: str) -> Iterator[tuple[httpx.Client, httpx.Client]]:
        with ExitStack() as opened:
            one, two = (opened.enter_context(client_of(each, token)) for each in self.ports)
            yield one, two

    def sign_in(self, name: str, role: str = "user") -> dict[str, Any]:
        """A new user, made by one service, whose first sign-in is at the other."""
        with self.clients(self.owner) as (one, two):
            made = one.post("/v1/users", json={"name": name, "role": role})
            assert made.status_code == 201, made.text
            link = one.post(f"/v1/users/{made.json()['id']}/link").json()["link"]
            return sign_in(two, link=link, password=PASSWORD)

    def token(self, name: str, role: str = "user") -> str:
        return str(self.sign_in(name, role)["access_token"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def serving(place: Place, port: int) -> AbstractContextManager[Served]:
    """What a service tells is the address of both; each has a port of its own."""
    return place.serving("--port", str(port))


def client_of(port: int, token: str = "") -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    options = {"timeout": DEADLINE_S, "trust_env": False, "verify": NO_AUTHORITIES}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, **options)


def configuration(place: Place, *, database: str, redis: str, key: Path) -> str:
    policy, password = place.folder / "policy.toml", place.folder / "redis-password"
    policy.write_text(POLICY)
    password.write_text("a password\n")
    for each in (policy, password):
        place.own(each)
    return (
        f'[storage]\nurl = "{database}"\n[accounts]\nkey_file = "{key}"\n'
        f"argon2_memory_kib = 64\nargon2_passes = 1\n"
        f'[rates]\nredis_url = "{redis}"\nredis_password_file = "{password}"\n'
        f"actions_per_minute_per_user = {RATE}\n"
        f'[server]\npublic_url = "{PUBLIC}"\n[policy]\nfiles = ["{policy}"]\n'
    )


@pytest.fixture(scope="module")
def pair(postgres: PostgresServer, redis_url: str) -> Iterator[Pair]:  # noqa: F811  # fixtures
    database = postgres.new_url()
    with new_place() as one, new_place() as two:
        key = one.home / "accounts.key"  # the services run as the same user
        for place in (one, two):
            config = configuration(place, database=database, redis=redis_url, key=key)
            place.configure(config)
        ports = free_port(), free_port()
        with serving(one, ports[0]), serving(two, ports[1]) as second:
            found = Pair((one, two), ports, config)
            code = second.told["sign_in_link"].rpartition("=")[2]
            with client_of(ports[0]) as client:  # of two links, the newer one counts
                asked = {"link": code, "name": "owner", "password": PASSWORD}
                found.owner = sign_in(client, **asked)["access_token"]
            yield found


def sign_in(client: httpx.Client, **body: str) -> dict[str, Any]:
    answer = client.post("/v1/auth/token", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_accounts_tokens_and_their_end_are_shared_at_once(pair):
    signed_in = pair.sign_in("bob")
    with pair.clients(signed_in["access_token"]) as bobs, pair.clients("") as nobody:
        for each in bobs:  # signed by the second, known to both
            assert each.get("/v1/sessions").status_code == 200
        nobody[1].post("/v1/auth/revoke", json={"token": signed_in["refresh_token"]})
        for each in bobs:
            assert each.get("/v1/sessions").status_code == 401
        again = sign_in(nobody[0], name="bob", password=PASSWORD)
    with pair.clients(again["access_token"]) as bobs:
        assert bobs[1].get("/v1/sessions").status_code == 200
        pair.places[1].done("user", "disable", "bob")
        assert bobs[0].get("/v1/sessions").status_code == 401


def test_a_session_is_used_where_it_was_made_and_the_other_process_says_so(pair):
    token, other = pair.token("cleo"), pair.token("cara")
    with pair.clients(token) as (one, two), pair.clients(other) as foreign:
        session = one.post("/v1/sessions", json={}).json()["id"]
        path, body = f"/v1/sessions/{session}", {"command": "echo hi"}
        key = {"Idempotency-Key": "first"}
        first = one.post(f"{path}/commands", json=body, headers=key).json()
        assert first["stdout"] == "hi\n"
        joined = one.post(f"{path}/commands", json=body, headers=key).json()
        assert joined["audit_id"] == first["audit_id"]
        elsewhere = [
            two.post(f"{path}/commands", json=body, headers=key),
            two.put(f"{path}/files/a.txt", content=b"a"),
            two.get(f"{path}/files/a.txt"),
            two.delete(path),
            two.delete(path, params={"erase": "true"}),
        ]
        assert [error_of(each) for each in elsewhere] == [(421, "CW-ELSEWHERE")] * len(elsewhere)
        # Whoever does not own the session learns nothing of it, in either process.
        for each in foreign:
            assert error_of(each.post(f"{path}/commands", json=body)) == (404, "CW-NOT-FOUND")
        assert two.get(path).json()["state"] == "live"
        assert one.delete(path).status_code == 204
        assert two.get(path).json()["state"] == "ended"
        assert error_of(two.post(f"{path}/commands", json=body)) == (404, "CW-NOT-FOUND")


def test_a_question_is_answered_where_it_was_asked_and_the_other_process_says_so(pair):
    token = pair.token("dora", "administrator")
    results: list[dict[str, Any]] = []
    with pair.clients(token) as (one, two):
        session = one.post("/v1/sessions", json={}).json()["id"]

        def ask() -> None:
            body = {"command": "touch there"}
            with pair.clients(token) as (own, _):
                results.append(own.post(f"/v1/sessions/{session}/commands", json=body).json())

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: one.get("/v1/approvals").json()["approvals"])
        (question,) = one.get("/v1/approvals").json()["approvals"]
        path = f"/v1/approvals/{question['id']}"
        until(lambda: two.get(path).status_code == 421)  # once the record is stored
        answer = {"answer": "once"}
        assert error_of(two.post(path, json=answer)) == (421, "CW-ELSEWHERE")
        assert one.post(path, json=answer).json()["answer"] == "once"
        thread.join(DEADLINE_S)
        assert [each["status"] for each in results] == ["ok"]
        assert two.get(path).json()["answered_by"] == "dora"
        one.delete(f"/v1/sessions/{session}")


def test_the_rate_of_a_user_is_counted_over_both(pair):
    token = pair.token("emil")
    codes = []
    with pair.clients(token) as both:
        sessions = [each.post("/v1/sessions", json={}).json()["id"] for each in both]
        for number in range(RATE + 4):
            path = f"/v1/sessions/{sessions[number % 2]}/commands"
            ran = both[number % 2].post(path, json={"command": "echo hi"}).json()
            codes.append((ran["error"] or {}).get("code", ran["status"]))
    assert codes[0] == "ok"  # the control
    assert "CW-RATE" in codes
    assert codes.count("ok") <= RATE


def test_a_restart_ends_the_own_sessions_and_not_those_of_the_other(pair):
    token = pair.token("fay")
    with pair.clients(token) as (one, _):
        kept = one.post("/v1/sessions", json={}).json()["id"]
        with new_place(pair.config) as third:
            port = free_port()
            with serving(third, port) as served, client_of(port, token) as client:
                lost = client.post("/v1/sessions", json={}).json()["id"]
                served.process.kill()
                served.ended()
            with serving(third, port):  # which is what ends them
                states = {
                    name: one.get(f"/v1/sessions/{name}").json()["state"] for name in (kept, lost)
                }
        assert states == {kept: "live", lost: "ended"}
        ran = one.post(f"/v1/sessions/{kept}/commands", json={"command": "echo hi"}).json()
        assert ran["stdout"] == "hi\n"
        one.delete(f"/v1/sessions/{kept}")


def test_a_service_with_another_key_of_accounts_is_refused(pair):
    with new_place() as stranger:
        own = stranger.folder / "state" / "own.key"
        key = str(pair.places[0].home / "accounts.key")
        stranger.configure(pair.config.replace(key, str(own)))
        process = stranger.start("--port", "0")
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out) == (125, b"")
        done = subprocess.CompletedProcess([], 125, out, err)
        assert error_code(done) == "CW-SERVE-KEY"
