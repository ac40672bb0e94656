"""Sandboxes and runs over HTTP, by a real client of a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

from cellwall.audit.retention import hold, release
from cellwall.core.ids import new_id
from cellwall.runtime.recording import audit_directory
from interfaces.http.running_service import (
    ROOT,
    RunningService,
    new_session,
    read_events,
    running_service,
)

pytestmark = pytest.mark.slow


@pytest.mark.requirement("SRV-1", "LANG-2")
def test_code_keeps_its_state_and_a_command_sees_the_files(user: httpx.Client) -> None:
    session = new_session(user)
    for code, value in (("let x = 41", None), ("x + 1", 42)):
        script = {"code": code, "language": "javascript"}
        ran = user.post(f"/v1/sessions/{session}/code", json=script).json()
        assert (ran["status"], ran["value"]) == ("ok", value)
    first = user.post(f"/v1/sessions/{session}/code", json={"code": "x = 20\nx + 1"})
    assert first.status_code == 200
    assert (first.json()["status"], first.json()["value"]) == ("ok", 21)
    again = user.post(f"/v1/sessions/{session}/code", json={"code": "x * 2"}).json()
    assert again["value"] == 40
    put = user.put(f"/v1/sessions/{session}/files/a.txt", content=b"hello")
    assert put.status_code == 204, put.text
    ran = user.post(f"/v1/sessions/{session}/commands", json={"command": "cat a.txt"}).json()
    assert (ran["status"], ran["stdout"], ran["exit_code"]) == ("ok", "hello", 0)
    assert user.delete(f"/v1/sessions/{session}").status_code == 204
    gone = user.post(f"/v1/sessions/{session}/code", json={"code": "1"})
    assert gone.status_code == 404


@pytest.mark.requirement("SRV-1")
def test_events_come_while_it_runs_and_resume_after_a_lost_connection(user: httpx.Client) -> None:
    session = new_session(user)
    address = f"/v1/sessions/{session}/commands"
    script = "echo one; echo two >&2; echo three; exit 3"
    headers = {"Accept": "text/event-stream"}
    with user.stream("POST", address, json={"command": script}, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        run = response.headers["Cellwall-Run"]
        events = read_events(response)
    assert [each.name for each in events[-1:]] == ["outcome"]
    assert events[-1].data["exit_code"] == 3
    assert "".join(each.data["text"] for each in events if each.name == "stdout") == "one\nthree\n"
    assert "".join(each.data["text"] for each in events if each.name == "stderr") == "two\n"
    assert [each.id for each in events] == list(range(1, len(events) + 1))
    for after in range(len(events) + 1):
        again = f"/v1/sessions/{session}/runs/{run}/events"
        with user.stream("GET", again, headers={"Last-Event-ID": str(after)}) as response:
            assert read_events(response) == events[after:]


_TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
_BURST = f"""
import os, time
token = b"{_TOKEN[:20]}" + b"{_TOKEN[20:]}"
for number in range(400):
    os.write(1 + number % 2, b"line %d\\n" % number)
    if number == 200:
        for byte in b"key " + token + b" end\\n":  # in as many chunks as the pipe allows
            os.write(1, bytes([byte]))
            time.sleep(0.0005)
"""


@pytest.mark.requirement("SRV-1", "GRD-5")
def test_a_burst_is_redacted_complete_and_exactly_resumed(user: httpx.Client) -> None:
    session = new_session(user)
    headers = {"Accept": "text/event-stream"}
    address = f"/v1/sessions/{session}/code"
    with user.stream("POST", address, json={"code": _BURST}, headers=headers) as response:
        run = response.headers["Cellwall-Run"]
        events = read_events(response)
    assert [each.id for each in events] == list(range(1, len(events) + 1))
    streams = {
        name: "".join(each.data["text"] for each in events if each.name == name)
        for name in ("stdout", "stderr")
    }
    lines = [f"line {number}\n" for number in range(400)]
    assert streams["stderr"] == "".join(lines[1::2])
    before, _, rest = streams["stdout"].partition("key ")
    mark, _, after = rest.partition(" end\n")
    assert before + after == "".join(lines[::2])
    assert mark.startswith("[redacted:")
    assert all(part not in str(events) for part in (_TOKEN[4:], _TOKEN[4:20], _TOKEN[20:]))
    again = f"/v1/sessions/{session}/runs/{run}/events"
    for place in {0, 1, len(events) // 2, len(events) - 1, len(events)}:
        with user.stream("GET", again, headers={"Last-Event-ID": str(place)}) as response:
            assert read_events(response) == events[place:]


@pytest.mark.requirement("SRV-1")
def test_a_run_goes_on_when_its_reader_is_gone(user: httpx.Client) -> None:
    session = new_session(user)
    script = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo done"
    address, headers = f"/v1/sessions/{session}/commands", {"Accept": "text/event-stream"}
    with user.stream("POST", address, json={"command": script}, headers=headers) as response:
        run = response.headers["Cellwall-Run"]
        for line in response.iter_lines():
            if line.startswith("data: "):
                break
    assert user.put(f"/v1/sessions/{session}/files/go", content=b"").status_code == 204
    headers = {"Last-Event-ID": "1"}
    with user.stream("GET", f"/v1/sessions/{session}/runs/{run}/events", headers=headers) as again:
        events = read_events(again)
    assert [(each.id, each.name) for each in events] == [(2, "stdout"), (3, "outcome")]
    assert events[0].data == {"text": "done\n"}


@pytest.mark.requirement("SRV-1")
def test_a_repeated_request_with_a_key_joins_the_first_run(user: httpx.Client) -> None:
    session = new_session(user)
    address, headers = f"/v1/sessions/{session}/commands", {"Idempotency-Key": "k1"}
    body = {"command": "echo x >> count; wc -l < count"}
    first = user.post(address, json=body, headers=headers)
    second = user.post(address, json=body, headers=headers)
    assert first.json() == second.json()
    assert first.headers["Cellwall-Run"] == second.headers["Cellwall-Run"]
    other = user.post(address, json={"command": "echo other"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "CW-IDEMPOTENCY")
    # Positive control: without the key it runs again.
    assert user.post(address, json=body).json()["stdout"].strip() == "2"


def test_of_repeated_requests_at_once_one_runs(user: httpx.Client) -> None:
    session = new_session(user)
    address, headers = f"/v1/sessions/{session}/commands", {"Idempotency-Key": "k"}
    body = {"command": "echo x >> count; wc -l < count"}
    with ThreadPoolExecutor(8) as threads:
        done = list(threads.map(lambda _: user.post(address, json=body, headers=headers), range(8)))
    assert {each.headers["Cellwall-Run"] for each in done} == {done[0].headers["Cellwall-Run"]}
    assert user.get(f"/v1/sessions/{session}/files/count").content == b"x\n"


def test_a_cancelled_run_ends_and_its_sandbox_lives_on(user: httpx.Client) -> None:
    session = new_session(user)
    address, headers = f"/v1/sessions/{session}/commands", {"Accept": "text/event-stream"}
    script = {"command": "echo begun; sleep 3600"}
    with user.stream("POST", address, json=script, headers=headers) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line.startswith("data: "))
        run = response.headers["Cellwall-Run"]
        with httpx.Client(base_url=user.base_url, headers=user.headers, trust_env=False) as other:
            ended = other.delete(f"/v1/sessions/{session}/runs/{run}")
        assert ended.status_code == 204
        assert '"CW-CANCELLED"' in [line for line in lines if line.startswith("data: ")][-1]
    assert user.post(address, json={"command": "echo on"}).json()["stdout"] == "on\n"


@pytest.mark.requirement("RBAC-3")
def test_a_foreign_session_answers_exactly_like_an_unknown_one(service: RunningService) -> None:
    unknown = new_id("sbx")
    with service.client("user") as owner, service.client("owner") as other:
        session = new_session(owner)
        requests = [
            ("GET", "", {}),
            ("DELETE", "", {}),
            ("POST", "/code", {"json": {"code": "1"}}),
            ("POST", "/commands", {"json": {"command": "true"}}),
            ("GET", "/files/a", {}),
            ("PUT", "/files/a", {"content": b"x"}),
            ("DELETE", "/files/a", {}),
            ("GET", "/runs/run_1/events", {}),
            ("DELETE", "/runs/run_1", {}),
        ]
        for method, rest, sent in requests:
            foreign = other.request(method, f"/v1/sessions/{session}{rest}", **sent)
            absent = other.request(method, f"/v1/sessions/{unknown}{rest}", **sent)
            assert foreign.status_code == absent.status_code == 404, (method, rest)
            assert foreign.content == absent.content
        listed = other.get("/v1/sessions", params={"state": "all"}).json()["sessions"]
        assert session not in {each["id"] for each in listed}
        # Positive control: the owner's own requests reach it.
        assert owner.get(f"/v1/sessions/{session}").json()["state"] == "live"


def test_a_team_shares_a_session(service: RunningService) -> None:
    directory = service.accounts.directory
    team = service.call(directory.add_team("crew", by=ROOT))
    for name in ("ann", "bob"):
        service.add_user(name)
        service.call(directory.add_member(team.id, service.ids[name], by=ROOT))
    with service.client("ann") as ann, service.client("bob") as bob:
        shared, own = new_session(ann, team=team.id), new_session(ann)
        ran = bob.post(f"/v1/sessions/{shared}/commands", json={"command": "echo hi"})
        assert ran.json()["stdout"] == "hi\n"
        assert bob.get(f"/v1/sessions/{own}").status_code == 404
    with service.client("user") as stranger:
        assert stranger.post("/v1/sessions", json={"team": team.id}).status_code == 404


@pytest.mark.requirement("RBAC-1")
def test_a_guest_creates_no_session_and_the_denial_is_recorded(service: RunningService) -> None:
    with service.client("guest") as guest:
        refused = guest.post("/v1/sessions", json={})
    assert refused.status_code == 403
    error = refused.json()["error"]
    assert set(error) == {"code", "message", "hint", "audit_id"}
    assert error["code"] == "CW-ROLE"
    assert error["audit_id"].startswith("evt_")


def test_limits_are_lowered_and_never_raised(service: RunningService, user: httpx.Client) -> None:
    most = service.app.limits
    asked = {"timeout": 86_400, "memory": "900g", "limits": {"processes": 32_768, "cpus": 0.5}}
    made = user.post("/v1/sessions", json=asked).json()
    assert "limits" in made, made
    limits = made["limits"]
    assert limits["wall_s"] == most.wall_s
    assert limits["memory_bytes"] == most.memory_bytes
    assert limits["processes"] == most.processes
    assert limits["cpus"] == 0.5


@pytest.mark.requirement("RBAC-4")
def test_one_user_has_a_bounded_number_of_sessions(tmp_path: Path) -> None:
    with running_service(tmp_path, max_sessions_per_user=2) as service:
        with service.client("user") as client:
            with ThreadPoolExecutor(6) as threads:
                made = list(threads.map(lambda _: client.post("/v1/sessions", json={}), range(6)))
            codes = sorted(each.status_code for each in made)
            assert codes == [201, 201, 429, 429, 429, 429]
            refused = next(each for each in made if each.status_code == 429)
            assert refused.json()["error"]["code"] == "CW-TOO-MANY-SESSIONS"
            one = next(each.json()["id"] for each in made if each.status_code == 201)
            assert client.delete(f"/v1/sessions/{one}").status_code == 204
            assert client.post("/v1/sessions", json={}).status_code == 201
        with service.client("owner") as other:
            assert other.post("/v1/sessions", json={}).status_code == 201
        ids = {each.json()["id"] for each in made if each.status_code == 201}
        token = service.tokens["user"]
    # Restart: the sessions have ended, and what they were is still known.
    with running_service(tmp_path, may_exist=True) as service:
        service.tokens["user"] = token
        with service.client("user") as client:
            listed = client.get("/v1/sessions", params={"state": "all"}).json()["sessions"]
            assert ids <= {each["id"] for each in listed}
            assert {each["state"] for each in listed} == {"ended"}
            assert client.get("/v1/sessions").json() == {"sessions": [], "next": None}
            assert client.get(f"/v1/sessions/{one}").json()["ended"] > 0


def test_pages_of_sessions(service: RunningService) -> None:
    service.add_user("pager")
    with service.client("pager") as client:
        made = sorted(new_session(client) for _ in range(5))
        for state in ("live", "all"):
            seen, after = [], ""
            while after is not None:
                params = {"limit": 2, "after": after, "state": state}
                page = client.get("/v1/sessions", params=params).json()
                seen += [each["id"] for each in page["sessions"]]
                after = page["next"]
            assert seen == made


@pytest.mark.requirement("SRV-1")
def test_the_events_of_a_run_that_was_answered_as_json_can_be_read_afterwards(
    user: httpx.Client,
) -> None:
    session = new_session(user)
    script = "printf 'one\\303\\251'; echo two >&2; exit 3"
    ran = user.post(f"/v1/sessions/{session}/commands", json={"command": script})
    assert (ran.json()["stdout"], ran.json()["stderr"]) == ("oneé", "two\n")
    again = f"/v1/sessions/{session}/runs/{ran.headers['Cellwall-Run']}/events"
    with user.stream("GET", again) as response:
        events = read_events(response)
    assert [(each.name, each.data) for each in events] == [
        ("stdout", {"text": "oneé"}),
        ("stderr", {"text": "two\n"}),
        ("outcome", ran.json()),
    ]


@pytest.mark.requirement("FS-5", "RBAC-3")
def test_an_owner_erases_a_session_also_after_its_end_and_nobody_else_does(
    service: RunningService,
) -> None:
    with service.client("user") as user, service.client("administrator") as admin:
        live, ended = new_session(user), new_session(user)
        for session in (live, ended):
            words = {"command": "echo canary"}
            assert user.post(f"/v1/sessions/{session}/commands", json=words).status_code == 200
        assert user.delete(f"/v1/sessions/{ended}").status_code == 204
        for session in (live, ended, new_id("sbx")):  # foreign ids answer like unknown ones
            answer = admin.delete(f"/v1/sessions/{session}", params={"erase": True})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "CW-NOT-FOUND")
        for session in (live, ended):
            before = user.get("/v1/audit", params={"session": session}).json()["records"]
            assert "canary" in str(before)
            erased = user.delete(f"/v1/sessions/{session}", params={"erase": True})
            assert erased.status_code == 204, erased.text
            after = user.get("/v1/audit", params={"session": session}).json()["records"]
            assert {record["body"]["sealed"] for record in after} == {"erased"}
            assert len(after) >= len(before)
        assert user.post(f"/v1/sessions/{live}/code", json={"code": "1"}).status_code == 404
        assert admin.get("/v1/audit/verify").json()["ok"]


@pytest.mark.requirement("FS-5")
def test_a_hold_keeps_a_live_session_as_it_is(service: RunningService) -> None:
    directory, write = audit_directory(str(service.home)), service.app.audit.write
    with service.client("user") as user:
        session = new_session(user)
        assert user.post(f"/v1/sessions/{session}/code", json={"code": "x = 1"}).status_code == 200
        hold(directory, "case", "a court asks", write, ROOT)
        try:
            refused = user.delete(f"/v1/sessions/{session}", params={"erase": True})
            assert refused.json()["error"]["code"] == "CW-SESSION-HELD"
            ran = user.post(f"/v1/sessions/{session}/code", json={"code": "x"}).json()
            assert (ran["status"], ran["value"]) == ("ok", 1)
        finally:
            release(directory, "case", write, ROOT)
        erased = user.delete(f"/v1/sessions/{session}", params={"erase": True})  # the control
        assert erased.status_code == 204
