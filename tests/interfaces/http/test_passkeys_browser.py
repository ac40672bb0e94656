"""Passkeys in a real Chromium with a virtual authenticator, at a real service on localhost."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import expect

from interfaces.http.browser import WatchedBrowser, watched_browser
from interfaces.http.test_sign_in_methods import CALLBACK, oidc_settings
from interfaces.served import DEADLINE_S, Served, new_place
from oidc_providers import OpenIdProvider, openid

__all__ = ["openid"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-2")]
PASSWORD = "correct horse battery"
WAIT_MS = 1000 * DEADLINE_S
"""Of what a page shows: the browser and the service share a busy machine with other tests."""
# Clicks, and returns what the page says before any answer can have come.
CLICK = """(button) => {
    button.click();
    return [document.querySelector("#banner").textContent.trim(), button.disabled];
}"""
# What a page does with the options of the service and the answer of the browser (WebAuthn level 3).
CREATE = """async (options) => {
    const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(options);
    return (await navigator.credentials.create({publicKey})).toJSON();
}"""
GET = """async (options) => {
    const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(options);
    return (await navigator.credentials.get({publicKey})).toJSON();
}"""


@pytest.fixture(scope="module")
def served(openid: OpenIdProvider) -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Browsers allow passkeys for names, not for addresses.
    url = f"http://localhost:{port}"
    config = (
        f'[server]\npublic_url = "{url}"\n[accounts]\nargon2_memory_kib = 64\nargon2_passes = 1\n'
    )
    with new_place() as place:
        ca_file = place.home / "ca.pem"  # the service is another user
        ca_file.write_bytes(Path(openid.ca_file).read_bytes())
        settings = oidc_settings(openid, place.home)
        for each in (ca_file, place.home / "client-secret"):
            place.own(each, 0o600)
        place.configure(config + settings.replace(openid.ca_file, str(ca_file)))
        openid.register(f"{url}{CALLBACK}")
        with place.serving("--port", str(port)) as found:
            yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[WatchedBrowser]:
    with watched_browser() as found:
        yield found


class Visitor:
    """A page of the service's origin with an authenticator, and requests to the API."""

    def __init__(self, browser: WatchedBrowser, url: str) -> None:
        # The provider's certificate is of an authority that the browser does not know.
        self.context = browser.chromium.new_context(base_url=url, ignore_https_errors=True)
        self.context.set_default_timeout(DEADLINE_S * 1000)
        self.page = self.context.new_page()
        browser.watch(self.page)
        answer = self.page.goto("/openapi.json")
        assert answer is not None
        assert answer.ok
        self._devtools = self.context.new_cdp_session(self.page)
        self._devtools.send("WebAuthn.enable")
        self.authenticator = self._devtools.send(
            "WebAuthn.addVirtualAuthenticator",
            {
                "options": {
                    "protocol": "ctap2",
                    "transport": "internal",
                    "hasResidentKey": True,
                    "hasUserVerification": True,
                    "isUserVerified": True,
                }
            },
        )["authenticatorId"]

    def verify_user(self, *, succeeds: bool) -> None:
        """What the finger on the reader or the PIN comes to."""
        words = {"authenticatorId": self.authenticator, "isUserVerified": succeeds}
        self._devtools.send("WebAuthn.setUserVerified", words)

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self.page.evaluate(CREATE, options)
        return made

    def get(self, options: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate(GET, options)
        return found


@pytest.fixture
def visitor(browser: WatchedBrowser, served: Served) -> Iterator[Visitor]:
    found = Visitor(browser, served.url)
    yield found
    found.context.close()
    browser.problems.clear()  # the console tells of every refusal that a test asked for


def register(client: httpx.Client, visitor: Visitor, access: str, name: str) -> httpx.Response:
    me = {"Authorization": f"Bearer {access}"}
    body = {"password": PASSWORD}
    begun = client.post("/v1/auth/passkeys/register", json=body, headers=me).json()
    credential = visitor.create(begun["options"])
    body = {"id": begun["id"], "name": name, "credential": credential}
    return client.post("/v1/auth/passkeys", json=body, headers=me)


def sign_in(client: httpx.Client, credential_of: Any, **more: Any) -> httpx.Response:
    challenge = client.post("/v1/auth/passkeys/challenge").json()
    body = {"id": challenge["id"], "credential": credential_of(challenge["options"]), **more}
    return client.post("/v1/auth/passkeys/token", json=body)


@pytest.fixture(scope="module")
def access(served: Served) -> str:
    link = served.told["sign_in_link"].rpartition("=")[2]
    body = {"link": link, "name": "ann", "password": PASSWORD}
    with httpx.Client(base_url=served.url, timeout=DEADLINE_S) as client:
        return str(client.post("/v1/auth/token", json=body).json()["access_token"])


def test_a_browser_registers_a_passkey_and_signs_in_without_a_name(
    served: Served, visitor: Visitor, access: str
) -> None:
    with httpx.Client(base_url=served.url, timeout=DEADLINE_S) as client:
        made = register(client, visitor, access, "laptop")
        assert made.status_code == 201, made.text
        found = sign_in(client, visitor.get)
        assert found.status_code == 200, found.text
        me = {"Authorization": f"Bearer {found.json()['access_token']}"}
        assert client.get("/v1/auth/session", headers=me).json()["name"] == "ann"
        # The same authenticator is not registered twice: the service tells the browser which it has.
        with pytest.raises(Exception, match="InvalidStateError"):
            register(client, visitor, access, "again")


def test_an_answer_is_good_once_for_its_own_challenge_and_with_a_verified_user(
    served: Served, visitor: Visitor, access: str
) -> None:
    kept: list[dict[str, Any]] = []

    def keep(options: dict[str, Any]) -> dict[str, Any]:
        kept.append(visitor.get(options))
        return kept[-1]

    with httpx.Client(base_url=served.url, timeout=DEADLINE_S) as client:
        assert register(client, visitor, access, "phone").status_code == 201
        assert sign_in(client, keep).status_code == 200  # the control
        assert sign_in(client, lambda _options: kept[0]).status_code == 401  # another challenge
        visitor.verify_user(succeeds=False)
        with pytest.raises(Exception, match="NotAllowedError"):
            sign_in(client, visitor.get)
        # A browser that does not insist on it: the service does.
        weak = sign_in(
            client, lambda options: visitor.get({**options, "userVerification": "discouraged"})
        )
        assert weak.status_code == 401


@pytest.mark.requirement("SRV-5")
def test_a_passkey_is_added_and_removed_on_the_page_of_people(
    visitor: Visitor, access: str
) -> None:
    assert access  # the password is set
    page = visitor.page
    page.goto("/ui/sign-in?next=/ui/people")
    page.locator("#by-password [name=name]").fill("ann")
    page.locator("#by-password [name=password]").fill(PASSWORD)
    page.keyboard.press("Enter")
    form, listed = page.locator("#add-passkey"), page.locator("#passkeys")
    for password, result in (("wrong horse battery", "not added"), (PASSWORD, "work-laptop")):
        form.locator("[name=name]").fill("work-laptop")
        form.locator("[name=password]").fill(password)
        form.get_by_role("button").click()
        where = page.locator("#banner") if result == "not added" else listed
        expect(where).to_contain_text(result, timeout=WAIT_MS)
    listed.locator("tr", has_text="work-laptop").get_by_role("button", name="Remove").click()
    expect(listed).not_to_contain_text("work-laptop", timeout=WAIT_MS)


def test_a_page_of_another_origin_gets_no_passkey_of_this_one(
    served: Served, browser: WatchedBrowser
) -> None:
    elsewhere = Visitor(browser, served.url.replace("localhost", "127.0.0.1"))
    try:
        with httpx.Client(base_url=served.url, timeout=DEADLINE_S) as client:
            challenge = client.post("/v1/auth/passkeys/challenge").json()
        with pytest.raises(Exception, match="SecurityError"):
            elsewhere.get(challenge["options"])
    finally:
        elsewhere.context.close()


def test_a_person_signs_in_on_the_page_with_a_passkey(
    served: Served, browser: WatchedBrowser, visitor: Visitor, access: str
) -> None:
    page = visitor.page
    with httpx.Client(base_url=served.url, timeout=DEADLINE_S) as client:
        assert register(client, visitor, access, "by-page").status_code == 201
    page.goto("/ui/audit?verdict=deny")
    visitor.verify_user(succeeds=False)
    button, banner = page.get_by_role("button", name="Use a passkey"), page.locator("#banner")
    button.click()
    expect(banner).to_contain_text("The passkey was not accepted", timeout=WAIT_MS)
    expect(button).to_be_enabled(timeout=WAIT_MS)
    assert "/ui/sign-in" in page.url
    visitor.verify_user(succeeds=True)
    # The refusal of the first attempt does not stand there while the second one is under way.
    assert button.evaluate(CLICK) == ["", True]
    expect(page).to_have_url(f"{served.url}/ui/audit?verdict=deny", timeout=WAIT_MS)
    expect(page.locator(".side-foot")).to_contain_text("ann", timeout=WAIT_MS)
    assert not browser.problems, browser.problems


def test_a_person_signs_in_on_the_page_at_the_provider(
    openid: OpenIdProvider, served: Served, browser: WatchedBrowser, visitor: Visitor
) -> None:
    openid.set_accounts({"bea": {}})
    page = visitor.page
    page.goto("/ui/sign-in")
    page.get_by_role("link", name="Use your organisation").click()
    page.locator("[name=login]").fill("bea")
    page.locator("[name=password]").fill("any")
    page.locator("[type=submit]").click()
    consent = page.locator("[type=submit]")
    expect(consent.or_(page.locator(".side-foot"))).to_be_visible(timeout=WAIT_MS)
    if consent.is_visible():
        consent.click()
    expect(page).to_have_url(f"{served.url}/", timeout=WAIT_MS)
    expect(page.locator(".side-foot")).to_contain_text("bea", timeout=WAIT_MS)
    # The provider's own pages ask for fonts that no test can load.
    assert not [each for each in browser.problems if "CSP" in each]
    browser.problems.clear()
