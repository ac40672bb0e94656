"""Each role x each route x own and foreign resources, from the roles as they are shipped (RBAC-1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cellwall.accounts.roles import shipped_roles
from cellwall.core.ids import new_id
from cellwall.core.types import ROLE_NAMES
from cellwall.core.types import Permission as P
from interfaces.http.running_service import ROOT, RunningService, new_session, running_service

pytestmark = pytest.mark.slow

# What each route needs; None: any user. A route that is not here fails the test.
SESSION = "/v1/sessions/{session_id}"
FILE = f"{SESSION}/files/{{path}}"
RUN = f"{SESSION}/runs/{{run_id}}"
BUDGET = "/v1/budgets/{kind}/{subject}/{resource}"
NEEDS: dict[str, P | None] = {
    "GET /v1/auth/session": None,
    "PUT /v1/auth/password": None,
    "GET /v1/auth/sign-ins": None,
    "DELETE /v1/auth/sign-ins/{sign_in_id}": None,
    "GET /v1/auth/passkeys": None,
    "POST /v1/auth/passkeys": None,
    "POST /v1/auth/passkeys/register": None,
    "DELETE /v1/auth/passkeys/{passkey_id}": None,
    "POST /v1/auth/oidc/link": None,
    "GET /v1/auth/identities": None,
    "DELETE /v1/auth/identities": None,
    "DELETE /v1/users/{user_id}/identities": P.USERS_MANAGE,
    "GET /v1/budgets": None,
    f"PUT {BUDGET}": P.USERS_MANAGE,
    f"DELETE {BUDGET}": P.USERS_MANAGE,
    "DELETE /v1/users/{user_id}/passkeys": P.USERS_MANAGE,
    "GET /v1/users": P.USERS_MANAGE,
    "POST /v1/users": P.USERS_MANAGE,
    "GET /v1/users/{user_id}": P.USERS_MANAGE,
    "PATCH /v1/users/{user_id}": P.USERS_MANAGE,
    "GET /v1/users/{user_id}/sign-ins": P.USERS_MANAGE,
    "DELETE /v1/users/{user_id}/sign-ins/{sign_in_id}": P.USERS_MANAGE,
    "GET /v1/users/{user_id}/passkeys": P.USERS_MANAGE,
    "GET /v1/users/{user_id}/tokens": P.USERS_MANAGE,
    "DELETE /v1/users/{user_id}/tokens/{token_id}": P.USERS_MANAGE,
    "POST /v1/users/{user_id}/link": P.USERS_MANAGE,
    "POST /v1/keys/rotate": P.USERS_MANAGE,
    "GET /v1/teams": None,
    "POST /v1/teams": P.USERS_MANAGE,
    "PUT /v1/teams/{team_id}/members/{user_id}": P.USERS_MANAGE,
    "DELETE /v1/teams/{team_id}/members/{user_id}": P.USERS_MANAGE,
    "GET /v1/tokens": None,
    "DELETE /v1/tokens/{token_id}": None,
    "POST /v1/sessions": P.SANDBOX_EXECUTE,
    "GET /v1/sessions": None,
    f"GET {SESSION}": None,
    f"POST {SESSION}/code": P.SANDBOX_EXECUTE,
    f"POST {SESSION}/commands": P.SANDBOX_EXECUTE,
    f"GET {RUN}/events": None,
    f"DELETE {RUN}": P.SANDBOX_EXECUTE,
    f"GET {FILE}": P.FILES_READ,
    f"GET {SESSION}/diff": P.FILES_READ,
    f"PUT {FILE}": P.FILES_WRITE,
    f"DELETE {FILE}": P.FILES_WRITE,
    f"POST {SESSION}/snapshots": P.FILES_WRITE,
    f"POST {SESSION}/fork": P.SANDBOX_EXECUTE,
    "GET /v1/snapshots": None,
    "GET /v1/snapshots/{snapshot_id}": None,
    "DELETE /v1/snapshots/{snapshot_id}": P.FILES_WRITE,
    f"POST {SESSION}/ports/{{port}}": P.SANDBOX_EXECUTE,
    "GET /v1/approvals": None,
    "GET /v1/approvals/{approval_id}": None,
    "POST /v1/approvals/{approval_id}": None,
    "GET /v1/secrets": P.SECRETS_USE,
    "GET /v1/secrets/{name}": P.SECRETS_USE,
    "PUT /v1/secrets/{name}": P.SECRETS_USE,
    "DELETE /v1/secrets/{name}": P.SECRETS_USE,
    "POST /v1/messages": P.CHANNELS_RELAY,
    "POST /v1/messages/replies": P.CHANNELS_RELAY,
    "GET /v1/connections": P.SECRETS_USE,
    "PUT /v1/connections/{name}": P.SECRETS_USE,
    "DELETE /v1/connections/{name}": P.SECRETS_USE,
    "GET /v1/connections/{name}/events": None,
    "POST /v1/connections/{name}/events": None,
    "GET /v1/alerts": P.AUDIT_READ,
    "POST /v1/alerts/silences": P.POLICY_WRITE,
    "DELETE /v1/alerts/silences/{silence_id}": P.POLICY_WRITE,
    "GET /v1/audit": None,
    "GET /v1/audit/verify": P.AUDIT_READ,
    "GET /v1/audit/status": P.AUDIT_READ,
    "POST /v1/audit/verification": P.AUDIT_READ,
    "GET /v1/host/checks": P.AUDIT_READ,
    "POST /v1/host/checks": P.CONFIG_WRITE,
    "GET /v1/host/blast-radius": P.AUDIT_READ,
    "GET /v1/fleet/hosts": P.AUDIT_READ,
    "GET /v1/metrics": P.METRICS_READ,
    "POST /v1/scan": None,
    "GET /v1/policies": P.POLICY_WRITE,
    "POST /v1/policies/check": P.SANDBOX_EXECUTE,
    "GET /v1/egress/hosts/{host}": P.SANDBOX_EXECUTE,
    "POST /v1/egress/hosts/{host}": P.POLICY_WRITE,
    f"POST {SESSION}/domains": P.NETWORK_USE,
    "GET /v1/mcp-servers": P.CONFIG_WRITE,
    "GET /v1/mcp-servers/{name}": P.CONFIG_WRITE,
    "POST /v1/mcp-servers/{name}": P.CONFIG_WRITE,
    "GET /v1/packages/sbom": None,
    "GET /v1/packages/lock": None,
    "POST /v1/packages/verify": P.SANDBOX_EXECUTE,
    "POST /v1/packages/install": P.PACKAGES_INSTALL,
    "POST /v1/stop": P.SANDBOX_STOP,
    "GET /v1/stop": P.SANDBOX_STOP,
    f"DELETE {SESSION}": None,
    "DELETE /v1/users/{user_id}/tokens": P.USERS_MANAGE,
    "DELETE /v1/users/tokens": P.USERS_MANAGE,
}
PUBLIC = {
    "POST /v1/auth/token",
    "POST /v1/auth/refresh",
    "POST /v1/auth/revoke",
    "POST /v1/auth/passkeys/challenge",
    "POST /v1/auth/passkeys/token",
    "GET /v1/auth/methods",
    "GET /v1/auth/oidc/start",
    "GET /v1/auth/oidc/callback",
    "GET /v1/healthz",
    "GET /v1/readyz",
    "GET /v1/.well-known/jwks.json",
}
SIGNED_IN_ONLY = {
    "POST /v1/tokens",
    "POST /v1/pairings/codes",
    "GET /v1/pairings",
    "DELETE /v1/pairings/{pairing_id}",
    "POST /v1/stop/thaw",
    "DELETE /v1/stop",
}
BODIES: dict[str, Any] = {
    "PUT /v1/auth/password": {"old": "wrong", "new": "some longer password"},
    "POST /v1/auth/passkeys/register": {},
    "POST /v1/auth/oidc/link": {},
    "POST /v1/auth/passkeys": {"id": "cwf_x", "name": "x", "credential": {}},
    "POST /v1/auth/passkeys/token": {"id": "cwf_x", "credential": {}},
    "PUT /v1/budgets/{kind}/{subject}/{resource}": {"limit": 5},
    "POST /v1/users": {"name": "bad name!", "role": "user"},
    "PATCH /v1/users/{user_id}": {},
    "POST /v1/teams": {"name": "bad name!"},
    "POST /v1/sessions": {},
    f"POST {SESSION}/code": {"code": "1"},
    f"POST {SESSION}/commands": {"command": "true"},
    "POST /v1/approvals/{approval_id}": {"answer": "once"},
    "PUT /v1/secrets/{name}": {"value": "some-secret-value"},
    "POST /v1/messages": {"channel": "plain", "sender": "1", "message": "1", "content": "x"},
    "POST /v1/messages/replies": {
        "channel": "plain",
        "sender": "1",
        "message": "1",
        "content": "x",
    },
    "PUT /v1/connections/{name}": {"url": "http://no", "username": "a", "secret": "A"},
    "POST /v1/connections/{name}/events": {"summary": "x", "start": "x", "end": "y"},
    "POST /v1/alerts/silences": {"rule": "no-such-rule", "for_s": 60, "reason": "x"},
    "POST /v1/scan": {"text": "x"},
    "POST /v1/policies/check": {"calls": [{"tool": "Bash", "input": {"command": "ls"}}]},
    "POST /v1/egress/hosts/{host}": {"shown_sha256": "0" * 64},
    f"POST {SESSION}/domains": {"add": ["example.com"]},
    "POST /v1/mcp-servers/{name}": {"decision": "accept", "shown_sha256": "0" * 64},
    "POST /v1/packages/verify": {"packages": ["requests"], "offline": True},
    "POST /v1/packages/install": {"packages": ["no_such_thing_at_all"], "ecosystem": "pypi"},
    "POST /v1/tokens": {"name": "x"},
    "POST /v1/stop": {},
    f"POST {SESSION}/snapshots": {},
    f"POST {SESSION}/fork": {},
    f"POST {SESSION}/ports/{{port}}": {},
}


@dataclass
class Person:
    """A user of one role, who has a session with a file from better times."""

    role: str
    client: httpx.Client
    user_id: str
    session: str

    def ask(self, route: str, session: str, **changes: str) -> httpx.Response:
        method, _, path = route.partition(" ")
        named = {
            "session_id": session,
            "path": "kept.txt",
            "run_id": new_id("run"),
            "user_id": new_id("usr"),
            "team_id": new_id("team"),
            "token_id": new_id("tok"),
            "approval_id": new_id("ask"),
            "pairing_id": new_id("pair"),
            "name": "NAME",
            "passkey_id": new_id("pky"),
            "sign_in_id": new_id("fam"),
            "host": "example.com",
            "kind": "user",
            "subject": new_id("usr"),
            "resource": "runs",
            "silence_id": new_id("sil"),
            "snapshot_id": new_id("snap"),
            "port": "8000",
            **changes,
        }
        body = BODIES.get(route)
        if route == "POST /v1/packages/install":
            body = {**body, "session": session}
        if route == f"PUT {FILE}":
            return self.client.put(path.format(**named), content=b"x")
        return self.client.request(method, path.format(**named), json=body)


def is_denied(answer: httpx.Response) -> bool:
    """By role; a run that is refused has an outcome that says so."""
    assert answer.status_code < 500, answer.text
    if answer.status_code == 403:
        return answer.json()["error"]["code"] in {"CW-ROLE", "CW-DENIED"}
    is_json = answer.headers.get("content-type") == "application/json"
    outcome = answer.json() if is_json and answer.content else {}
    is_outcome = answer.status_code == 200 and "decision" in outcome
    return is_outcome and outcome["decision"]["rule"].startswith("role:")


@pytest.fixture(scope="module")
def people(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[RunningService, list[Person]]]:
    home: Path = tmp_path_factory.mktemp("cellwall-roles")
    with running_service(home) as service:
        found = []
        for role in ROLE_NAMES:
            name = f"the-{role}"
            service.add_user(name, "owner")
            client = service.client(name)
            session = new_session(client, keep_alive=3600)
            client.put(f"/v1/sessions/{session}/files/kept.txt", content=b"x").raise_for_status()
            user_id = service.ids[name]
            service.call(service.accounts.directory.set_role(user_id, role, by=ROOT))
            found.append(Person(role, client, user_id, session))
        yield service, found
        for each in found:
            each.client.close()


@pytest.mark.requirement("RBAC-1", "RBAC-3")
def test_each_role_reaches_what_it_permits_and_nobody_anything_foreign(
    people: tuple[RunningService, list[Person]],
) -> None:
    service, persons = people
    with service.client() as anybody:
        document = anybody.get("/openapi.json").json()
    known = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert known == {*NEEDS, *PUBLIC, *SIGNED_IN_ONLY}
    wrong = []
    for route, needed in NEEDS.items():
        for person in persons:
            own = person.ask(route, person.session)
            is_permitted = needed is None or needed in shipped_roles()[person.role].permissions
            if is_denied(own) is is_permitted:
                wrong.append((route, person.role, own.status_code, own.text[:200]))
            if "{session_id}" in route or route == "POST /v1/packages/install":
                wrong += foreign_problems(person, route, persons)
    assert service.app.ledger.stop_flag.lift()  # these callers have service tokens, which may not
    assert not wrong


def foreign_problems(person: Person, route: str, persons: list[Person]) -> list[Any]:
    """A session of another user, live or ended, must look like one that never was."""
    unknown = person.ask(route, new_id("sbx"), run_id="run_1")
    other = persons[persons.index(person) - 1]  # each role has the session of another
    foreign = person.ask(route, other.session, run_id="run_1")
    is_same = without_record(foreign) == without_record(unknown)
    if is_same and foreign.status_code in {403, 404}:
        return []
    return [(route, person.role, other.role, foreign.text[:200])]


def without_record(answer: httpx.Response) -> tuple[int, Any]:
    """Two denials by role have records of their own."""
    body = answer.json()
    body["error"].pop("audit_id")
    return answer.status_code, body


@pytest.mark.requirement("SRV-2")
def test_without_a_token_only_the_public_routes_answer(
    people: tuple[RunningService, list[Person]],
) -> None:
    service, _ = people
    with service.client() as client:
        person = Person("", client, "", new_id("sbx"))
        for route in (*NEEDS, *SIGNED_IN_ONLY):
            answer = person.ask(route, person.session)
            assert answer.status_code == 401, route
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for route in PUBLIC:
            assert person.ask(route, person.session).status_code in {200, 400, 401, 404}, route
