"""Cookies of a service behind TLS: no sibling domain and no page without TLS can replace them."""

from __future__ import annotations

from collections.abc import Iterator
from http.cookies import SimpleCookie

import httpx2 as httpx
import pytest

from interfaces.http.browser import add_person
from interfaces.http.running_service import PASSWORD, RunningService, running_service

pytestmark = pytest.mark.slow
_NAMES = {"__Host-cellwall_access", "__Host-cellwall_refresh"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-cookies")
    with running_service(home, public_url="https://localhost") as found:
        add_person(found, "ann", "user")
        yield found


def sent_cookies(answer: httpx.Response) -> SimpleCookie:
    found = SimpleCookie()
    for line in answer.headers.get_list("set-cookie"):
        found.load(line)
    return found


def sign_in(service: RunningService) -> SimpleCookie:
    body = {"name": "ann", "password": PASSWORD, "cookie": True}
    with service.client() as client:
        answer = client.post("/v1/auth/token", json=body)
        assert answer.status_code == 200, answer.text
        return sent_cookies(answer)


@pytest.mark.requirement("SRV-2", "SRV-3")
def test_a_cookie_that_another_host_could_set_signs_nobody_in(service: RunningService) -> None:
    cookies = sign_in(service)
    assert set(cookies) == _NAMES
    for each in cookies.values():  # what a browser demands of the prefix
        assert each["secure"] is True
        assert each["httponly"] is True
        assert (each["path"], each["domain"], each["samesite"]) == ("/", "", "strict")
    access = cookies["__Host-cellwall_access"].value
    for name, status in (("__Host-cellwall_access", 200), ("cellwall_access", 401)):
        with service.client(headers={"Cookie": f"{name}={access}"}) as client:
            assert client.get("/v1/auth/session").status_code == status
    refresh = cookies["__Host-cellwall_refresh"].value
    for name, status in (("cellwall_refresh", 401), ("__Host-cellwall_refresh", 200)):
        headers = {"Cookie": f"{name}={refresh}", "X-CSRF-Token": "any"}
        with service.client(headers=headers) as client:
            assert client.post("/v1/auth/refresh").status_code == status


@pytest.mark.requirement("SRV-2")
def test_signing_out_removes_the_cookies_in_a_form_that_a_browser_obeys(
    service: RunningService,
) -> None:
    cookies = sign_in(service)
    access = cookies["__Host-cellwall_access"].value
    with service.client(headers={"Cookie": f"__Host-cellwall_access={access}"}) as client:
        token = client.get("/v1/auth/session").json()["csrf_token"]
        gone = client.post("/v1/auth/revoke", headers={"X-CSRF-Token": token})
    assert gone.status_code == 204, gone.text
    removed = sent_cookies(gone)
    assert set(removed) == _NAMES
    for each in removed.values():
        assert (each.value, each["max-age"], each["path"]) == ("", "0", "/")
        assert each["secure"] is True  # else a browser ignores the line, and the cookie stays
