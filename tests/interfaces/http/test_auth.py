"""Signing in over HTTP: passwords, links, refresh, revocation, cookies."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest
from joserfc import jwk, jwt

from interfaces.http.running_service import PASSWORD, ROOT, RunningService, running_service

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def ann(service: RunningService) -> None:
    service.add_user("ann", "power-user")
    service.set_password("ann")


@pytest.fixture
def anybody(service: RunningService) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def sign_in(client: httpx.Client, **more: object) -> dict[str, str]:
    body = {"name": "ann", "password": PASSWORD, **more}
    answer = client.post("/v1/auth/token", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def code_with(client: httpx.Client, token: str | None) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return client.get("/v1/auth/session", headers=headers).status_code


@pytest.mark.requirement("SRV-2")
def test_a_password_gives_a_token_that_the_published_keys_verify(
    service: RunningService, anybody: httpx.Client
) -> None:
    tokens = sign_in(anybody)
    keys = jwk.KeySet.import_key_set(anybody.get("/v1/.well-known/jwks.json").json())
    claims = jwt.decode(tokens["access_token"], keys, algorithms=["Ed25519", "EdDSA"]).claims
    assert claims["aud"] == f"{service.url}/v1"
    assert 0 < tokens["expires_in"] <= 600
    me = anybody.get(
        "/v1/auth/session", headers={"Authorization": f"Bearer {tokens['access_token']}"}
    ).json()
    assert (me["name"], me["role"], me["csrf_token"]) == ("ann", "power-user", None)


@pytest.mark.requirement("SRV-2")
def test_wrong_names_and_wrong_passwords_get_one_answer(anybody: httpx.Client) -> None:
    bodies = [{"name": "ann", "password": "wrong"}, {"name": "nobody", "password": PASSWORD}]
    answers = [anybody.post("/v1/auth/token", json=body) for body in bodies]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert "WWW-Authenticate" in answers[0].headers
    assert sign_in(anybody)


@pytest.mark.requirement("SRV-2")
def test_a_used_refresh_token_ends_the_whole_sign_in(anybody: httpx.Client) -> None:
    first = sign_in(anybody)
    body = {"refresh_token": first["refresh_token"]}
    second = anybody.post("/v1/auth/refresh", json=body).json()
    assert code_with(anybody, second["access_token"]) == 200
    # A window that refreshes at the same time gets the same successor.
    same = anybody.post("/v1/auth/refresh", json=body).json()
    assert same["refresh_token"] == second["refresh_token"]
    next_body = {"refresh_token": second["refresh_token"]}
    third = anybody.post("/v1/auth/refresh", json=next_body).json()
    assert anybody.post("/v1/auth/refresh", json=body).status_code == 401
    assert code_with(anybody, third["access_token"]) == 401
    again = anybody.post("/v1/auth/refresh", json={"refresh_token": third["refresh_token"]})
    assert again.status_code == 401


@pytest.mark.requirement("SRV-2")
def test_a_service_token_ends_itself_and_no_other_credential(
    service: RunningService, anybody: httpx.Client
) -> None:
    person = {"Authorization": f"Bearer {sign_in(anybody)['access_token']}"}
    body = {"name": "x", "scopes": ["sandbox:execute"], "lives_s": 600}
    one, two = (anybody.post("/v1/tokens", json=body, headers=person).json() for _ in range(2))
    stolen = {"Authorization": f"Bearer {one['token']}"}
    refused = [
        anybody.post("/v1/auth/revoke", json={"everywhere": True}, headers=stolen),
        anybody.delete(f"/v1/tokens/{two['id']}", headers=stolen),
        anybody.post("/v1/tokens", json=body, headers=stolen),
    ]
    assert {each.json()["error"]["code"] for each in refused} == {"CW-TOKEN-BY-TOKEN"}
    assert code_with(anybody, two["token"]) == 200
    assert anybody.delete(f"/v1/tokens/{one['id']}", headers=stolen).status_code == 204
    assert code_with(anybody, one["token"]) == 401
    assert anybody.delete(f"/v1/tokens/{two['id']}", headers=person).status_code == 204


@pytest.mark.requirement("SRV-2")
def test_a_revoked_token_ends_at_once(service: RunningService, anybody: httpx.Client) -> None:
    one, two, three = (sign_in(anybody) for _ in range(3))
    headers = {"Authorization": f"Bearer {one['access_token']}"}
    assert anybody.post("/v1/auth/revoke", headers=headers).status_code == 204
    assert code_with(anybody, one["access_token"]) == 401
    body = {"token": two["refresh_token"]}
    assert anybody.post("/v1/auth/revoke", json=body).status_code == 204
    assert code_with(anybody, two["access_token"]) == 401
    assert code_with(anybody, three["access_token"]) == 200
    for unknown in ("cwr_unknown", "cws_unknown", "eyJ.x.y", ""):
        assert anybody.post("/v1/auth/revoke", json={"token": unknown}).status_code == 204
    headers = {"Authorization": f"Bearer {three['access_token']}"}
    everywhere = anybody.post("/v1/auth/revoke", json={"everywhere": True}, headers=headers)
    assert everywhere.status_code == 204
    assert code_with(anybody, three["access_token"]) == 401
    assert code_with(anybody, service.tokens["ann"]) == 401


@pytest.mark.requirement("SRV-2")
def test_the_first_owner_comes_by_the_one_time_link(tmp_path) -> None:
    with running_service(tmp_path, may_exist=True) as service, service.client() as client:
        link = service.call(service.accounts.sign_in.first_owner_link())
        body = {"link": link, "name": "Root", "password": PASSWORD}
        tokens = client.post("/v1/auth/token", json=body).json()
        assert code_with(client, tokens["access_token"]) == 200
        assert client.post("/v1/auth/token", json=body).status_code in {401, 403}
        me = {"Authorization": f"Bearer {tokens['access_token']}"}
        made = client.post("/v1/users", json={"name": "bob", "role": "user"}, headers=me)
        assert made.status_code == 201, made.text
        link = client.post(f"/v1/users/{made.json()['id']}/link", headers=me).json()["link"]
        body = {"link": link, "password": "another staple horse"}
        assert client.post("/v1/auth/token", json=body).status_code == 200
        assert client.post("/v1/auth/token", json=body).status_code == 401
        names = [each["name"] for each in client.get("/v1/users", headers=me).json()["users"]]
        assert names == ["bob", "root"]


@pytest.mark.requirement("SRV-3")
def test_a_browser_has_its_tokens_in_cookies_and_changes_need_the_csrf_token(
    service: RunningService,
) -> None:
    with service.client() as browser:
        answer = browser.post(
            "/v1/auth/token", json={"name": "ann", "password": PASSWORD, "cookie": True}
        )
        assert answer.json()["access_token"] is None
        assert answer.json()["refresh_token"] is None
        for cookie in answer.headers.get_list("set-cookie"):
            assert "HttpOnly" in cookie
            assert "samesite=strict" in cookie.lower()
        csrf = answer.json()["csrf_token"]
        assert browser.get("/v1/auth/session").json()["csrf_token"] == csrf
        bare = browser.post("/v1/scan", json={"text": "x"})
        assert (bare.status_code, bare.json()["error"]["code"]) == (403, "CW-CSRF")
        wrong = browser.post("/v1/scan", json={"text": "x"}, headers={"X-CSRF-Token": "x" * 43})
        assert wrong.status_code == 403
        right = browser.post("/v1/scan", json={"text": "x"}, headers={"X-CSRF-Token": csrf})
        assert right.status_code == 200
        assert browser.post("/v1/auth/refresh").status_code == 403
        renewed = browser.post("/v1/auth/refresh", headers={"X-CSRF-Token": csrf})
        assert renewed.status_code == 200
        csrf = renewed.json()["csrf_token"]
        out = browser.post("/v1/auth/revoke", headers={"X-CSRF-Token": csrf})
        assert out.status_code == 204
        assert browser.get("/v1/auth/session").status_code == 401


@pytest.mark.requirement("RBAC-4")
def test_guesses_are_slowed(tmp_path) -> None:
    config = "free_guesses_per_account = 3\n"
    with running_service(tmp_path, config=config) as service, service.client() as client:
        service.set_password("user")
        body = {"name": "user", "password": "wrong"}
        answers = [client.post("/v1/auth/token", json=body) for _ in range(6)]
        slowed = answers[-1]
        assert (slowed.status_code, slowed.json()["error"]["code"]) == (429, "CW-SIGN-IN-SLOW")
        assert int(slowed.headers["Retry-After"]) >= 1
        right = client.post("/v1/auth/token", json={"name": "user", "password": PASSWORD})
        assert right.status_code == 429


@pytest.mark.requirement("RBAC-3")
def test_a_service_token_that_manages_users_gives_nobody_more_than_it_holds(
    service: RunningService, anybody: httpx.Client
) -> None:
    service.add_user("olga", "owner")
    directory = service.accounts.directory
    scopes = ["users:manage", "files:read"]
    made = directory.create_token(
        service.ids["olga"], name="narrow", scopes=scopes, lives_s=60, by=ROOT
    )
    narrow = {"Authorization": f"Bearer {service.call(made)[0]}"}
    whole = {"Authorization": f"Bearer {service.tokens['olga']}"}
    accomplice = service.add_user("mallory", "guest") and service.ids["mallory"]

    def code(method: str, path: str, who: dict[str, str], **body: object) -> object:
        answer = anybody.request(method, f"/v1/users{path}", headers=who, json=body or None)
        return answer.json()["error"]["code"] if answer.is_error else answer.status_code

    beyond = "CW-ACCOUNT-BEYOND-TOKEN"
    assert code("POST", "", narrow, name="mallory-2", role="owner") == beyond
    assert code("PATCH", f"/{accomplice}", narrow, role="user") == beyond
    assert code("POST", f"/{service.ids['owner']}/link", narrow) == beyond
    for token in (narrow, whole):  # its thief would be a person, and outlive the token
        assert code("POST", f"/{service.ids['olga']}/link", token) == "CW-ACCOUNT-PERSON"
    # The control: what the token holds it gives, and a person is not bound by scopes.
    assert code("POST", "", narrow, name="gina", role="guest") == 201
    assert code("POST", f"/{accomplice}/link", narrow) == 200
    assert code("POST", f"/{service.ids['owner']}/link", whole) == 200
    assert code("PATCH", f"/{accomplice}", whole, role="user") == 204
    service.set_password("olga")
    body = {"name": "olga", "password": PASSWORD}
    access = anybody.post("/v1/auth/token", json=body).json()["access_token"]
    person = {"Authorization": f"Bearer {access}"}
    assert code("POST", f"/{service.ids['olga']}/link", person) == 200


@pytest.mark.requirement("RBAC-4")
def test_guesses_behind_a_trusted_proxy_slow_one_client_alone(tmp_path_factory) -> None:
    def codes(home: str, **changes: object) -> list[int]:
        """Of the victim behind the same proxy, and of the guesser with addresses of its own choice."""
        with (
            running_service(tmp_path_factory.mktemp(home), **changes) as service,
            service.client() as client,
        ):

            def ask(token: str, seen: str) -> int:
                headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": seen}
                return client.get("/v1/auth/session", headers=headers).status_code

            for number in range(40):  # what the client claims stands before what the proxy saw
                ask("cws_guess", f"198.51.100.{number}, 203.0.113.9")
            return [ask(service.tokens[name], seen) for name, seen in (
                ("user", "203.0.113.10"),
                ("guest", "203.0.113.10, 203.0.113.9"),
                ("owner", "203.0.113.9, 127.0.0.1"),
            )]  # fmt: skip

    assert codes("trusted", trusted_proxies=("127.0.0.1",)) == [200, 429, 429]
    assert codes("others", trusted_proxies=("192.0.2.1",)) == [429, 429, 429]  # the control


def test_a_service_token_creates_no_token_and_cannot_be_widened(
    service: RunningService, anybody: httpx.Client
) -> None:
    service.add_user("carl", "power-user")
    service.set_password("carl")
    body = {"name": "carl", "password": PASSWORD}
    access = anybody.post("/v1/auth/token", json=body).json()["access_token"]
    me = {"Authorization": f"Bearer {access}"}
    wanted = {"name": "ci", "scopes": ["files:read"], "lives_s": 60}
    made = anybody.post("/v1/tokens", json=wanted, headers=me)
    assert made.status_code == 201, made.text
    program = {"Authorization": f"Bearer {made.json()['token']}"}
    assert anybody.post("/v1/tokens", json=wanted, headers=program).status_code == 403
    assert anybody.post("/v1/sessions", json={}, headers=program).status_code == 403
    assert anybody.get("/v1/sessions", headers=program).status_code == 200
    wide = {"name": "x", "scopes": ["users:manage"]}
    assert anybody.post("/v1/tokens", json=wide, headers=me).status_code == 400
    listed = anybody.get("/v1/tokens", headers=me).json()["tokens"]
    assert made.json()["id"] in {each["id"] for each in listed}
    assert "token" not in listed[0]
    assert anybody.delete(f"/v1/tokens/{made.json()['id']}", headers=me).status_code == 204
    assert code_with(anybody, made.json()["token"]) == 401
