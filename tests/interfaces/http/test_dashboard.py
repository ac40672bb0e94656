"""The dashboard without scripts: sign-in, forms, ownership, errors (SRV-5)."""

from __future__ import annotations

import hashlib
import html
import re
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources

import pytest

from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.interfaces.http import lookup_routes
from cellwall.interfaces.http.dashboard.assets import assets
from cellwall.interfaces.http.dashboard.browser import own_page
from cellwall.interfaces.http.dashboard.pages import NAVIGATION
from interfaces.http.browser import PageClient, add_person, page_client
from interfaces.http.running_service import ROOT, RunningService, new_session, running_service
from interfaces.test_cli_process import until

pytestmark = pytest.mark.slow
POLICY = """
[permissions]
allow = ["Bash", "Code", "Read", "Write"]
ask = ["Bash(touch *)"]
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-pages")
    policy = home / "policy.toml"
    policy.write_text(POLICY)
    config = f'[policy]\nfiles = ["{policy}"]\n[approvals]\ntimeout_s = 60.0\n'
    config += f'[vault]\nkey = "file"\nkey_file = "{home}/vault.key"\n'
    with running_service(home, config=config) as found:
        for name, role in (("ann", "owner"), ("bob", "user"), ("cyd", "user")):
            add_person(found, name, role)
        yield found


@pytest.fixture
def ann(service: RunningService) -> Iterator[PageClient]:
    with page_client(service, "ann") as client:
        yield client


@pytest.mark.requirement("SRV-5")
@pytest.mark.parametrize("entry", NAVIGATION, ids=lambda entry: entry.name)
def test_every_page_is_complete_without_scripts(ann: PageClient, entry) -> None:
    page = ann.open(entry.path)
    assert page.status_code == 200
    assert f'aria-current="page">{entry.title}' in page.text
    assert "<h1>" in page.text
    # Nothing waits for a script: no part is loaded later, and there is more than a heading.
    assert re.search(r'hx-trigger="(?:load|revealed|intersect)', page.text) is None
    main = page.text.partition("<main")[2].partition("</main>")[0]
    body = re.sub(r"<[^>]*>|\s+", "", main.partition("</h1>")[2])
    assert len(body) > 40, body
    assert len(page.content) < 250_000


@pytest.mark.requirement("SRV-5", "SRV-3")
def test_each_page_has_a_policy_without_inline_code_and_a_nonce_of_its_own(
    ann: PageClient,
) -> None:
    policies = [ann.open("/").headers["content-security-policy"] for _ in range(2)]
    assert policies[0] != policies[1]
    for policy in policies:
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
    text = ann.open("/").text
    scripts = re.findall(r"<script[^>]*>", text)
    assert scripts
    assert all("nonce=" in each and "src=" in each for each in scripts)
    assert not re.search(r"\son[a-z]+=|\sstyle=|javascript:", text)
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)


@pytest.mark.requirement("SRV-5", "SRV-2")
def test_the_cookies_of_a_sign_in_are_strict_and_unreadable_by_scripts(
    service: RunningService,
) -> None:
    with page_client(service) as client:
        client.open("/ui/sign-in")
        form = {"name": "ann", "password": "correct horse battery", "next": "/ui/audit"}
        answer = client.http.post(
            "/ui/sign-in", data={"form_token": client.token, **form}, follow_redirects=False
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/audit")
        cookies = answer.headers.get_list("set-cookie")
        assert len(cookies) == 2
        for each in cookies:
            assert "HttpOnly" in each
            assert "SameSite=strict" in each


@pytest.mark.requirement("SRV-2")
def test_a_wrong_password_is_told_on_the_form_and_signs_nobody_in(service: RunningService) -> None:
    with page_client(service) as client:
        answer = client.sign_in("ann", "wrong horse battery")
        assert answer.status_code == 401
        assert 'role="alert"' in answer.text
        assert 'value="ann"' in answer.text
        assert "wrong horse battery" not in answer.text
        assert "/ui/sign-in" in str(client.open("/").url)


@pytest.mark.requirement("SRV-2")
def test_a_one_time_link_sets_the_password_and_signs_in(service: RunningService) -> None:
    service.add_user("dot", "user")
    link = service.call(service.accounts.sign_in.make_link(service.ids["dot"], by=ROOT))
    with page_client(service) as client:
        client.open("/ui/sign-in")
        whole = f"{service.url}/#sign-in={link}"
        page = client.send("/ui/sign-in", link=whole, password="a new long password", next="/")
        assert (page.status_code, page.url.path) == (200, "/")
        client.open("/ui/sign-in")
        again = client.send("/ui/sign-in", link=whole, password="another long password", next="/")
        assert again.status_code == 401


@pytest.mark.requirement("SRV-2")
def test_an_expired_access_token_is_renewed_and_a_form_is_not_lost(
    service: RunningService, ann: PageClient
) -> None:
    ann.open("/ui/approvals")
    token = ann.token
    before = ann.http.cookies.get("cellwall_refresh")
    ann.http.cookies.delete("cellwall_access", domain="127.0.0.1", path="/")
    # A form of the page from before: sent on, with the method, its fields and its token.
    answer = ann.http.post(
        "/ui/theme", data={"form_token": token, "theme": "dark"}, follow_redirects=True
    )
    assert answer.status_code == 200
    assert ann.http.cookies.get("cellwall_theme") == "dark"
    assert ann.http.cookies.get("cellwall_refresh") != before
    assert 'data-theme="dark"' in ann.open("/").text


@pytest.mark.requirement("SRV-2")
def test_signing_out_ends_the_refresh_token_too(service: RunningService) -> None:
    with page_client(service, "ann") as client:
        refresh = client.http.cookies.get("cellwall_refresh")
        client.open("/")
        assert "/ui/sign-in" in str(client.send("/ui/sign-out").url)
        client.http.cookies.set(
            "cellwall_refresh", str(refresh), domain="127.0.0.1", path="/v1/auth"
        )
        assert "/ui/sign-in" in str(client.open("/").url)


@pytest.mark.requirement("SRV-3")
def test_a_form_without_the_token_of_this_sign_in_changes_nothing(
    service: RunningService, ann: PageClient
) -> None:
    with service.client("ann") as client:
        session = new_session(client)
    ann.open("/")
    right = ann.token
    with page_client(service, "bob") as bob:
        bob.open("/")
        foreign = bob.token
    address = f"/ui/sessions/{session}/end"
    for token in ("", "x", foreign):
        refused = ann.http.post(address, data={"form_token": token})
        assert refused.status_code == 403
        assert "CW-CSRF" in refused.text
    assert ann.http.get(f"/v1/sessions/{session}").json()["state"] == "live"
    from_elsewhere = ann.http.post(
        address, data={"form_token": right}, headers={"Origin": "https://evil.example"}
    )
    assert from_elsewhere.status_code == 403
    # Positive control: the page's own form.
    assert ann.http.post(address, data={"form_token": right}).status_code == 303
    assert ann.http.get(f"/v1/sessions/{session}").json()["state"] == "ended"


@pytest.mark.requirement("SRV-3", "SRV-5")
def test_link_to_a_port_leads_to_another_origin_and_its_path_takes_no_cookie(
    service: RunningService, ann: PageClient
) -> None:
    with service.client("ann") as client:
        session = new_session(client)
    page = ann.open(f"/ui/sessions/{session}?preview=8000").text
    link = f"http://8000-{session}.localhost:{service.port}/?cellwall_token=cwp_"
    found = re.search(rf'<a class="button" href="{re.escape(link)}[^"]+"[^>]*>', page)
    assert found is not None
    assert 'rel="noopener noreferrer"' in found[0]
    refused = ann.http.get(f"/v1/sessions/{session}/ports/8000/")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "CW-CSRF")
    with page_client(service, "bob") as bob:
        assert "cwp_" not in bob.open(f"/ui/sessions/{session}?preview=8000").text


@pytest.mark.requirement("RBAC-3")
def test_pages_of_foreign_things_answer_like_pages_of_unknown_ones(
    service: RunningService,
) -> None:
    with service.client("bob") as client:
        session = new_session(client)
        records = client.get("/v1/audit").json()["records"]
    with page_client(service, "cyd") as cyd, page_client(service, "bob") as bob:
        for path, unknown in (
            (f"/ui/sessions/{session}", "/ui/sessions/sbx_" + "0" * 26),
            (f"/ui/audit/{records[0]['id']}", "/ui/audit/evt_" + "0" * 26),
        ):
            foreign, absent, own = cyd.open(path), cyd.open(unknown), bob.open(path)
            assert foreign.status_code == absent.status_code == 404
            assert own.status_code == 200
            assert _shown_error(foreign.text) == _shown_error(absent.text)
    # Who reads the record sees the timeline of every session, and neither files nor a terminal.
    with page_client(service, "ann") as ann:
        page = ann.open(f"/ui/sessions/{session}").text
        assert "another user" in page
        assert "terminal-open" not in page
        assert "List the files" not in page


def _shown_error(text: str) -> str:
    return re.sub(r'nonce="[^"]*"|nonce-[\w-]+|value="[^"]*"', "", text[text.index("<main") :])


@pytest.mark.requirement("SRV-3")
@pytest.mark.parametrize(
    "text",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/ui/../v1/x\r\n", "/ui//evil",
     "/ui/../v1/auth/oidc/start", "/ui/..", "/ui/a/../../v1/stop",
     "javascript:alert(1)", "/v1/audit", ""],
)  # fmt: skip
def test_only_own_pages_follow_a_sign_in(text: str) -> None:
    assert own_page(text) == "/"
    for page in ("/ui/audit?text=a%20b&verdict=deny", "/ui/audit?text=..", "/ui/audit/evt_1"):
        assert own_page(page) == page


@pytest.mark.requirement("SRV-5")
def test_a_link_from_another_site_opens_its_page_for_who_is_signed_in(ann: PageClient) -> None:
    cookies = dict(ann.http.cookies)
    ann.http.cookies.clear()  # as a browser does for SameSite=Strict
    page = ann.http.get("/ui/audit?verdict=deny", headers={"Sec-Fetch-Site": "cross-site"})
    assert page.status_code == 200
    assert 'http-equiv="refresh" content="0; url=/ui/audit?verdict=deny"' in page.text
    assert cookies


@pytest.mark.requirement("SRV-5", "ERR-1")
def test_an_unknown_page_is_a_page_with_a_hint(ann: PageClient) -> None:
    page = ann.open("/ui/nowhere")
    assert page.status_code == 404
    assert "CW-NOT-FOUND" in page.text
    assert ann.open("/ui/audit?before=x").status_code == 400
    assert ann.open("/ui/audit?since=yesterday").status_code == 400


@pytest.mark.requirement("SRV-5")
def test_files_of_others_are_those_of_their_packages_and_are_licensed() -> None:
    folder = resources.files("cellwall.interfaces.http.dashboard").joinpath("static")
    listed = tomllib.loads(folder.joinpath("VENDORED.toml").read_text())
    for name, known in listed.items():
        assert hashlib.sha256(assets()[name].content).hexdigest() == known["sha256"]
        assert folder.joinpath(known["licence_file"]).read_text()
    own = {"cellwall.css", "cellwall.js", "mark.svg", "now.js", "people.js"}
    own |= {"screen.js", "terminal.js"}
    assert set(assets()) == own | set(listed)


@pytest.mark.requirement("SRV-5")
def test_assets_are_kept_by_browsers_and_named_by_their_content(ann: PageClient) -> None:
    address = assets()["cellwall.js"].address
    found = ann.http.get(address)
    assert (found.status_code, "immutable" in found.headers["cache-control"]) == (200, True)
    assert ann.http.get(address.replace("/assets/", "/assets/0")).status_code == 404


@pytest.mark.requirement("SRV-5")
def test_the_record_is_searched_by_text_verdict_and_person(
    service: RunningService, ann: PageClient
) -> None:
    with service.client("bob") as bob:
        session = new_session(bob)
        bob.post(f"/v1/sessions/{session}/commands", json={"command": "echo needle-17"})
    page = ann.open("/ui/audit?text=needle-17&principal=bob&verdict=allow&since=1h").text
    assert page.count("data-row") == 1
    assert "echo needle-17" in page
    assert "No record matches" in ann.open("/ui/audit?text=needle-18").text
    with page_client(service, "cyd") as cyd:
        assert "needle-17" not in cyd.open("/ui/audit?text=needle").text.partition("<section")[2]
    ann.send("/ui/audit/proof")
    until(lambda: "complete and unaltered" in ann.open("/ui/audit/proof").text)
    assert "Last signed head" in ann.open("/ui/audit").text


def test_a_stream_ends_with_its_sign_in(service: RunningService) -> None:
    with (
        page_client(service, "cyd") as client,
        client.http.stream("GET", "/ui/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith("retry")
        while not next(lines).startswith("data:"):
            pass
        service.call(service.accounts.directory.revoke_user(service.ids["cyd"], by=ROOT))
        deadline = time.monotonic() + 30
        for _ in lines:
            assert time.monotonic() < deadline


@pytest.mark.requirement("POL-8")
def test_the_list_of_questions_allows_no_call_that_it_does_not_show_whole(
    service: RunningService, ann: PageClient
) -> None:
    """Attack: harm in the middle of a long command, where the list leaves text out."""
    command = f"touch {'a' * 150} && touch harm && touch {'b' * 150}"
    with service.client("bob") as bob, ThreadPoolExecutor(1) as threads:
        address = f"/v1/sessions/{new_session(bob)}/commands"
        for whole in (False, True):
            asked = command if not whole else "touch short"
            running = threads.submit(bob.post, address, json={"command": asked})
            found = _question(service)
            page = ann.open("/ui/approvals").text
            assert (f"once {found['id']}" in page) is whole
            assert f"deny {found['id']}" in page
            one = f"once {found['id']} {found['shown_sha256']}"
            answer = ann.send("/ui/approvals", one=one)
            assert answer.status_code == (200 if whole else 412)
            if not whole:
                assert "CW-PRECONDITION" in answer.text
                chosen = {"all": "once", "question": one.partition(" ")[2]}
                assert ann.send("/ui/approvals", **chosen).status_code == 412
                assert not running.done()
                page = ann.open(f"/ui/approvals/{found['id']}").text
                assert "touch harm" in page
                ann.send(f"/ui/approvals/{found['id']}", answer="once", shown=found["shown_sha256"])
            assert running.result(60).json()["exit_code"] == 0


def _question(service: RunningService) -> dict[str, str]:
    with service.client("ann") as client:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := client.get("/v1/approvals").json()["approvals"]:
                return dict(found[0])
    raise AssertionError("nobody asks")


@pytest.mark.requirement("RBAC-3")
def test_the_next_holder_of_a_name_sees_nothing_live_of_the_former_one(
    service: RunningService, ann: PageClient
) -> None:
    ann.open("/")  # from here on the log is followed
    add_person(service, "eve", "user")
    with service.client("eve") as client:
        session = new_session(client)
        client.post(f"/v1/sessions/{session}/commands", json={"command": "echo of-the-former"})
        client.delete(f"/v1/sessions/{session}")
    deadline = time.monotonic() + 60
    while "of-the-former" not in ann.open("/").text:
        assert time.monotonic() < deadline
    with page_client(service, "eve") as former:
        assert "of-the-former" in former.open("/").text  # the control
    service.call(service.accounts.directory.remove_user(service.ids["eve"], by=ROOT))
    add_person(service, "eve", "user")
    with page_client(service, "eve") as following:
        page = following.open("/").text
        assert "your own actions" in page
        assert "of-the-former" not in page
        assert session[:12] not in page


@pytest.mark.requirement("SRV-5", "POL-5")
def test_a_call_is_explained_and_a_rule_previewed_without_running_anything(
    service: RunningService, ann: PageClient
) -> None:
    with service.client("bob") as bob:
        session = new_session(bob)
        bob.post(f"/v1/sessions/{session}/commands", json={"command": "sudo id"})
    page = ann.open("/ui/policy?tool=Bash&call=echo+a+%7C+sudo+id").text
    assert "v-deny" in page
    assert "rights of another user" in page
    assert "policy.toml:3" in page  # the rules with their source
    preview = ann.open("/ui/policy?rule=Bash(touch+*)").text
    assert "would have allowed" in preview
    assert "not a rule" in ann.open("/ui/policy?rule=Bash(").text
    with page_client(service, "cyd") as cyd:
        assert "policy.toml:3" not in cyd.open("/ui/policy?rule=Bash(touch+*)").text


@pytest.mark.requirement("SRV-5", "RBAC-1")
def test_only_who_manages_users_can_change_them_by_forms(
    service: RunningService, ann: PageClient
) -> None:
    ann.open("/ui/people")
    made = ann.send("/ui/people", name="fay", role="user")
    link = re.search(r"sign-in=(cwl_[\w-]+)", made.text)
    assert link is not None
    with page_client(service) as fay:
        fay.open("/ui/sign-in")
        page = fay.send("/ui/sign-in", link=link[1], password="a long password here", next="/")
        assert page.url.path == "/"
        fay.page = page
        refused = fay.send("/ui/people", name="gus", role="owner")
        assert (refused.status_code, "CW-ROLE" in refused.text) == (403, True)
        fay.open("/ui/people")
        for days in ("²", "0030" + "9" * 400, "366", "1\n"):
            assert fay.send("/ui/tokens", name="ci", days=days).status_code == 400
        token = fay.send("/ui/tokens", name="ci", days="7")
        secret = re.search(r"<code[^>]*>(cws_[\w-]+|[\w.-]{40,})</code>", token.text)
        assert secret is not None
        assert secret[1] not in fay.open("/ui/people").text  # shown once


@pytest.mark.requirement("SRV-5", "SEC-2")
def test_a_secret_goes_in_and_is_on_no_page(service: RunningService, ann: PageClient) -> None:
    assert "no vault yet" in ann.open("/ui/secrets").text
    vault = VaultAdmin(str(service.home), service.app.settings, audit=service.app.audit)
    vault.init(choice=VaultKeyChoice(), principal=ROOT)
    assert "You have no secrets" in ann.open("/ui/secrets").text
    stored = ann.send("/ui/secrets", name="KEY", value="sk-very-secret-value", host="a.example")
    for text in (stored.text, ann.open("/ui/secrets").text, ann.open("/ui/audit").text):
        assert "sk-very-secret-value" not in text
    assert "a.example" in stored.text, stored.text[stored.text.index("<main") :]
    ann.page = stored
    assert "You have no secrets" in ann.send("/ui/secrets/KEY/remove").text


@pytest.mark.requirement("SRV-5", "OBS-3")
def test_the_stop_is_a_form_for_who_may_stop(service: RunningService, ann: PageClient) -> None:
    with page_client(service, "bob") as bob:
        assert "Stop everything" not in bob.open("/").text
        assert bob.send("/ui/stop", deed="stop", reason="x").status_code == 403
    with service.client("bob") as client:
        session = new_session(client)
    assert "Stop everything" in ann.open("/").text
    stopped = ann.send("/ui/stop", deed="stop", reason="a drill")
    assert "a drill" in stopped.text
    with service.client("bob") as client:
        refused = client.post("/v1/sessions", json={})
        assert refused.status_code in {403, 503}
        assert session
    ann.page = stopped
    assert "Stop everything" in ann.send("/ui/stop", deed="lift").text


@pytest.mark.requirement("SRV-5")
def test_a_long_search_ends_in_time_and_goes_on_where_it_ended(
    service: RunningService, ann: PageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service.client("bob") as bob:
        session = new_session(bob)
        bob.post(f"/v1/sessions/{session}/commands", json={"command": "echo needle-42"})
        for number in range(6):
            bob.post(f"/v1/sessions/{session}/commands", json={"command": f"echo {number}"})
    monkeypatch.setattr(lookup_routes, "_MAX_SEEN", 4)
    page, pages = ann.open("/ui/audit?text=needle-42").text, 1
    assert "Nothing found yet" in page
    assert "The search goes on with older records" in page
    while "echo needle-42" not in page:
        following = re.search(r'class="button" href="(/ui/audit[^"]+)">Search further', page)
        assert following is not None, page
        page, pages = ann.open(html.unescape(following[1])).text, pages + 1
    assert pages > 2
