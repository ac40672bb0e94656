"""`/v1/alerts` of a real service: who sees alerts, who silences them, and that they are told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from cellwall.core.outcomes import Event, EventKind
from cellwall.interfaces.http.housekeeping import watch_alerts
from interfaces.http.running_service import PASSWORD, RunningService, running_service

pytestmark = [pytest.mark.slow, pytest.mark.requirement("OBS-2", "RBAC-1")]


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alerts") / "received.jsonl"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, received: Path) -> Iterator[RunningService]:
    config = f'[alerts.receivers.log]\nkind = "file"\nto = "{received}"\n'
    with running_service(tmp_path_factory.mktemp("cellwall-alerts"), config=config) as found:
        found.add_user("chief", "administrator")
        found.set_password("chief")
        yield found


def sign_in(service: RunningService) -> dict[str, str]:
    with service.client() as nobody:
        answer = nobody.post("/v1/auth/token", json={"name": "chief", "password": PASSWORD}).json()
    return {"Authorization": f"Bearer {answer['access_token']}"}


def test_the_service_evaluates_and_shows_alerts_to_those_who_may_read_the_record(
    service: RunningService, received: Path
) -> None:
    leak = {"event": "leak-refused", "status": "leak-refused", "secret": "NAME-OF-IT"}
    service.app.audit.write(Event(EventKind.CONNECTION, "act_1", "ann", "http", dict(leak)))

    async def evaluate() -> None:
        with anyio.move_on_after(60) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch_alerts, service.app)
                while not received.exists() or not received.read_text():
                    await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught

    anyio.run(evaluate)
    with service.client("owner") as owner:
        page = owner.get("/v1/alerts").json()
    (alert,) = page["alerts"]
    assert (alert["rule"], alert["state"], alert["silenced_by"]) == ("leaks", "firing", None)
    assert page["receivers"] == [
        {**page["receivers"][0], "name": "log", "kind": "file", "delivered": 1, "problem": None}
    ]
    told = received.read_text() + json.dumps(page)
    assert "NAME-OF-IT" not in told
    assert str(service.home) not in told
    for role in ("guest", "user", "power-user"):
        with service.client(role) as client:
            assert client.get("/v1/alerts").status_code == 403


def test_a_person_silences_and_a_token_does_not(service: RunningService) -> None:
    wanted = {"rule": "leaks", "for_s": 60, "reason": "being looked at"}
    with service.client("owner") as token:
        refused = token.post("/v1/alerts/silences", json=wanted)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "CW-TOKEN-BY-TOKEN")
    with service.client(headers=sign_in(service)) as person:
        made = person.post("/v1/alerts/silences", json=wanted)
        assert made.status_code == 201, made.text
        silence = made.json()
        page = person.get("/v1/alerts").json()
        assert silence["id"] in [each["id"] for each in page["silences"]]
        assert {each["silenced_by"] for each in page["alerts"]} <= {silence["id"]}
        for bad in ({**wanted, "rule": "nope"}, {**wanted, "for_s": -1}, {**wanted, "more": 1}):
            answer = person.post("/v1/alerts/silences", json=bad)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["hint"]
        gone = person.delete(f"/v1/alerts/silences/{silence['id']}")
        assert gone.status_code == 204
        assert person.delete(f"/v1/alerts/silences/{silence['id']}").status_code == 404
        records = person.get("/v1/audit", params={"text": "silence alerts"}).json()["records"]
        assert records[0]["principal"] == "chief"


def test_two_people_silence_at_once_and_both_count(service: RunningService) -> None:
    headers = sign_in(service)
    statuses: list[int] = []

    def silence(number: int) -> None:
        wanted = {"rule": "failures", "for_s": 60, "reason": f"number {number}"}
        with service.client(headers=headers) as person:
            statuses.append(person.post("/v1/alerts/silences", json=wanted).status_code)

    threads = [threading.Thread(target=silence, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert statuses == [201] * 6
    with service.client("owner") as owner:
        silences = owner.get("/v1/alerts").json()["silences"]
    assert len([each for each in silences if each["rule"] == "failures"]) == 6
