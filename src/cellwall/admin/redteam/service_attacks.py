"""The layer service: requests to a real `cellwall serve` on loopback, in a state folder of its own.

Requests are written with `http.client`, which sends paths and headers as they are.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from cellwall.admin.account_admin import AccountAdmin
from cellwall.admin.redteam.blocking import in_thread
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.core.errors import SandboxFailed
from cellwall.redteam.attack import NOT_TRIED, Attack, AttackResult, Observation, judge
from cellwall.redteam.outside import serving

_WITHIN_S = 60.0
_MAX_BODY_BYTES = 1 << 20
_TOKEN_LIVES_S = 3600.0
_REVOKED = "revoked"
_ROLES = {"owner": "owner", "user": "user", "guest": "guest", _REVOKED: "user"}
"""The people of the service; the token of `revoked` is revoked once it has worked."""
_SESSION = "SESSION"
"""In a path: the id of the sandbox of the owner."""
_NOTE = b"a note of the owner"


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    """One HTTP request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """The status and the body; status 0 is a connection that was closed."""

    status: int
    body: bytes = b""


class _ServiceClient:
    """Speaks to the service, as different people."""

    def __init__(self, address: str, tokens: Mapping[str, str]) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self.tokens = dict(tokens)
        self.session = ""

    def send(self, request: _HttpRequest) -> _Answer:
        connection = HTTPConnection(self._host, self._port, timeout=_WITHIN_S)
        try:
            has_host = "Host" in request.headers
            connection.putrequest(
                request.method, request.path, skip_host=has_host, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                connection.putheader(name, value)
            body = request.body or b""
            if request.body is not None:
                connection.putheader("Content-Type", "application/json")
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.read(_MAX_BODY_BYTES))
        except (OSError, HTTPException):
            return _Answer(0)
        finally:
            connection.close()

    def as_owner(self, method: str, path: str, body: object = None) -> _Answer:
        data = None if body is None else json.dumps(body).encode()
        return self.send(_HttpRequest(method, path, _bearer(self.tokens["owner"]), data))


async def run(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Start a service, then try each request as an attacker and as the person who may."""
    stop = threading.Event()
    return await in_thread(partial(_run, host, attacks, stop), stop=stop)


def _run(host: TrialHost, attacks: Sequence[Attack], stop: threading.Event) -> list[AttackResult]:
    """Ends early once `stop` is set; the results do not matter then."""
    home = os.path.join(host.folder, "service")
    os.mkdir(home, 0o700)
    env = {**host.environ, "CELLWALL_HOME": home}
    accounts = AccountAdmin(home, host.app.settings, host.who)
    tokens = {
        name: "" if stop.is_set() else _new_token(accounts, name, role)
        for name, role in _ROLES.items()
    }
    words = ["serve", "--json", "--port", "0", "--config", host.config]
    if os.geteuid() == 0:
        words.append("--dangerously-as-root")  # as the person who runs the attacks, on loopback
    with ExitStack() as stack:
        if stop.is_set():
            return []
        started = stack.enter_context(serving(words, env=env))
        if "address" not in started:
            raise SandboxFailed(
                "the service did not start",
                hint="Run `cellwall doctor --service` to see why.",
                code="CW-REDTEAM-SERVICE",
            )
        client = _ServiceClient(started["address"], tokens)
        _prepare(client)
        return [_try(client, attack) for attack in attacks if not stop.is_set()]


def _new_token(accounts: AccountAdmin, name: str, role: str) -> str:
    accounts.add_user(name, role, None)
    token, _ = accounts.create_token(name, name="redteam", scopes=(), lives_s=_TOKEN_LIVES_S)
    return token


def _prepare(client: _ServiceClient) -> None:
    """A sandbox of the owner with a file, and a token that worked and is revoked."""
    made = client.as_owner("POST", "/v1/sessions", {})
    client.session = _field(made, "id")
    client.as_owner("PUT", f"/v1/sessions/{client.session}/files/note.txt", _NOTE.decode())
    headers = _bearer(client.tokens[_REVOKED])
    listed = client.send(_HttpRequest("GET", "/v1/tokens", headers))
    ended = client.send(_HttpRequest("DELETE", f"/v1/tokens/{_own_token_id(listed)}", headers))
    if ended.status // 100 != 2:
        client.tokens.pop(_REVOKED)  # nothing was revoked, so nothing can be shown about that


def _own_token_id(answer: _Answer) -> str:
    try:
        return str(json.loads(answer.body)["tokens"][0]["id"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


def _field(answer: _Answer, name: str) -> str:
    """A text of a body, or of the error in it."""
    try:
        body = json.loads(answer.body)
        return str(body.get("error", body)[name])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _try(client: _ServiceClient, attack: Attack) -> AttackResult:
    data = attack.data
    if data["token"] == _REVOKED and _REVOKED not in client.tokens:
        return judge(attack, control=NOT_TRIED, attempt=NOT_TRIED)
    wanted = data.get("contains", "").replace(_SESSION, client.session).encode()
    attempt = _observe(client.send(_hostile(client, data)), wanted)
    control = _observe(client.send(_benign(client, data)), wanted)
    return judge(attack, control=control, attempt=attempt)


def _hostile(client: _ServiceClient, data: Mapping[str, Any]) -> _HttpRequest:
    path = data["path"].replace(_SESSION, client.session)
    path, headers = _credentials(client, data["token"], path)
    return _HttpRequest(data["method"], path, {**headers, **data.get("headers", {})}, _body(data))


def _benign(client: _ServiceClient, data: Mapping[str, Any]) -> _HttpRequest:
    path = data.get("benign_path", data["path"]).replace(_SESSION, client.session)
    method = data.get("benign_method", data["method"])
    body = None if method == "GET" else _body({"body": data.get("benign_body", data.get("body"))})
    return _HttpRequest(method, path, _bearer(client.tokens["owner"]), body)


def _body(data: Mapping[str, Any]) -> bytes | None:
    if "raw" in data:
        return str(data["raw"]).encode()
    body = data.get("body")
    return None if body is None else json.dumps(body).encode()


def _credentials(client: _ServiceClient, how: str, path: str) -> tuple[str, dict[str, str]]:
    """The path and the headers with which the attacker asks."""
    valid = client.tokens["owner"]
    match how:
        case "":
            return path, {}
        case "changed":
            last = "a" if valid[-1:] != "a" else "b"
            return path, _bearer(valid[:-1] + last)
        case "cut":
            return path, _bearer(valid[: len(valid) // 2])
        case "swapped-case":
            return path, _bearer(valid.swapcase())
        case "with-tail":
            return path, _bearer(f"{valid}%00x")
        case "in-query":
            return f"{path}?access_token={valid}&token={valid}", {}
        case "basic":
            pair = base64.b64encode(f"owner:{valid}".encode()).decode()
            return path, {"Authorization": f"Basic {pair}"}
        case _:
            return path, _bearer(client.tokens.get(how, how))


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _observe(answer: _Answer, wanted: bytes) -> Observation:
    """`wanted` is what an answer must contain to be of use; empty: any answer is."""
    match answer.status // 100:
        case 2 if wanted in answer.body:
            return Observation("through", f"answered with {answer.status}")
        case 2:
            return Observation("refused", f"{answer.status}, without what was asked for")
        case 4:
            return Observation("refused", f"{answer.status} {_field(answer, 'code')}".strip())
        case 0:
            return Observation("broken", "the connection was closed without an answer")
        case _:
            return Observation("broken", f"answered with {answer.status}")
