"""Sign-in at a provider and by passkey, rates and budgets, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from interfaces.http.running_service import PASSWORD, RunningService, new_session, running_service
from oidc_providers import CLIENT_SECRET, OpenIdProvider, openid
from unit.accounts.authenticator import Authenticator

__all__ = ["openid"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("openid")]
CALLBACK = "/v1/auth/oidc/callback"


def oidc_settings(openid: OpenIdProvider, home: Path) -> str:
    secret = home / "client-secret"
    secret.write_text(f"{CLIENT_SECRET}\n")
    secret.chmod(0o600)
    return (
        f'[oidc]\nissuer = "{openid.issuer}"\nclient_id = "cellwall"\n'
        f'client_secret_file = "{secret}"\nca_file = "{openid.ca_file}"\nnew_users = "guest"\n'
        "[budgets]\nperiod_hours = 8784.0\nuser_runs = 2\n[budgets.prices]\nrun_command = 0.5\n"
        "[rates]\nrequests_per_minute_per_address = 1000\n"
    )


@pytest.fixture(scope="module")
def service(
    openid: OpenIdProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-signing-in")
    with running_service(home, config=oidc_settings(openid, home)) as found:
        openid.register(found.url + CALLBACK)
        yield found


def back(openid: OpenIdProvider, service: RunningService, url: str, subject: str) -> dict[str, str]:
    return openid.sign_in(url, subject, service.url + CALLBACK)


@pytest.mark.requirement("SRV-2")
def test_a_browser_signs_in_at_the_provider(service, openid):
    openid.set_accounts({"ann": {}})
    with service.client() as browser, service.client() as other:
        assert browser.get("/v1/auth/methods").json()["oidc"] is True
        begun = browser.get("/v1/auth/oidc/start")
        assert begun.status_code == 303
        cookie = begun.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        answer = back(openid, service, begun.headers["location"], "ann")
        # Another browser, which the attacker sends there with the attacker's code, is not signed in.
        assert other.get(CALLBACK, params=answer).status_code == 401
        begun = browser.get("/v1/auth/oidc/start")
        answer = back(openid, service, begun.headers["location"], "ann")
        twice = [*answer.items(), ("code", "other")]
        assert browser.get(CALLBACK, params=twice).status_code == 401
        begun = browser.get("/v1/auth/oidc/start")
        answer = back(openid, service, begun.headers["location"], "ann")
        done = browser.get(CALLBACK, params=answer)
        assert (done.status_code, done.headers["location"]) == (303, "/")
        assert not answer.keys() & parse_qs(urlsplit(done.headers["location"]).query).keys()
        me = browser.get("/v1/auth/session").json()
        assert (me["name"], me["role"]) == ("ann", "guest")
        assert browser.get(CALLBACK, params=answer).status_code == 401


@pytest.mark.requirement("SRV-2")
def test_an_identity_is_linked_by_its_account(service, openid):
    with service.client("power-user") as program, service.client() as browser:
        assert program.post("/v1/auth/oidc/link").status_code == 403  # a service token
        service.set_password("power-user")
        body = {"name": "power-user", "password": PASSWORD, "cookie": True}
        csrf = browser.post("/v1/auth/token", json=body).json()["csrf_token"]
        assert browser.post("/v1/auth/oidc/link").status_code == 403
        headers = {"X-CSRF-Token": csrf}
        for stolen in (None, {}, {"password": "wrong horse battery"}):
            refused = browser.post("/v1/auth/oidc/link", headers=headers, json=stolen)
            assert refused.status_code == 401
        confirmed = {"password": PASSWORD}
        begun = browser.post("/v1/auth/oidc/link", headers=headers, json=confirmed).json()
        answer = back(openid, service, begun["url"], "linked")
        assert browser.get(CALLBACK, params=answer).status_code == 303
        assert browser.get("/v1/auth/session").json()["name"] == "power-user"
        csrf = browser.get("/v1/auth/session").json()["csrf_token"]
        listed = browser.get("/v1/auth/identities").json()["identities"]
        assert [each["subject"] for each in listed] == ["linked"]
        headers, named = {"X-CSRF-Token": csrf}, {"subject": "linked"}
        for status in (204, 404):
            removed = browser.delete("/v1/auth/identities", params=named, headers=headers)
            assert removed.status_code == status
        path = f"/v1/users/{service.ids['power-user']}/identities"
        with service.client("owner") as owner, service.client("user") as other:
            assert other.delete(path).status_code == 403
            assert owner.delete(path).status_code == 204


@pytest.mark.requirement("SRV-2")
def test_a_passkey_is_registered_and_signs_in(service):
    service.add_user("bea")
    service.set_password("bea")
    device = Authenticator(service.url)
    with service.client() as client:
        tokens = client.post("/v1/auth/token", json={"name": "bea", "password": PASSWORD}).json()
        me = {"Authorization": f"Bearer {tokens['access_token']}"}
        refused = client.post("/v1/auth/passkeys/register", json={}, headers=me)
        assert refused.status_code == 401
        body = {"password": PASSWORD}
        begun = client.post("/v1/auth/passkeys/register", json=body, headers=me).json()
        body = {"id": begun["id"], "name": "laptop", "credential": device.create(begun["options"])}
        made = client.post("/v1/auth/passkeys", json=body, headers=me)
        assert made.status_code == 201, made.text
        assert client.post("/v1/auth/passkeys", json=body, headers=me).status_code == 401
        challenge = client.post("/v1/auth/passkeys/challenge").json()
        body = {"id": challenge["id"], "credential": device.get(challenge["options"])}
        found = client.post("/v1/auth/passkeys/token", json=body)
        assert found.status_code == 200, found.text
        assert client.post("/v1/auth/passkeys/token", json=body).status_code == 401
        access = {"Authorization": f"Bearer {found.json()['access_token']}"}
        assert client.get("/v1/auth/session", headers=access).json()["name"] == "bea"
        listed = client.get("/v1/auth/passkeys", headers=access).json()["passkeys"]
        assert [each["name"] for each in listed] == ["laptop"]
        with service.client("user") as other:
            path = f"/v1/auth/passkeys/{listed[0]['id']}"
            assert other.delete(path).status_code == 403  # a service token
        assert client.delete(path, headers=access).status_code == 204
        assert client.delete(path, headers=access).status_code == 404


@pytest.mark.requirement("RBAC-4")
def test_a_budget_ends_runs_and_tells_when_it_begins_anew(service):
    service.add_user("cal")
    with service.client("cal") as client, service.client("owner") as owner:
        session = new_session(client)

        def run() -> dict[str, Any]:
            answer = client.post(f"/v1/sessions/{session}/commands", json={"command": "true"})
            assert answer.status_code == 200
            found: dict[str, Any] = answer.json()
            return found

        assert [run()["status"] for _ in range(2)] == ["ok", "ok"]
        refused = run()
        assert (refused["status"], refused["error"]["code"]) == ("denied", "CW-BUDGET")
        assert 0 < refused["error"]["retry_after_s"] <= 366 * 86_400
        (runs,) = client.get("/v1/budgets").json()["budgets"]
        assert (runs["resource"], runs["used"], runs["limit"]) == ("runs", 2.0, 2.0)
        path = f"/v1/budgets/user/{service.ids['cal']}/runs"
        assert client.put(path, json={"limit": 9}).status_code == 403
        assert owner.put(path, json={"limit": 9, "period_s": 366 * 86_400}).status_code == 204
        assert run()["status"] == "ok"
        assert owner.put(path, json={"limit": -1}).status_code == 400
        assert owner.delete(path).status_code == 204
        assert owner.delete(path).status_code == 404


@pytest.mark.requirement("RBAC-4")
def test_an_address_with_too_many_requests_is_slowed(tmp_path_factory):
    home = tmp_path_factory.mktemp("cellwall-slow")
    config = "[rates]\nrequests_per_minute_per_address = 40\n"
    with running_service(home, config=config) as service, service.client() as client:
        answers = [client.get("/v1/auth/methods") for _ in range(90)]
        codes = {each.status_code for each in answers}
        assert codes == {200, 429}
        assert answers[-1].status_code == 429
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        assert answers[-1].json()["error"]["code"] == "CW-RATE"
