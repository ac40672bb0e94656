"""A session of a lost host starts again from its last snapshot, where that was asked for (SRV-6).

One service stands for both hosts: between them the row says that the host was lost, and the
snapshots of its disk are gone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx2 as httpx
import pytest
from sqlalchemy import text

from cellwall.storage.engine import StorageSettings, blocking_engine
from interfaces.http.running_service import new_session, running_service

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-6")]


def code_of(answer: httpx.Response) -> str:
    return str(answer.json().get("error", {}).get("code", ""))


def lose(home: Path, session: str) -> None:
    """As when another host declares the host of the session lost."""
    engine = blocking_engine(StorageSettings(home=str(home)))
    with engine.begin() as connection:
        lost = "UPDATE sessions SET end_reason = 'host-lost' WHERE id = :id AND ended_s IS NOT NULL"
        assert connection.execute(text(lost), {"id": session}).rowcount == 1
    engine.dispose()
    shutil.rmtree(home / "snapshots", ignore_errors=True)


def test_a_lost_session_starts_again_with_the_files_of_its_snapshot(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    config = f'key_file = "{tmp_path}/accounts.key"\n[fleet]\nsnapshots = "{shared}"\n'
    key = {"Idempotency-Key": "under way"}
    with running_service(tmp_path, config=config) as service, service.client("owner") as client:
        home, tokens = service.home, dict(service.tokens)
        session = new_session(client, restart_from_snapshot=True, envs={"WORD": "secret-env"})
        without = new_session(client, restart_from_snapshot=True)
        path = f"/v1/sessions/{session}"
        client.post(f"{path}/code", json={"code": "x = 41"})
        client.put(f"{path}/files/a.txt", content=b"kept-content")
        taken = client.post(f"{path}/snapshots", json={})
        assert taken.status_code == 201, taken.text
        client.put(f"{path}/files/b.txt", content=b"later")
        ran = client.post(f"{path}/commands", json={"command": "echo once"}, headers=key)
        assert ran.json()["stdout"] == "once\n"
        again = client.post(f"{path}/commands", json={"command": "echo once"}, headers=key)
        assert again.json()["audit_id"] == ran.json()["audit_id"]  # it joins, as ever
    (archive,) = shared.iterdir()
    whole = archive.read_bytes()
    for word in (b"kept-content", b"secret-env", b"a.txt"):
        assert word not in whole
    for each in (session, without):
        lose(home, each)
    with running_service(tmp_path, config=config, may_exist=True) as service:
        service.tokens = tokens
        with service.client("owner") as client, service.client("user") as other:
            command = {"command": "ls; cat a.txt; echo $WORD"}
            assert code_of(other.post(f"{path}/commands", json=command)) == "CW-NOT-FOUND"
            bare = client.post(f"/v1/sessions/{without}/commands", json=command)
            assert code_of(bare) == "CW-HOST-LOST"  # it had no snapshot
            changed = bytearray(whole)
            changed[len(whole) // 2] ^= 1
            for damaged in (bytes(changed), whole[:-40], b""):
                archive.write_bytes(damaged)
                answer = client.post(f"{path}/commands", json=command)
                assert code_of(answer) in {"CW-WORKSPACE-DAMAGED", "CW-FLEET-SNAPSHOTS"}
            archive.write_bytes(whole)
            answer = client.post(f"{path}/commands", json=command)
            assert (answer.status_code, code_of(answer)) == (409, "CW-SESSION-RESTARTED")
            assert "was not executed" in answer.json()["error"]["message"]
            ran = client.post(f"{path}/commands", json=command)
            assert ran.json()["stdout"] == "a.txt\nkept-contentsecret-env\n"
            assert client.get(path).json()["restarted"] == taken.json()["created"]
            value = client.post(f"{path}/code", json={"code": "x + 1"}).json()["value"]
            assert value == 42
            repeated = client.post(f"{path}/commands", json={"command": "echo once"}, headers=key)
            assert (repeated.status_code, code_of(repeated)) == (410, "CW-HOST-LOST")
            fresh = {"Idempotency-Key": "another"}
            ran = client.post(f"{path}/commands", json={"command": "echo once"}, headers=fresh)
            assert ran.json()["stdout"] == "once\n"
            assert client.delete(path).status_code == 204
            assert list(shared.iterdir()) == []


def test_the_option_is_refused_where_hosts_share_no_folder(tmp_path):
    with running_service(tmp_path) as service, service.client("owner") as client:
        answer = client.post("/v1/sessions", json={"restart_from_snapshot": True})
        assert (answer.status_code, code_of(answer)) == (400, "CW-FLEET-SNAPSHOTS")
        assert client.post("/v1/sessions", json={}).status_code == 201  # the control
