"""Clients without rights that try to stop the service, or go on after their rights have ended."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx2 as httpx
import pytest

from cellwall.core.errors import BadInput
from cellwall.interfaces.http import waiting
from cellwall.interfaces.http.checked_route import MAX_VALUES, check_json
from cellwall.interfaces.http.gate import MAX_UNKNOWN_BYTES
from interfaces.http.running_service import (
    DEADLINE_S,
    ROOT,
    RunningService,
    new_session,
    running_service,
)
from interfaces.test_cli_process import until

pytestmark = pytest.mark.slow
JSON = {"Content-Type": "application/json"}
MANY = b'{"text": [' + b"[]," * MAX_VALUES + b"[]]}"
# Not JSON: who parses it before anything else answers 400.
UNREADABLE = b"[" * (MAX_UNKNOWN_BYTES + 1)


@pytest.mark.requirement("RBAC-4")
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_of_nobody_is_not_parsed(service: RunningService, is_chunked: bool) -> None:
    body = iter([UNREADABLE]) if is_chunked else UNREADABLE
    with service.client() as nobody:
        refused = nobody.post("/v1/scan", content=body, headers=JSON)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "CW-SIGN-IN-MISSING")
    with service.client("user") as user:  # the control: a known caller's is parsed
        parsed = user.post("/v1/scan", content=UNREADABLE, headers=JSON)
    assert parsed.status_code == 400


@pytest.mark.requirement("RBAC-4")
def test_a_sign_in_has_a_small_body(service: RunningService) -> None:
    def sign_in(size: int) -> httpx.Response:
        body = {"name": "ann", "password": "x" * size}
        with service.client() as nobody:
            return nobody.post("/v1/auth/token", json=body)

    assert sign_in(10).status_code == 401
    assert sign_in(MAX_UNKNOWN_BYTES).status_code == 413


@pytest.mark.requirement("RBAC-4")
def test_a_body_of_very_many_values_is_refused_and_a_long_text_is_not(
    service: RunningService,
) -> None:
    with service.client("user") as user:
        many = user.post("/v1/scan", content=MANY, headers=JSON)
        long = user.post("/v1/scan", json={"text": '[{,\\"' * 40_000})
    assert (many.status_code, many.json()["error"]["code"]) == (413, "CW-TOO-LARGE")
    assert long.status_code == 200, long.text


@pytest.mark.requirement("RBAC-4")
@pytest.mark.parametrize(
    "body",
    [
        MANY,
        b'"",' * (MAX_VALUES + 1),
        b'{"a":1,' * (MAX_VALUES + 1),
        b'["\\"", ' + b"1," * (MAX_VALUES + 1),
        json.dumps(['"', *[1] * MAX_VALUES]).encode("utf-16-le"),
    ],
)
def test_values_are_counted_without_parsing(body: bytes) -> None:
    with pytest.raises(BadInput):
        check_json(body)


def test_texts_are_one_value_and_an_endless_one_costs_one_pass() -> None:
    check_json(json.dumps({"text": '[{,\\"' * 1_000_000}).encode())
    check_json(b'"' + b'\\"' * 4_000_000)  # quadratic, it would take hours


@pytest.mark.requirement("SRV-2")
def test_a_token_with_a_deep_header_is_no_token(service: RunningService) -> None:
    for deep in (b"[" * 10, b"[" * 2000, b'{"alg":' * 400):
        encoded = base64.urlsafe_b64encode(deep).decode().rstrip("=")
        with service.client(headers={"Authorization": f"Bearer {encoded}.e30.e30"}) as nobody:
            assert nobody.get("/v1/sessions").status_code == 401


@pytest.mark.requirement("AUD-1")
def test_denials_of_nobody_do_not_fill_the_record(service: RunningService) -> None:
    def records() -> str:
        logs = [path for path in service.home.rglob("*") if path.is_file() and "audit" in str(path)]
        return "".join(path.read_text("utf-8", "replace") for path in logs)

    forged = (
        ("/v1/scan", "cellwall_access=cws_unknown"),
        ("/v1/auth/refresh", "cellwall_refresh=cwr_unknown"),
    )
    before = records().count("CW-CSRF")
    for path, cookie in forged:
        with service.client(headers={"Cookie": cookie}) as nobody:
            assert nobody.post(path).status_code in {401, 403}
    assert records().count("CW-CSRF") == before
    own = f"cellwall_access={service.tokens['user']}"
    with service.client(headers={"Cookie": own}) as browser:  # the control
        denied = browser.post("/v1/scan", json={"text": "x"})
    assert (denied.status_code, denied.json()["error"]["code"]) == (403, "CW-CSRF")
    assert denied.json()["error"]["audit_id"]


@pytest.mark.requirement("SRV-2")
def test_a_file_is_not_written_by_a_token_that_was_revoked_while_it_came(
    service: RunningService, user: httpx.Client
) -> None:
    """Else a body sent slowly would keep a revoked token alive."""
    session, directory = new_session(user), service.accounts.directory
    for is_revoked in (False, True):
        made = directory.create_token(
            service.ids["user"], name="slow", scopes=(), lives_s=60, by=ROOT
        )
        secret, token = service.call(made)
        path = f"/v1/sessions/{session}/files/slow-{is_revoked}"
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
            "Content-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", service.port), DEADLINE_S) as line:
            line.sendall(head.encode())
            # The body is asked for: the token has been accepted once.
            assert line.recv(65_536).startswith(b"HTTP/1.1 100 ")
            if is_revoked:
                service.call(directory.revoke_token(token.id, by=ROOT))
            line.sendall(b"data")
            status = line.recv(65_536)[:12]
        assert status == (b"HTTP/1.1 401" if is_revoked else b"HTTP/1.1 204")
        assert user.get(path).status_code == (404 if is_revoked else 200)


@pytest.mark.requirement("RBAC-4")
def test_one_user_does_not_take_every_connection(
    service: RunningService, user: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 3)
    path = f"/v1/sessions/{new_session(user)}/commands"
    body = {"command": "sleep 3600"}
    with ExitStack() as streams:
        headers = {"Accept": "text/event-stream", "Idempotency-Key": "one run"}

        def begin(**more: str) -> httpx.Response:
            asked = user.stream("POST", path, json=body, headers={**headers, **more})
            return streams.enter_context(asked)

        runs = {begin().headers["cellwall-run"] for _ in range(3)}
        assert len(runs) == 1
        for more in ({}, {"Accept": "*/*"}, {"Idempotency-Key": "another run"}):
            refused = begin(**more)
            assert refused.status_code == 429
            assert json.loads(refused.read())["error"]["code"] == "CW-TOO-MANY-WAITING"
        with service.client("owner") as other:  # the control: each user is counted apart
            own = f"/v1/sessions/{new_session(other)}/commands"
            assert other.post(own, json={"command": "true"}).json()["status"] == "ok"

    def is_accepted() -> bool:
        answer = user.post(path, json={"command": "true"})
        assert answer.status_code in {200, 429}
        return answer.status_code == 200

    until(is_accepted)  # the streams are no longer counted
    user.delete(f"{path.rpartition('/')[0]}/runs/{runs.pop()}").raise_for_status()


@pytest.mark.requirement("RBAC-4")
def test_transfers_that_stay_incomplete_take_no_more_connections_than_streams(
    service: RunningService, user: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAITING", 2)
    path = f"/v1/sessions/{new_session(user)}/files/slow"
    scan = "/v1/scan"

    def begin(method: str, address: str, token: str, size: int) -> socket.socket:
        head = (
            f"{method} {address} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
            "Expect: 100-continue\r\n\r\n"
        )
        line = lines.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        line.settimeout(DEADLINE_S)
        line.sendall(head.encode())
        return line

    token, other = service.tokens["user"], service.tokens["owner"]
    with ExitStack() as lines:
        for method, address in (("PUT", path), ("POST", scan)):
            line = begin(method, address, token, 1_000_000)
            assert line.recv(65_536).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        for method, address in (("PUT", path), ("POST", scan)):
            answer = begin(method, address, token, 1_000_000).recv(65_536)
            assert answer.startswith(b"HTTP/1.1 429 "), answer
        assert user.get(path).status_code == 429  # a download as well
        # The control: each user is counted apart.
        assert begin("POST", scan, other, 1_000_000).recv(65_536).startswith(b"HTTP/1.1 100 ")
    until(lambda: user.put(path, content=b"whole").status_code == 204)
    assert user.get(path).content == b"whole"


class Reader:
    """Reads the events of a run in a thread, and tells when the first output has come."""

    def __init__(self, open_stream: Callable[[], httpx.Response]) -> None:
        self.lines: list[str] = []
        self._has_output, self._open = threading.Event(), open_stream
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        response = self._open()
        for line in response.iter_lines():
            self.lines.append(line)
            if "tick" in line:
                self._has_output.set()
        response.close()

    def wait_for_output(self) -> None:
        assert self._has_output.wait(DEADLINE_S)

    def wait_for_end(self) -> str:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return "\n".join(self.lines)


@pytest.mark.requirement("SRV-2", "RBAC-3")
@pytest.mark.parametrize("how", ["revoked", "disabled", "left the team"])
def test_a_stream_ends_with_the_rights_of_its_reader(tmp_path: Path, how: str) -> None:
    with running_service(tmp_path) as service:
        directory = service.accounts.directory
        for name in ("ann", "bob"):
            service.add_user(name)
        team = service.call(directory.add_team("crew", by=ROOT))
        for name in ("ann", "bob"):
            service.call(directory.add_member(team.id, service.ids[name], by=ROOT))
        with service.client("ann") as ann, service.client("bob") as bob:
            session = new_session(ann, team=team.id)
            # It ends when the file is there, so that nothing here depends on time.
            script = "until [ -e done ]; do echo tick; sleep 0.2; done; echo secret"
            start = ann.build_request(
                "POST",
                f"/v1/sessions/{session}/commands",
                json={"command": ["sh", "-c", script]},
                headers={"Accept": "text/event-stream"},
            )
            answer = ann.send(start, stream=True)
            run = answer.headers["cellwall-run"]
            follow = bob.build_request("GET", f"/v1/sessions/{session}/runs/{run}/events")
            of_ann, of_bob = Reader(lambda: answer), Reader(lambda: bob.send(follow, stream=True))
            of_bob.wait_for_output()
            match how:
                case "revoked":
                    service.call(directory.revoke_user(service.ids["bob"], by=ROOT))
                case "disabled":
                    service.call(
                        directory.set_disabled(service.ids["bob"], is_disabled=True, by=ROOT)
                    )
                case "left the team":
                    service.call(directory.remove_member(team.id, service.ids["bob"], by=ROOT))
            assert "secret" not in of_bob.wait_for_end()  # while the run goes on
            with service.client("ann") as other:
                done = other.put(f"/v1/sessions/{session}/files/done", content=b"")
            assert done.status_code == 204
            assert "secret" in of_ann.wait_for_end()  # the control
