"""Approvals over HTTP: one more channel to a person (POL-8)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cellwall.core.accounts import Viewer
from cellwall.core.ids import new_id
from cellwall.core.types import Action, Principal, RunCode
from databases import PostgresServer, postgres  # noqa: F401  # a fixture
from interfaces.http.running_service import DEADLINE_S, RunningService, new_session, running_service
from interfaces.test_cli_process import until

pytestmark = pytest.mark.slow
POLICY = """
[permissions]
allow = ["Bash", "Code", "Read", "Write", "WebFetch"]
ask = ["Bash(touch *)"]
"""
RULE = "Bash(touch *)"
ALL = Viewer(user_id="", teams=frozenset(), sees_all=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-asking")
    policy = home / "policy.toml"
    policy.write_text(POLICY)
    config = f'[policy]\nfiles = ["{policy}"]\n[approvals]\ntimeout_s = 60.0\n'
    config += '[egress]\nunknown = "ask"\n'
    with running_service(home, config=config) as found:
        yield found


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


def question(client: httpx.Client) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def has_come() -> bool:
        found[:] = client.get("/v1/approvals").json()["approvals"]
        return bool(found)

    until(has_come)
    return found[0]


def ask(client: httpx.Client, session: str, name: str = "a") -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/commands", json={"command": f"touch {name}"})


@pytest.mark.requirement("POL-8", "SRV-1")
def test_a_run_waits_and_a_yes_over_http_lets_it_go_on(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    with service.client("user") as user, service.client("administrator") as admin:
        run = threads.submit(ask, user, new_session(user))
        found = question(admin)
        assert found["by"] == "user"
        assert "touch a" in found["shown"]
        assert str(service.home) not in str(found)
        with service.client("user") as same:
            assert same.get("/v1/approvals").json()["approvals"] == [found]
        answer = admin.post(f"/v1/approvals/{found['id']}", json={"answer": "once"})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["answer"], answer.json()["by"]) == ("once", "administrator")
        assert run.result(DEADLINE_S).json()["status"] == "ok"
        again = admin.post(f"/v1/approvals/{found['id']}", json={"answer": "once"})
        assert again.status_code == 404
        ended = admin.get(f"/v1/approvals/{found['id']}").json()
        assert (ended["state"], ended["verdict"], ended["answer"]) == ("ended", "allow", "once")
        assert (ended["by"], ended["answered_by"]) == ("user", "administrator")
        assert admin.get("/v1/approvals").json() == {"approvals": []}


@pytest.mark.requirement("POL-8", "RBAC-2")
def test_the_asker_allows_nothing_that_the_role_does_not_permit(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    with service.client("user") as user, service.client("user") as same:
        run = threads.submit(ask, user, new_session(user))
        found = question(same)
        address = f"/v1/approvals/{found['id']}"
        for answer in ("once", "session", "rule"):
            refused = same.post(address, json={"answer": answer, "rule": "1"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "CW-ROLE")
        assert same.post(address, json={"answer": "deny"}).status_code == 200
        assert run.result(DEADLINE_S).json()["status"] == "denied"
    # Positive control: a role that may answer also answers its own questions.
    with service.client("power-user") as power, service.client("power-user") as same:
        run = threads.submit(ask, power, new_session(power))
        address = f"/v1/approvals/{question(same)['id']}"
        rule = same.post(address, json={"answer": "rule", "rule": "1"})
        assert rule.status_code == 403
        assert same.post(address, json={"answer": "once"}).status_code == 200
        assert run.result(DEADLINE_S).json()["status"] == "ok"


@pytest.mark.requirement("POL-9", "POL-13")
def test_the_token_that_asks_does_not_consent_to_what_would_meet(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    """An agent over HTTP has a token whose role may answer: that is no person's yes."""
    with service.client("power-user") as power, service.client("administrator") as admin:
        session = new_session(power, allow_domains=["a.example"])
        private = RunCode("python", b"1")
        action = Action(principal=Principal("power-user", "http"), operation=private)
        action = replace(action, session_id=session, secrets=("KEY",), registries=("pypi",))
        labels = service.app.runtime.labels.begin(action)
        assert labels.judge(action) is None
        labels.commit()
        run = threads.submit(
            power.post, f"/v1/sessions/{session}/commands", json={"command": "true"}
        )
        address = f"/v1/approvals/{question(admin)['id']}"
        for answer in ("once", "session"):
            refused = power.post(address, json={"answer": answer})
            code = refused.json()["error"]["code"]
            assert (refused.status_code, code) == (403, "CW-OWN-QUESTION")
        assert admin.post(address, json={"answer": "once"}).status_code == 200
        assert run.result(DEADLINE_S).json()["status"] == "ok"


@pytest.mark.requirement("NET-9", "POL-13")
def test_the_token_that_asks_does_not_consent_to_an_unknown_destination(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    code = """
import socket
with socket.create_connection(("127.0.0.1", 3128), 30) as line:
    line.sendall(b"CONNECT unknown.invalid:443 HTTP/1.1\\r\\nHost: unknown.invalid:443\\r\\n\\r\\n")
    line.recv(4096)
"""
    with service.client("power-user") as power, service.client("administrator") as admin:
        path = f"/v1/sessions/{new_session(power)}/code"
        run = threads.submit(power.post, path, json={"code": code})
        found = question(admin)
        assert "unknown.invalid:443" in found["shown"]
        address = f"/v1/approvals/{found['id']}"
        for answer in ("once", "session"):
            refused = power.post(address, json={"answer": answer})
            assert refused.json()["error"]["code"] == "CW-OWN-QUESTION"
        # Positive control: another credential says yes, and the asker may say no.
        assert admin.post(address, json={"answer": "once"}).status_code == 200
        assert run.result(DEADLINE_S).json()["status"] == "ok"


@pytest.mark.requirement("POL-8", "RBAC-3")
def test_a_foreign_question_answers_like_an_unknown_one(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    with service.client("user") as user, service.client("power-user") as other:
        run = threads.submit(ask, user, new_session(user))
        with service.client("owner") as owner:
            found = question(owner)
            unknown = "ask_" + "0" * 26
            for method, body in (("GET", None), ("POST", {"answer": "once"})):
                foreign = other.request(method, f"/v1/approvals/{found['id']}", json=body)
                absent = other.request(method, f"/v1/approvals/{unknown}", json=body)
                assert foreign.status_code == absent.status_code == 404
                assert foreign.content == absent.content
            assert other.get("/v1/approvals").json() == {"approvals": []}
            owner.post(f"/v1/approvals/{found['id']}", json={"answer": "deny"})
            foreign, absent = (
                other.get(f"/v1/approvals/{each}") for each in (found["id"], unknown)
            )
            assert (foreign.status_code, foreign.content) == (404, absent.content)
            listed = other.get("/v1/approvals", params={"state": "ended"}).json()["approvals"]
            assert found["id"] not in {each["id"] for each in listed}
            assert owner.get(f"/v1/approvals/{found['id']}").json()["verdict"] == "deny"
        assert run.result(DEADLINE_S).json()["status"] == "denied"


@pytest.mark.requirement("POL-8")
def test_of_two_answers_at_once_one_counts(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    with service.client("user") as user:
        run = threads.submit(ask, user, new_session(user))
        names = ["administrator", "owner"]
        clients = [service.client(name) for name in names]
        found = question(clients[0])
        answers = [
            threads.submit(
                clients[at % 2].post, f"/v1/approvals/{found['id']}", json={"answer": kind}
            )
            for at, kind in enumerate(["once", "deny", "once", "deny"])
        ]
        done = [each.result(DEADLINE_S) for each in answers]
        counted = [each for each in done if each.status_code == 200]
        assert len(counted) == 1, [each.text for each in done]
        assert {each.status_code for each in done} <= {200, 404, 409}
        is_allowed = counted[0].json()["answer"] == "once"
        assert run.result(DEADLINE_S).json()["status"] == ("ok" if is_allowed else "denied")
        for each in clients:
            each.close()


def test_an_answer_to_another_text_or_of_another_kind_is_refused(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    with service.client("owner") as owner, service.client("owner") as same:
        run = threads.submit(ask, owner, new_session(owner))
        found = question(same)
        address = f"/v1/approvals/{found['id']}"
        stale = same.post(address, json={"answer": "once", "shown_sha256": "0" * 64})
        assert stale.status_code == 412
        assert same.post(address, json={"answer": "yes"}).status_code == 400
        assert same.post(address, json={"answer": "rule", "rule": "Bash"}).status_code == 400
        assert same.post(address, json={"answer": "once", "rule": "Bash"}).status_code == 400
        right = {"answer": "session", "shown_sha256": found["shown_sha256"]}
        assert same.post(address, json=right).status_code == 200
        assert run.result(DEADLINE_S).json()["status"] == "ok"


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    server: PostgresServer = request.getfixturevalue("postgres")
    return f'[storage]\nurl = "{server.new_url()}"\n'


@pytest.mark.requirement("POL-8")
def test_a_rule_goes_into_the_file_that_judges_and_the_next_call_asks_nobody(
    service: RunningService, threads: ThreadPoolExecutor
) -> None:
    policy = service.home / "policy.toml"
    policy.chmod(0o600)
    with service.client("administrator") as admin:
        session = new_session(admin)
        waiting = threads.submit(ask, admin, session, "ruled")
        asked = question(admin)
        body = {"answer": "rule", "rule": "Bash(touch ruled)"}
        answer = admin.post(f"/v1/approvals/{asked['id']}", json=body)
        assert (answer.status_code, answer.json()["answer"]) == (200, "rule"), answer.text
        assert waiting.result(DEADLINE_S).json()["status"] == "ok"
        assert 'rule = "Bash(touch ruled)"' in policy.read_text()
        assert ask(admin, session, "ruled").json()["status"] == "ok"


@pytest.mark.requirement("SRV-4", "FS-5")
def test_a_restart_keeps_answers_and_ends_what_was_open(
    storage: str, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    config = f'{storage}[policy]\nfiles = ["{policy}"]\n[approvals]\ntimeout_s = 60.0\n'
    with running_service(tmp_path, config=config) as service:
        with service.client("user") as user, service.client("owner") as owner:
            session = new_session(user)
            run = threads.submit(ask, user, session, "top-secret-name")
            answered = question(owner)
            owner.post(f"/v1/approvals/{answered['id']}", json={"answer": "once"})
            assert run.result(DEADLINE_S).json()["status"] == "ok"
            record = service.call(service.store.find_approval(answered["id"], seen_by=ALL))
            assert record is not None
            assert dict(record.question) == {"by": "user", "tool": "Bash", "rule": RULE}
            # A process that is killed leaves its questions open.
            lost = replace(record, id=new_id("ask"), answer=None, answered_by=None, answered_s=None)
            assert service.call(service.store.add_approval(lost))
            assert owner.get(f"/v1/approvals/{lost.id}").status_code == 404  # nobody waits
            with _asked_by_socket(service, session, "second-secret-name"):
                waiting = question(owner)
            address = f"/v1/approvals/{waiting['id']}"
            until(lambda: owner.get(address).json().get("state") == "ended")
        tokens = service.tokens
    with running_service(tmp_path, config=config, may_exist=True) as service:
        service.tokens = tokens
        with service.client("user") as user, service.client("power-user") as other:
            page = user.get("/v1/approvals", params={"state": "ended"})
            found = {each["id"]: each for each in page.json()["approvals"]}
            assert found.keys() == {answered["id"], lost.id, waiting["id"]}
            assert "secret-name" not in page.text
            kept = found[answered["id"]]
            assert (kept["verdict"], kept["answered_by"]) == ("allow", "owner")
            assert found[lost.id]["reason"] == "the service restarted; denied"
            assert (found[lost.id]["verdict"], found[lost.id]["answer"]) == ("deny", None)
            assert found[waiting["id"]]["verdict"] == "deny"
            assert found[waiting["id"]]["reason"].startswith("the caller did not wait")
            assert user.get("/v1/approvals").json() == {"approvals": []}
            one = user.get("/v1/approvals", params={"state": "ended", "limit": 1}).json()
            rest = {"state": "ended", "before": one["next"]}
            assert len(user.get("/v1/approvals", params=rest).json()["approvals"]) == 2
            refused = user.post(f"/v1/approvals/{lost.id}", json={"answer": "deny"})
            assert refused.status_code == 404
            nothing = {"approvals": [], "next": None}
            assert other.get("/v1/approvals", params={"state": "ended"}).json() == nothing
    for file in tmp_path.glob("*.db*"):
        assert b"secret-name" not in file.read_bytes()


def _asked_by_socket(service: RunningService, session: str, name: str) -> socket.socket:
    """A client that can leave in the middle."""
    body = json.dumps({"command": f"touch {name}"})
    lines = [
        f"POST /v1/sessions/{session}/commands HTTP/1.1",
        f"Host: 127.0.0.1:{service.port}",
        f"Authorization: Bearer {service.tokens['user']}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    line = socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S)
    line.sendall(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
    return line
