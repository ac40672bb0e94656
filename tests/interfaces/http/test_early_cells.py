"""Cells that the service opens beside the answer to a creation: whatever ends the sandbox at once,
no cell, group, mount or folder of it remains (ISO-8)."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx2 as httpx
import pytest

from adversarial.leftovers import UID_BASE, groups, left, nothing, recorded
from cellwall.runtime.app import App
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.native import NativeSandbox
from conftest import need
from interfaces.http.running_service import (
    UNANSWERED,
    RunningService,
    new_session,
    running_service,
)
from interfaces.served import until

pytestmark = pytest.mark.slow
ROUNDS = 10
CONFIG = f"{UNANSWERED}\n[sandbox]\nuid_base = {UID_BASE}\n"


@pytest.fixture(autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


def has_cell(app: App, session: str) -> bool:
    assert isinstance(app.runtime.sandbox, NativeSandbox)
    return app.runtime.sandbox.has_cell(session)


def run(client: httpx.Client, session: str) -> object:
    ran = client.post(f"/v1/sessions/{session}/code", json={"code": "1 + 1"})
    return ran.json()["value"]


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize("path", ["cold", "warm"])
def test_sessions_that_end_at_once_and_a_service_that_stops_leave_nothing(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLWALL_PATH", path)
    home, seen = str(tmp_path), set[str]()
    with running_service(tmp_path, config=CONFIG) as service, service.client("user") as client:
        session = new_session(client)
        until(lambda: has_cell(service.app, session))  # the control: cells are opened
        assert run(client, session) == 2
        for _ in range(ROUNDS):
            session = new_session(client)
            assert client.delete(f"/v1/sessions/{session}").status_code == 204
            assert not has_cell(service.app, session)
        for _ in range(3):  # the service stops while their cells are opened
            new_session(client)
        seen |= recorded(home)
    assert left(home) == nothing()
    assert groups(seen) == []


@pytest.mark.requirement("RBAC-4")
def test_no_cell_is_opened_for_a_user_whose_budget_is_used_up(tmp_path: Path) -> None:
    with running_service(tmp_path, config=CONFIG) as service:
        _set_budget(service, 1.0)
        with service.client("user") as client:
            session = new_session(client)
            until(lambda: has_cell(service.app, session))  # not counted: one run is left
            assert run(client, session) == 2
            refused = new_session(client)
            denied = client.post(f"/v1/sessions/{refused}/code", json={"code": "1"}).json()
            assert (denied["status"], denied["error"]["code"]) == ("denied", "CW-BUDGET")
            assert not has_cell(service.app, refused)
            assert client.delete(f"/v1/sessions/{refused}").status_code == 204


def _set_budget(service: RunningService, runs: float) -> None:
    with service.client("owner") as owner:
        where = f"/v1/budgets/user/{service.ids['user']}/runs"
        answer = owner.put(where, json={"limit": runs, "period_s": 86_400})
        assert answer.is_success, answer.text
