"""Snapshots and forks over HTTP: each account has its own (FS-9, RBAC-3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cellwall.audit.retention import hold, release
from cellwall.core.ids import new_id
from cellwall.runtime.recording import audit_directory
from interfaces.http.running_service import ROOT, RunningService, new_session, running_service

pytestmark = [pytest.mark.slow, pytest.mark.requirement("FS-9")]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-snapshots")
    bounds = '[snapshots]\nmax_per_user = 3\nmax_bytes_per_user = "2m"\n'
    with running_service(home, config=bounds) as found:
        yield found


@pytest.fixture
def owner(service: RunningService) -> Iterator[httpx.Client]:
    """A user without snapshots."""
    name = f"u{len(service.tokens)}"
    service.add_user(name)
    with service.client(name) as client:
        yield client


def take(client: httpx.Client, session: str, **body: Any) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/snapshots", json=body)


def stored_files(service: RunningService) -> list[Path]:
    return [each for each in (service.home / "snapshots").rglob("*") if each.is_file()]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def value_of(client: httpx.Client, session: str, code: str) -> Any:
    answer = client.post(f"/v1/sessions/{session}/code", json={"code": code}).json()
    assert answer["status"] == "ok", answer
    return answer["value"]


def test_a_snapshot_is_taken_listed_restored_and_deleted_and_each_step_is_recorded(service, owner):
    session = new_session(owner)
    value_of(owner, session, "n = 7\nopen('a', 'w').write('one')")
    answer = take(owner, session, name="first", ttl=60)
    taken = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/snapshots/{taken['id']}")
    assert taken["variables"] == ["n"]
    assert [each["name"] for each in taken["not_carried"]] == ["programs"]
    listed = owner.get("/v1/snapshots").json()
    assert listed == {"snapshots": [{**taken, "not_carried": []}], "next": None}
    assert owner.get(f"/v1/snapshots/{taken['id']}").json() == listed["snapshots"][0]
    two = new_session(owner, from_snapshot=taken["id"])
    assert value_of(owner, two, "n, open('a').read()") == [7, "one"]
    assert owner.delete(f"/v1/snapshots/{taken['id']}").status_code == 204
    assert value_of(owner, two, "open('a').read()") == "one"
    assert owner.get("/v1/snapshots").json()["snapshots"] == []
    with service.client("administrator") as auditor:
        found = json.dumps(auditor.get("/v1/audit", params={"limit": 200}).json())
    for step in ('"snapshot": "take"', '"snapshot": "restore"', '"delete": true'):
        assert step in found


@pytest.mark.requirement("RBAC-3")
def test_another_account_neither_sees_restores_nor_deletes_it(service, owner):
    session = new_session(owner)
    taken = take(owner, session).json()["id"]
    service.add_user("stranger")
    with service.client("stranger") as stranger:
        own = new_session(stranger)
        assert code_of(take(stranger, session)) == (404, "CW-NOT-FOUND")
        assert stranger.get("/v1/snapshots").json()["snapshots"] == []
        answers = set()
        for name in (taken, new_id("snp"), "layers", "x" * 60):
            path = f"/v1/snapshots/{name}"
            answers |= {stranger.get(path).text, stranger.delete(path).text}
            made = stranger.post("/v1/sessions", json={"from_snapshot": name})
            assert made.status_code == 404
        assert len({json.loads(each)["error"]["message"] for each in answers}) == 1
        assert take(stranger, own).status_code == 201
    assert owner.get(f"/v1/snapshots/{taken}").status_code == 200


@pytest.mark.requirement("RBAC-4")
def test_number_and_size_of_the_snapshots_of_an_account_are_bounded(owner):
    session = new_session(owner)
    for _ in range(3):
        assert take(owner, session, state=False).status_code == 201
    assert code_of(take(owner, session)) == (429, "CW-TOO-MANY-SNAPSHOTS")
    for each in owner.get("/v1/snapshots").json()["snapshots"]:
        owner.delete(f"/v1/snapshots/{each['id']}")
    value_of(owner, session, "open('big', 'wb').write(bytes(range(256)) * 12_000)")
    for end_processes in (False, True):
        refused = take(owner, session, end_processes=end_processes, state=False)
        assert code_of(refused) == (429, "CW-TOO-MANY-SNAPSHOTS")
    assert owner.get("/v1/snapshots").json()["snapshots"] == []
    assert value_of(owner, session, "import os\nos.path.getsize('big')") == 256 * 12_000
    value_of(owner, session, "os.truncate('big', 1_000_000)")
    first = take(owner, session, state=False).json()
    two = new_session(owner, from_snapshot=first["id"])
    again = take(owner, two, state=False)  # shares the layer: counted once
    assert (again.status_code, again.json()["bytes"]) == (201, first["bytes"])


def test_forks_are_made_all_or_none(owner, service):
    session = new_session(owner, keep_alive=77)
    value_of(owner, session, "n = [1]\nopen('a', 'w').write('one')")
    answer = owner.post(f"/v1/sessions/{session}/fork", json={"count": 2})
    assert answer.status_code == 201, answer.text
    forks = [each["id"] for each in answer.json()["sessions"]]
    assert [value_of(owner, each, "n, open('a').read()") for each in forks] == [[[1], "one"]] * 2
    assert owner.get("/v1/snapshots").json()["snapshots"] == []
    before = len(owner.get("/v1/sessions").json()["sessions"])
    refused = owner.post(f"/v1/sessions/{session}/fork", json={"count": 100})
    assert code_of(refused) == (429, "CW-TOO-MANY-SESSIONS")
    assert len(owner.get("/v1/sessions").json()["sessions"]) == before
    assert owner.get("/v1/snapshots").json()["snapshots"] == []
    for each in (session, *forks):
        assert owner.delete(f"/v1/sessions/{each}").status_code == 204


@pytest.mark.requirement("FS-5")
def test_a_session_made_from_a_snapshot_is_kept_whole_and_erasing_the_first_deletes_both(
    owner, service
):
    session = new_session(owner)
    value_of(owner, session, "import os\nos.mkdir('d')\nopen('d/a', 'w').write('canary-77')")
    taken = take(owner, session).json()["id"]
    assert any(b"canary-77" in each.read_bytes() for each in stored_files(service))  # the control
    two = new_session(owner, from_snapshot=taken)
    value_of(owner, two, "open('d/b', 'w').write('two')")
    assert owner.delete(f"/v1/sessions/{two}", params={"keep": True}).status_code == 204
    three = new_session(owner, resume=two)
    assert value_of(owner, three, "import os\nopen('d/a').read(), sorted(os.listdir('d'))") == [
        "canary-77",
        ["a", "b"],
    ]
    directory, write = audit_directory(service.app.store.home), service.app.audit.write
    hold(directory, "case", "a court asks", write, ROOT)
    try:
        assert code_of(owner.delete(f"/v1/snapshots/{taken}")) == (403, "CW-SESSION-HELD")
    finally:
        release(directory, "case", write, ROOT)
    assert owner.delete(f"/v1/sessions/{session}", params={"erase": True}).status_code == 204
    assert owner.get(f"/v1/snapshots/{taken}").status_code == 404
    assert not any(b"canary-77" in each.read_bytes() for each in stored_files(service))


def test_snapshots_at_once_do_not_exceed_what_an_account_may_keep(service, owner):
    sessions = [new_session(owner) for _ in range(6)]
    for each in sessions:
        owner.put(f"/v1/sessions/{each}/files/a", content=b"a" * 2**19).raise_for_status()
    with ThreadPoolExecutor(len(sessions)) as threads:
        answers = list(threads.map(lambda each: take(owner, each, state=False), sessions))
    taken = [each for each in answers if each.status_code == 201]
    assert len(taken) == 3  # the bound, and the control
    for refused in answers:
        assert refused in taken or code_of(refused) == (429, "CW-TOO-MANY-SNAPSHOTS")
    assert len(owner.get("/v1/snapshots").json()["snapshots"]) == 3
