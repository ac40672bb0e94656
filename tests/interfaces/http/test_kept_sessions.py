"""Sessions whose files are kept, encrypted, and resumed by their owner alone (FS-5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cellwall.audit.retention import hold, release
from cellwall.core.channel_messages import ReceiveMessage
from cellwall.core.ids import new_id
from cellwall.core.types import Action, Principal
from cellwall.runtime.recording import audit_directory
from cellwall.runtime.wiring import sweep_state
from interfaces.http.running_service import ROOT, RunningService, new_session, running_service

pytestmark = [pytest.mark.slow, pytest.mark.requirement("FS-5")]
CANARY = b"canary-4e1f of a kept file"
MIB = 1024 * 1024
FILL = "mkdir -p d/e; cp canary d/e/deep; ln -s canary link; chmod 755 canary; echo x > d/x; chmod 0 d/x"
SHOW = "cat d/e/deep; readlink link; stat -c %a canary d/x"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-kept")
    with running_service(home, max_kept_per_user=2, max_kept_bytes_per_user=4 * MIB) as found:
        yield found


@pytest.fixture
def owner(service: RunningService) -> Iterator[httpx.Client]:
    """A user who has kept nothing yet."""
    name = f"u{len(service.tokens)}"
    service.add_user(name)
    with service.client(name) as client:
        yield client


def run(client: httpx.Client, session: str, command: str) -> dict[str, Any]:
    answer = client.post(f"/v1/sessions/{session}/commands", json={"command": command})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def end(client: httpx.Client, session: str, **params: Any) -> httpx.Response:
    return client.delete(f"/v1/sessions/{session}", params=params)


def kept_session(client: httpx.Client) -> str:
    session = new_session(client)
    put = client.put(f"/v1/sessions/{session}/files/canary", content=CANARY)
    assert put.status_code == 204, put.text
    answer = end(client, session, keep=True)
    assert answer.status_code == 204, answer.text
    return session


def kept_ids(client: httpx.Client) -> list[str]:
    listed = client.get("/v1/sessions", params={"state": "kept"}).json()
    return [each["id"] for each in listed["sessions"]]


def error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def holds_canary(service: RunningService) -> bool:
    files = [each for each in service.home.rglob("*") if each.is_file()]
    return any(CANARY[:11] in each.read_bytes() for each in files)


def test_files_are_kept_encrypted_and_resumed_whole_more_than_once(service, owner):
    session = new_session(owner)
    assert owner.put(f"/v1/sessions/{session}/files/canary", content=CANARY).status_code == 204
    assert run(owner, session, FILL)["status"] == "ok"
    before = run(owner, session, SHOW)["stdout"]
    assert before == f"{CANARY.decode()}canary\n755\n0\n"
    assert holds_canary(service)  # the control: while it lives, its files lie in clear
    assert end(owner, session, keep=True).status_code == 204
    folder = service.home / "workspaces" / session
    assert sorted(os.listdir(folder)) == ["sealed", "session.json"]
    assert not holds_canary(service)
    shown = owner.get(f"/v1/sessions/{session}").json()
    assert (shown["state"], shown["kept"]["bytes"]) == ("ended", (folder / "sealed").stat().st_size)
    assert shown["kept"]["expires"] > shown["ended"]
    assert kept_ids(owner) == [session]
    listed = owner.get("/v1/sessions", params={"state": "all"}).json()["sessions"]
    assert [each["kept"] is not None for each in listed] == [True]
    resumed = [new_session(owner, resume=session) for _ in range(2)]
    for each in resumed:
        assert run(owner, each, SHOW)["stdout"] == before
        assert run(owner, each, "echo more > canary && cat canary")["stdout"] == "more\n"
        assert run(owner, each, "chmod 644 d/x && cat d/x")["stdout"] == "x\n"
    records = owner.get("/v1/audit", params={"session": resumed[0]}).json()["records"]
    assert any(each["body"].get("resumed") == session for each in records)


@pytest.mark.requirement("POL-9")
def test_the_kept_files_survive_a_restart_with_their_labels_and_unkept_ones_do_not(
    tmp_path: Path,
) -> None:
    with running_service(tmp_path) as service:
        with service.client("user") as client:
            session, other = new_session(client), new_session(client)
            message = ReceiveMessage("plain", "hi", "pair")
            who = Principal("user", "http")
            action = Action(principal=who, operation=message, session_id=session)
            labels = service.app.runtime.labels.begin(action)
            assert labels.judge(action) is None
            labels.commit()
            client.put(f"/v1/sessions/{session}/files/canary", content=CANARY)
            assert end(client, session, keep=True).status_code == 204
            assert end(client, other).status_code == 204
        token = service.tokens["user"]
    with running_service(tmp_path, may_exist=True) as service:
        service.tokens["user"] = token
        with service.client("user") as client:
            assert kept_ids(client) == [session]
            again = new_session(client, resume=session)
            assert client.get(f"/v1/sessions/{again}/files/canary").content == CANARY
            found = service.app.runtime.labels.of_session(again)
            assert [each.name for each in found.sources] == ["message by plain"]
            assert not service.app.runtime.labels.of_session(new_session(client)).sources
            refused = client.post("/v1/sessions", json={"resume": other})
            assert error_of(refused) == (404, "CW-NOT-FOUND")


@pytest.mark.requirement("RBAC-3")
def test_nobody_but_the_owner_keeps_resumes_or_destroys(service, owner):
    session = kept_session(owner)
    with service.client("administrator") as admin, service.client("owner") as other:
        for client in (admin, other):
            assert session not in kept_ids(client)
            for ask in (
                lambda each, who=client: who.post("/v1/sessions", json={"resume": each}),
                lambda each, who=client: end(who, each),
                lambda each, who=client: end(who, each, keep=True),
                lambda each, who=client: end(who, each, erase=True),
            ):
                foreign, unknown = ask(session), ask(new_id("sbx"))
                assert foreign.status_code == 404
                assert foreign.json() == unknown.json()
    assert kept_ids(owner) == [session]
    assert new_session(owner, resume=session)  # the control


@pytest.mark.requirement("RBAC-3")
def test_a_member_of_the_team_ends_a_shared_session_and_cannot_keep_it(service, owner):
    directory = service.accounts.directory
    team = service.call(directory.add_team(f"team{len(service.tokens)}", by=ROOT))
    names = {token: name for name, token in service.tokens.items()}
    name = names[owner.headers["Authorization"].removeprefix("Bearer ")]
    for each in (name, "user"):
        service.call(directory.add_member(team.id, service.ids[each], by=ROOT))
    session = new_session(owner, team=team.id)
    with service.client("user") as member:
        assert member.get(f"/v1/sessions/{session}").status_code == 200
        assert error_of(end(member, session, keep=True)) == (404, "CW-NOT-FOUND")
        assert end(owner, session, keep=True).status_code == 204
        shown = member.get(f"/v1/sessions/{session}").json()
        assert (shown["state"], shown["kept"]) == ("ended", None)
        refused = member.post("/v1/sessions", json={"resume": session})
        assert error_of(refused) == (404, "CW-NOT-FOUND")
        assert error_of(end(member, session)) == (404, "CW-NOT-FOUND")
    assert kept_ids(owner) == [session]


@pytest.mark.requirement("RBAC-4")
def test_what_one_user_keeps_is_bounded_also_for_requests_at_once(service, owner):
    live = [new_session(owner) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda each: end(owner, each, keep=True), live))
    assert sorted(each.status_code for each in answers) == [204, 204, 429, 429]
    refused = next(each for each in answers if each.status_code == 429)
    assert error_of(refused) == (429, "CW-TOO-MANY-KEPT")
    # Refused means that nothing was ended or lost.
    left = [each for each, answer in zip(live, answers, strict=True) if answer.status_code == 429]
    assert run(owner, left[0], "echo alive")["stdout"] == "alive\n"
    assert end(owner, kept_ids(owner)[0]).status_code == 204
    assert end(owner, left[0], keep=True).status_code == 204
    assert end(owner, kept_ids(owner)[0]).status_code == 204
    # Bytes count as well.
    assert run(owner, left[1], "head -c 5000000 /dev/urandom > large")["status"] == "ok"
    assert error_of(end(owner, left[1], keep=True)) == (429, "CW-TOO-MANY-KEPT")


def test_a_delete_destroys_the_key_at_once_unless_a_hold_is_in_force(service, owner):
    session = kept_session(owner)
    archive = service.home / "workspaces" / session / "sealed"
    stolen = archive.read_bytes()
    directory, write = audit_directory(str(service.home)), service.app.audit.write
    hold(directory, "case", "a court asks", write, ROOT)
    try:
        assert error_of(end(owner, session)) == (403, "CW-SESSION-HELD")
    finally:
        release(directory, "case", write, ROOT)
    assert kept_ids(owner) == [session]
    keys = service.app.keys
    name = stolen.split(b"\n")[0].split()[-1].decode()
    assert keys.key_bytes(name)  # the control
    assert end(owner, session).status_code == 204
    assert keys.is_destroyed(name)
    assert not archive.parent.exists()
    assert kept_ids(owner) == []
    assert error_of(end(owner, session)) == (404, "CW-NOT-FOUND")
    assert error_of(owner.post("/v1/sessions", json={"resume": session})) == (404, "CW-NOT-FOUND")
    # Its records stay readable; only `erase` destroys those.
    records = owner.get("/v1/audit", params={"session": session}).json()["records"]
    assert records
    assert not any("sealed" in each["body"] for each in records)
    assert end(owner, session, erase=True).status_code == 204


def test_erase_destroys_kept_files_with_the_records(service, owner):
    session = kept_session(owner)
    assert end(owner, session, erase=True).status_code == 204
    assert not (service.home / "workspaces" / session).exists()
    assert kept_ids(owner) == []


def test_a_damaged_archive_and_bad_requests_get_a_clear_error(service, owner):
    session = kept_session(owner)
    archive = service.home / "workspaces" / session / "sealed"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused = owner.post("/v1/sessions", json={"resume": session})
    assert error_of(refused) == (400, "CW-WORKSPACE-DAMAGED")
    archive.write_bytes(whole)
    assert new_session(owner, resume=session)  # nothing of the failed one was left
    small = {"resume": session, "limits": {"file_count": 0}}
    assert owner.post("/v1/sessions", json=small).status_code in {400, 409}
    assert error_of(end(owner, session, keep=True, erase=True)) == (400, "CW-BAD-INPUT")
    assert error_of(end(owner, session, keep=True)) == (404, "CW-NOT-FOUND")  # it has ended
    for bad in ("", "../audit", "sbx_" + "0" * 26, "x" * 61, "sbx_\0"):
        assert owner.post("/v1/sessions", json={"resume": bad}).status_code in {400, 404}


@pytest.mark.requirement("LIM-1")
def test_a_resumed_session_has_the_disk_limit_of_a_new_one(service, owner):
    session = new_session(owner)
    assert run(owner, session, "head -c 2000000 /dev/urandom > part")["status"] == "ok"
    assert end(owner, session, keep=True).status_code == 204
    too_small = {"resume": session, "limits": {"disk_bytes": MIB}}
    assert error_of(owner.post("/v1/sessions", json=too_small)) == (409, "CW-WORKSPACE-FULL")
    bounded = new_session(owner, resume=session, limits={"disk_bytes": 3 * MIB})
    ran = run(owner, bounded, "head -c 2000000 /dev/urandom > more; sleep 20")
    assert (ran["status"], ran["limit"]) == ("limit", "disk")
    roomy = new_session(owner, resume=session, limits={"disk_bytes": 8 * MIB})  # the control
    assert run(owner, roomy, "head -c 2000000 /dev/urandom > more; sleep 1")["status"] == "ok"


def test_retention_removes_kept_files_by_age(service, owner):
    session = kept_session(owner)
    note = service.home / "workspaces" / session / "session.json"
    sweep_state(service.app)
    assert kept_ids(owner) == [session]  # the control
    kept_ns = service.app.store.session(session).kept_ns
    days = service.app.settings.workspace.keep_sessions_days
    note.write_text(
        note.read_text().replace(str(kept_ns), str(kept_ns - (days + 1) * 86_400 * 10**9))
    )
    sweep_state(service.app)
    assert kept_ids(owner) == []
    assert not note.parent.exists()
