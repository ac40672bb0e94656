"""The layer service: requests to a real `cellwall serve` on loopback, in a state folder of its own.

Requests are written with `http.client`, which sends paths and headers as they are.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
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
from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.core.errors import SandboxFailed
from cellwall.redteam.attack import NOT_TRIED, Attack, AttackResult, Observation, judge
from cellwall.redteam.outside import serving

_WITHIN_S = 60.0
_MAX_BODY_BYTES = 1 << 20
_TOKEN_LIVES_S = 3600.0
_REVOKED = "revoked"
_ROLES = {
    "owner": "owner",
    "colleague": "owner",
    "user": "user",
    "guest": "guest",
    _REVOKED: "user",
}
"""The people of the service. The colleague has the role of the owner, and none of the owner's
things; the token of `revoked` is revoked once it has worked."""
_BROWSERS = ("browser", "other-browser")
"""Owners who sign in with a password and keep their token in a cookie."""
_CSRF = "X-CSRF-Token"
_FORM_TOKEN = re.compile(rb'name="form_token" value="([^"]+)"')
_NOTE = b"a note of the owner"
_BUSY = (408, 429)
_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class _AttackRequest:
    """One HTTP request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None
    kind: str = "application/json"


@dataclass(frozen=True, slots=True)
class _ServiceAnswer:
    """The status and the body; status 0 is a connection that was closed."""

    status: int
    body: bytes = b""
    cookies: tuple[str, ...] = ()


class _ServiceClient:
    """Speaks to the service, as different people."""

    def __init__(self, address: str, tokens: Mapping[str, str]) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self.tokens = dict(tokens)
        self.ids: dict[str, str] = {}
        """Words of a path -> ids: of things that belong to the owner."""
        self.browsers: dict[str, _Browser] = {}

    def send(self, request: _AttackRequest) -> _ServiceAnswer:
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
                connection.putheader("Content-Type", request.kind)
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            cookies = answer.headers.get_all("Set-Cookie") or []
            pairs = tuple(each.partition(";")[0] for each in cookies)
            return _ServiceAnswer(answer.status, answer.read(_MAX_BODY_BYTES), pairs)
        except (OSError, HTTPException):
            return _ServiceAnswer(0)
        finally:
            connection.close()

    def as_owner(self, method: str, path: str, body: object = None) -> _ServiceAnswer:
        data = None if body is None else json.dumps(body).encode()
        return self.send(_AttackRequest(method, path, _bearer(self.tokens["owner"]), data))


@dataclass(frozen=True, slots=True)
class _Browser:
    """What a signed-in browser sends: cookies, and the two tokens that only its own pages know."""

    cookies: str
    csrf: str
    form: str


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
    vault = VaultAdmin(home, host.app.settings, audit=host.app.audit)
    vault.init(choice=VaultKeyChoice(), principal=host.who)
    passwords = {name: secrets.token_urlsafe(24) for name in _BROWSERS}
    for name, password in passwords.items():
        if not stop.is_set():
            accounts.add_user(name, "owner", password)
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
        for name, password in passwords.items():
            if (browser := _sign_in(client, name, password)) is not None:
                client.browsers[name] = browser
        return [_try(client, attack) for attack in attacks if not stop.is_set()]


def _new_token(accounts: AccountAdmin, name: str, role: str) -> str:
    accounts.add_user(name, role, None)
    token, _ = accounts.create_token(name, name="redteam", scopes=(), lives_s=_TOKEN_LIVES_S)
    return token


def _prepare(client: _ServiceClient) -> None:
    """Things of the owner that others must not reach, and a token that worked and is revoked."""
    made = client.as_owner("POST", "/v1/sessions", {})
    client.ids["SESSION"] = _field(made, "id")
    client.ids["OWNER"] = _field(client.as_owner("GET", "/v1/auth/session"), "id")
    client.ids["TOKEN"] = _own_token_id(client.as_owner("GET", "/v1/tokens"))
    client.as_owner("PUT", f"/v1/sessions/{client.ids['SESSION']}/files/note.txt", _NOTE.decode())
    client.as_owner("PUT", "/v1/secrets/CALENDAR", {"value": "a password of the owner"})
    account = {"url": "https://calendar.example/o/", "username": "o", "secret": "CALENDAR"}
    client.as_owner("PUT", "/v1/connections/office", account)
    headers = _bearer(client.tokens[_REVOKED])
    listed = client.send(_AttackRequest("GET", "/v1/tokens", headers))
    ended = client.send(_AttackRequest("DELETE", f"/v1/tokens/{_own_token_id(listed)}", headers))
    if ended.status // 100 != 2:
        client.tokens.pop(_REVOKED)  # nothing was revoked, so nothing can be shown about that


def _sign_in(client: _ServiceClient, name: str, password: str) -> _Browser | None:
    """A browser of this person; None if the service does not let the person in."""
    body = json.dumps({"name": name, "password": password, "cookie": True}).encode()
    signed_in = client.send(_AttackRequest("POST", "/v1/auth/token", {}, body))
    cookies = "; ".join(signed_in.cookies)
    page = client.send(_AttackRequest("GET", "/ui/people", {"Cookie": cookies}))
    cookies = "; ".join((*signed_in.cookies, *page.cookies))
    known = client.send(_AttackRequest("GET", "/v1/auth/session", {"Cookie": cookies}))
    form = _FORM_TOKEN.search(page.body)
    if not signed_in.cookies or form is None:
        return None
    return _Browser(cookies, _field(known, "csrf_token"), form[1].decode())


def _own_token_id(answer: _ServiceAnswer) -> str:
    try:
        return str(json.loads(answer.body)["tokens"][0]["id"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


def _field(answer: _ServiceAnswer, name: str) -> str:
    """A text of a body, or of the error in it."""
    try:
        body = json.loads(answer.body)
        return str(body.get("error", body)[name])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def _try(client: _ServiceClient, attack: Attack) -> AttackResult:
    data = attack.data
    is_signed_in = client.browsers.keys() == set(_BROWSERS)
    if (data["token"] == _REVOKED and _REVOKED not in client.tokens) or (
        data["token"].startswith("cookie") and not is_signed_in
    ):
        return judge(attack, control=NOT_TRIED, attempt=NOT_TRIED)
    wanted = _filled(client, data.get("contains", "")).encode()
    attempt = _observe(client.send(_hostile(client, data)), wanted)
    control = _observe(client.send(_benign(client, data)), wanted)
    return judge(attack, control=control, attempt=attempt)


def _hostile(client: _ServiceClient, data: Mapping[str, Any]) -> _AttackRequest:
    path, headers = _credentials(client, data["token"], _filled(client, data["path"]))
    headers |= data.get("headers", {})
    if "form" in data:
        return _AttackRequest(data["method"], path, headers, data["form"].encode(), _FORM)
    return _AttackRequest(data["method"], path, headers, _body(data))


def _benign(client: _ServiceClient, data: Mapping[str, Any]) -> _AttackRequest:
    path = _filled(client, data.get("benign_path", data["path"]))
    method = data.get("benign_method", data["method"])
    path, headers = _credentials(client, data.get("benign_token", "owner"), path)
    if "form" in data:
        form = f"{data['form']}&form_token={client.browsers[_BROWSERS[0]].form}"
        return _AttackRequest(method, path, headers, form.encode(), _FORM)
    body = None if method == "GET" else _body({"body": data.get("benign_body", data.get("body"))})
    return _AttackRequest(method, path, headers, body)


def _filled(client: _ServiceClient, text: str) -> str:
    for word, value in client.ids.items():
        text = text.replace(word, value)
    return text


def _body(data: Mapping[str, Any]) -> bytes | None:
    if "raw" in data:
        return str(data["raw"]).encode()
    body = data.get("body")
    return None if body is None else json.dumps(body).encode()


def _credentials(client: _ServiceClient, how: str, path: str) -> tuple[str, dict[str, str]]:
    """The path and the headers of a request with these credentials."""
    if how.startswith("cookie"):
        own, other = (client.browsers[name] for name in _BROWSERS)
        csrf = {"cookie-with-csrf": own.csrf, "cookie-with-foreign-csrf": other.csrf}
        return path, {"Cookie": own.cookies, **({_CSRF: csrf[how]} if how in csrf else {})}
    if how == "in-query":
        valid = client.tokens["owner"]
        return f"{path}?access_token={valid}&token={valid}", {}
    return path, _headers(client, how)


def _headers(client: _ServiceClient, how: str) -> dict[str, str]:
    valid = client.tokens["owner"]
    match how:
        case "":
            return {}
        case "changed":
            last = "a" if valid[-1:] != "a" else "b"
            return _bearer(valid[:-1] + last)
        case "cut":
            return _bearer(valid[: len(valid) // 2])
        case "swapped-case":
            return _bearer(valid.swapcase())
        case "with-tail":
            return _bearer(f"{valid}%00x")
        case "basic":
            pair = base64.b64encode(f"owner:{valid}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        case _:
            return _bearer(client.tokens.get(how, how))


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _observe(answer: _ServiceAnswer, wanted: bytes) -> Observation:
    """`wanted` is what an answer must contain to be of use; empty: any answer is."""
    match answer.status // 100:
        case 2 if wanted in answer.body:
            return Observation("through", f"answered with {answer.status}")
        case 2:
            return Observation("refused", f"{answer.status}, without what was asked for")
        case 4 if answer.status in _BUSY:  # the service did not look at the request itself
            return Observation("broken", f"answered with {answer.status}")
        case 4:
            return Observation("refused", f"{answer.status} {_field(answer, 'code')}".strip())
        case 0:
            return Observation("broken", "the connection was closed without an answer")
        case _:
            return Observation("broken", f"answered with {answer.status}")
