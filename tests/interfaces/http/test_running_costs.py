"""Programs that run on behind the action that started them are paid for and ended (RBAC-4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2 as httpx
import pytest

from interfaces.http.running_service import RunningService, new_session
from interfaces.http.test_terminal import last_text, open_terminal
from interfaces.test_cli_process import until

pytestmark = [pytest.mark.slow, pytest.mark.requirement("RBAC-4")]
LIMIT_S = 0.4
BURN = "while :; do :; done"
COUNT = (
    "import glob, pathlib\n"
    "def word(p):\n"
    "    try: return pathlib.Path(p).read_text()\n"
    "    except OSError: return ''\n"
    f"sum({BURN!r} in word(p) for p in glob.glob('/proc/[0-9]*/cmdline'))"
)


def set_limit(service: RunningService, name: str, limit: float) -> None:
    where = f"/v1/budgets/user/{service.ids[name]}/cpu_s"
    with service.client("owner") as owner:
        owner.put(where, json={"limit": limit, "period_s": 366 * 86_400}).raise_for_status()


@contextmanager
def limited(service: RunningService, name: str, limit: float) -> Iterator[httpx.Client]:
    if name not in service.ids:
        service.add_user(name)
    set_limit(service, name, limit)
    with service.client(name) as client:
        yield client


def used_s(client: httpx.Client) -> float:
    budgets = client.get("/v1/budgets").json()["budgets"]
    return float(sum(each["used"] for each in budgets if each["resource"] == "cpu_s"))


def run(client: httpx.Client, session: str, *command: str) -> dict[str, object]:
    found: dict[str, object] = client.post(
        f"/v1/sessions/{session}/commands", json={"command": list(command)}
    ).json()
    return found


def burning(client: httpx.Client, session: str) -> int:
    ran = client.post(f"/v1/sessions/{session}/code", json={"code": COUNT}).json()
    assert ran["status"] == "ok", ran
    return int(ran["value"])


def denied(service: RunningService, session: str) -> list[str]:
    with service.client("owner") as owner:
        found = owner.get("/v1/audit", params={"session": session, "limit": 1000}).json()
    bodies = [each["body"] for each in found["records"] if each["kind"] == "denial"]
    return [f"{body['code']} {body.get('message', '')}" for body in bodies]


def test_a_program_on_a_terminal_is_booked_and_ended(service: RunningService) -> None:
    start = {"command": ["/bin/sh", "-c", BURN]}
    with limited(service, "tess", LIMIT_S) as client:
        session = new_session(client)
        with open_terminal(service, session) as line:
            line.send(json.dumps({"token": service.tokens["tess"], **start}))
            assert "exit_code" in last_text(line)  # ended: nobody has stopped it
        assert used_s(client) >= LIMIT_S
        refused = run(client, session, "true")
        assert refused["status"] == "denied", refused
        assert any(
            "programs of the sandbox were ended" in each for each in denied(service, session)
        )
    with limited(service, "tom", 1000.0) as client:  # the control
        session = new_session(client)
        with open_terminal(service, session) as line:
            line.send(json.dumps({"token": service.tokens["tom"], **start}))
            until(lambda: used_s(client) >= LIMIT_S)
            assert burning(client, session) == 1
        assert denied(service, session) == []


@pytest.mark.parametrize("kind", ["command", "code"])
def test_what_an_action_leaves_behind_is_booked_and_ended(
    service: RunningService, kind: str
) -> None:
    def leave(client: httpx.Client) -> str:
        session = new_session(client)
        if kind == "command":
            quiet = f"setsid sh -c '{BURN}' >/dev/null 2>&1 </dev/null &"
            assert run(client, session, "sh", "-c", quiet)["status"] == "ok"
        else:  # a thread of the interpreter, which lives on as the context of the next code
            code = f"import subprocess\np = subprocess.Popen(['sh', '-c', {BURN!r}])\nNone"
            ran = client.post(f"/v1/sessions/{session}/code", json={"code": code}).json()
            assert ran["status"] == "ok", ran
        return session

    with limited(service, f"liv-{kind}", LIMIT_S) as client:
        session = leave(client)
        until(lambda: bool(denied(service, session)))
        assert used_s(client) >= LIMIT_S
        spent_s = used_s(client)
        set_limit(service, f"liv-{kind}", 1000.0)
        assert burning(client, session) == 0
        assert used_s(client) < spent_s + 30
    if kind == "code":
        return
    with limited(service, "lou", 1000.0) as client:  # the control
        session = leave(client)
        until(lambda: used_s(client) >= LIMIT_S)
        assert burning(client, session) == 1


def test_a_sandbox_that_ends_before_the_next_booking_is_booked(service: RunningService) -> None:
    with limited(service, "eve", 1000.0) as client:
        before_s = used_s(client)
        session = new_session(client)
        with open_terminal(service, session) as line:
            code = "import time; sum(range(10_000_000)); print('done-burning'); time.sleep(4321)"
            command = ["python3", "-uc", code]
            line.send(json.dumps({"token": service.tokens["eve"], "command": command}))
            seen = b""
            while b"done-burning" not in seen:
                message = line.recv(timeout=60)
                assert isinstance(message, bytes), message
                seen += message
            client.delete(f"/v1/sessions/{session}").raise_for_status()
        until(lambda: used_s(client) > before_s + 0.05)


def test_members_of_a_shared_sandbox_pay_for_their_own_programs(service: RunningService) -> None:
    for name in ("ann", "ben"):
        service.add_user(name)
        set_limit(service, name, 1000.0)
    with service.client("owner") as owner:
        team = owner.post("/v1/teams", json={"name": "payers"}).json()["id"]
        for name in ("ann", "ben"):
            owner.put(f"/v1/teams/{team}/members/{service.ids[name]}").raise_for_status()
    with service.client("ann") as ann, service.client("ben") as ben:
        session = new_session(ann, team=team)
        with open_terminal(service, session) as line:
            command = ["/bin/sh", "-c", BURN]
            line.send(json.dumps({"token": service.tokens["ben"], "command": command}))
            until(lambda: used_s(ben) >= LIMIT_S)
            assert used_s(ann) < LIMIT_S / 2
