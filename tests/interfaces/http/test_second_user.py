"""The second user of a sandbox over HTTP: given, kept, and refused (ISO-1, SRV-1)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cellwall.sandbox.linux import cgroups
from conftest import need
from interfaces.http.running_service import (
    UNANSWERED,
    RunningService,
    new_session,
    running_service,
)
from interfaces.http.test_terminal import last_text, open_terminal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")
    need(os.geteuid() == 0, "root: an ordinary user maps one uid")
    home = tmp_path_factory.mktemp("cellwall-users")
    config = f'{UNANSWERED}[sandbox]\nsecond_user = "allow"\n'
    with running_service(home, config=config) as found:
        yield found


def run(client: httpx.Client, session: str, command: str, **body: Any) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/commands", json={"command": command, **body})


def code_of(answer: httpx.Response) -> str:
    told = answer.json()["error"]
    assert told["hint"]
    return str(told["code"])


@pytest.mark.requirement("SRV-1", "ISO-1")
def test_a_command_and_a_terminal_have_a_user(service: RunningService, user: httpx.Client) -> None:
    session = new_session(user, second_user=True)
    for name, uid in (("sandbox", "1000"), ("root", "0"), (None, "1000")):
        assert run(user, session, "id -u", user=name).json()["stdout"] == f"{uid}\n"
    with open_terminal(service, session) as line:
        start = {"token": service.tokens["user"], "user": "root", "command": ["id", "-u"]}
        line.send(json.dumps(start))
        assert line.recv() == b"0\r\n"
        assert last_text(line) == {"exit_code": 0}
    assert run(user, session, "id", user="bob").json()["error"]["code"] == "CW-NO-USER"


@pytest.mark.requirement("POL-11", "ISO-4")
def test_a_session_without_one_refuses_root(user: httpx.Client) -> None:
    session = new_session(user)
    assert code_of(run(user, session, "id", user="root")) == "CW-NO-USER"
    assert run(user, session, "id -u").json()["stdout"] == "1000\n"


@pytest.mark.requirement("FS-5", "ISO-1")
def test_kept_files_of_root_are_those_of_root_when_the_session_is_resumed(
    user: httpx.Client,
) -> None:
    session = new_session(user, second_user=True)
    code = "import os; os.chmod('/workspace', 0o1777)"  # the shipped policy denies chmod 1777
    opened = user.post(f"/v1/sessions/{session}/code", json={"code": code}).json()
    assert opened["status"] == "ok", opened
    assert run(user, session, "umask 077; echo secret > own", user="root").json()["exit_code"] == 0
    assert user.delete(f"/v1/sessions/{session}", params={"keep": True}).status_code == 204
    for has_second in (True, False):
        resumed = new_session(user, resume=session, second_user=has_second)
        assert run(user, resumed, "cat own").json()["stdout"] == ""
        assert "Permission denied" in run(user, resumed, "cat own").json()["stderr"]
        if has_second:
            assert run(user, resumed, "cat own", user="root").json()["stdout"] == "secret\n"
        assert user.delete(f"/v1/sessions/{resumed}").status_code == 204


@pytest.mark.requirement("POL-11", "ISO-4")
def test_no_parameter_gives_one_where_the_configuration_does_not(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, service.client("user") as client:
        refused = client.post("/v1/sessions", json={"second_user": True})
        assert (refused.status_code, code_of(refused)) == (400, "CW-SECOND-USER-OFF")
        session = new_session(client)
        for body in ({"user": "root"}, {"user": "0"}, {"user": "root", "second_user": True}):
            assert run(client, session, "id", **body).json()["error"]["code"] in {
                "CW-NO-USER",
                "CW-BAD-INPUT",
            }
