"""`/v1/stop`: the button of administrators (OBS-3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from interfaces.http.running_service import (
    PASSWORD,
    RunningService,
    new_session,
    running_service,
)
from interfaces.http.test_terminal import last_text, open_terminal, read_until

pytestmark = [pytest.mark.slow, pytest.mark.requirement("OBS-3")]

BACKGROUND = "sleep 600 > /dev/null 2>&1 & echo $!"


@pytest.fixture(scope="module")
def stopped_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home: Path = tmp_path_factory.mktemp("cellwall-stop")
    with running_service(home) as service:
        yield service


def signed_in(service: RunningService, name: str) -> httpx.Client:
    """A person, not a service token."""
    if name not in service.ids:
        service.add_user(name, "administrator")
        service.set_password(name)
    with service.client() as anybody:
        given = anybody.post("/v1/auth/token", json={"name": name, "password": PASSWORD})
    assert given.status_code == 200, given.text
    return service.client(headers={"Authorization": f"Bearer {given.json()['access_token']}"})


def test_an_administrator_stops_and_lifts_for_everybody(stopped_service: RunningService) -> None:
    service = stopped_service
    with service.client("user") as user, signed_in(service, "chief") as admin:
        session = new_session(user)
        path = f"/v1/sessions/{session}/commands"
        assert user.post(path, json={"command": BACKGROUND}).json()["status"] == "ok"
        assert user.post("/v1/stop", json={}).status_code == 403
        assert user.post(path, json={"command": "echo on"}).json()["stdout"] == "on\n"
        assert admin.get("/v1/stop").json()["is_stopped"] is False

        done = admin.post("/v1/stop", json={"reason": "an attack"}).json()
        assert (done["left"], done["problems"]) == ([], [])
        assert done["cells"] >= 1
        status = admin.get("/v1/stop").json()
        assert (status["is_stopped"], status["by"]) == (True, "chief")
        assert (status["reason"], status["cells"]) == ("an attack", 0)
        outcome = user.post(path, json={"command": "echo on"}).json()
        assert (outcome["status"], outcome["error"]["code"]) == ("denied", "CW-STOPPED")
        refused = user.post("/v1/sessions", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "CW-STOPPED")
        with service.client("administrator") as token:  # a service token stops, and no more
            assert token.post("/v1/stop", json={}).status_code == 200
            assert token.request("DELETE", "/v1/stop").status_code == 403
            assert token.post("/v1/stop/thaw").status_code == 403

        assert admin.request("DELETE", "/v1/stop?reason=over").json() == {"lifted": True}
        assert admin.request("DELETE", "/v1/stop").json() == {"lifted": False}
        assert user.post(path, json={"command": "echo on"}).json()["stdout"] == "on\n"


def test_a_terminal_ends_with_the_stop_and_no_new_one_opens(
    stopped_service: RunningService,
) -> None:
    service = stopped_service
    with service.client("user") as user, signed_in(service, "chief") as admin:
        session = new_session(user)
        start = json.dumps({"token": service.tokens["user"]})
        with open_terminal(service, session) as line:
            line.send(start)
            line.send(b"echo ready$((1 + 1)); sleep 4321\n")
            read_until(line, b"ready2")
            done = admin.post("/v1/stop", json={"reason": "an attack"}).json()
            assert (done["left"], done["problems"]) == ([], [])
            assert done["cells"] >= 1
            assert last_text(line)  # the connection ends
        assert admin.get("/v1/stop").json()["cells"] == 0
        with open_terminal(service, session) as line:
            line.send(start)
            assert last_text(line)["error"]["code"] == "CW-STOPPED"
        assert admin.request("DELETE", "/v1/stop?reason=over").json() == {"lifted": True}
        with open_terminal(service, session) as line:  # the control
            line.send(start)
            line.send(b"exit 7\n")
            assert last_text(line) == {"exit_code": 7}


def test_suspended_sandboxes_continue_where_they_were(stopped_service: RunningService) -> None:
    service = stopped_service
    with service.client("user") as user, signed_in(service, "chief") as admin:
        path = f"/v1/sessions/{new_session(user)}/commands"
        pid = user.post(path, json={"command": BACKGROUND}).json()["stdout"].strip()
        assert admin.post("/v1/stop", json={"freeze": True}).json()["cells"] >= 1
        status = admin.get("/v1/stop").json()
        assert status["frozen"] == status["cells"] > 0
        assert admin.request("DELETE", "/v1/stop").json()["error"]["code"] == "CW-STOP-FROZEN"
        assert admin.post("/v1/stop/thaw").json()["cells"] >= 1
        assert admin.get("/v1/stop").json()["frozen"] == 0
        assert admin.request("DELETE", "/v1/stop").json() == {"lifted": True}
        assert user.post(path, json={"command": f"kill -0 {pid}"}).json()["status"] == "ok"


def test_tokens_are_revoked_only_by_who_manages_users(stopped_service: RunningService) -> None:
    service = stopped_service
    with service.client("user") as user, service.client("administrator") as admin:
        asked = {"reason": "stolen", "revoke_tokens": True}
        assert admin.post("/v1/stop", json=asked).status_code == 403
        assert admin.get("/v1/stop").json()["is_stopped"] is False  # nothing was done by half
        with service.client("owner") as owner:
            assert owner.post("/v1/stop", json=asked).json()["problems"] == []
            assert owner.get("/v1/stop").status_code == 401
        assert user.get("/v1/sessions").status_code == 401
