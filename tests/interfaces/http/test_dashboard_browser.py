"""The dashboard in Debian's Chromium: every page, both themes, a phone, hostile texts (SRV-5)."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from playwright.sync_api import Page, expect

from cellwall.admin.alerts import AlertAdmin
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Principal
from cellwall.interfaces.http.dashboard.assets import assets
from interfaces.http.browser import (
    WatchedBrowser,
    accessibility_problems,
    add_person,
    need_axe,
    page_client,
    watched_browser,
)
from interfaces.http.running_service import (
    DEADLINE_S,
    RunningService,
    new_session,
    running_service,
)
from interfaces.http.said_tools import say
from interfaces.test_cli_process import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
POLICY = """
[permissions]
allow = ["Bash", "Code", "Read", "Write", "Terminal"]
ask = ["Bash(touch *)"]
"""
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b]8;;https://evil.example\x07 \u202egnp.exe\u2066 \u200bhidden",
    "'\"><svg/onload=alert(2)>{{7*7}}${7*7}",
)
HOSTILE_COMMAND = shlex.join(["touch", HOSTILE[0]])
WAIT_MS = 20_000
PAGES = (
    "/",
    "/ui/approvals",
    "/ui/approvals?state=ended",
    "/ui/sessions",
    "/ui/audit",
    "/ui/policy?call=git+log+%7C+sh&rule=Bash(git+*)",
    "/ui/egress",
    "/ui/egress/host?name=first.example",
    "/ui/audit/proof",
    "/ui/secrets",
    "/ui/packages",
    "/ui/servers",
    "/ui/health",
    "/ui/fleet",
    "/ui/people",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-browser")
    with running_service(home, config=config_in(home)) as found:
        for name, role in (("ann", "owner"), ("bob", "administrator"), ("eve", "user")):
            add_person(found, name, role)
        yield found


def config_in(home: Path) -> str:
    policy = home / "policy.toml"
    policy.write_text(POLICY)
    return f'[policy]\nfiles = ["{policy}"]\n[approvals]\ntimeout_s = 600.0\n'


@pytest.fixture(scope="module")
def browser() -> Iterator[WatchedBrowser]:
    with watched_browser() as found:
        yield found


@pytest.fixture(scope="module")
def eve(service: RunningService) -> Iterator[httpx.Client]:
    """Whose agent asks for things."""
    with service.client("eve") as client:
        yield client


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


def ask(
    service: RunningService, threads: ThreadPoolExecutor, session: str, command: str
) -> tuple[str, Future[httpx.Response]]:
    """Run a command about which the policy asks; returns the question."""

    def run() -> httpx.Response:
        with service.client("eve") as client:
            address = f"/v1/sessions/{session}/commands"
            # Until the answer, which comes at the end of a test of many pages.
            return client.post(address, json={"command": command}, timeout=600)

    known = {each.id for each in board(service)}
    waiting = threads.submit(run)
    found: list[str] = []

    def has_come() -> bool:
        assert not waiting.done(), waiting.result().text
        found[:] = [each.id for each in board(service) if each.id not in known]
        return bool(found)

    until(has_come)
    return found[0], waiting


def board(service: RunningService) -> list[Any]:
    return list(service.api.state.service.board.waiting())


@pytest.fixture(scope="module")
def session(service: RunningService, eve: httpx.Client) -> str:
    """With what a hostile agent would leave: in commands, output, file names and errors."""
    made = new_session(eve)
    for text in HOSTILE:
        eve.post(f"/v1/sessions/{made}/commands", json={"command": ["echo", text]})
        eve.post(f"/v1/sessions/{made}/code", json={"code": f"raise ValueError({text!r})"})
    flood = "print('<b>' + 'x' * 1_000_000)"
    eve.post(f"/v1/sessions/{made}/code", json={"code": flood})
    eve.put(f"/v1/sessions/{made}/files/%3Cimg%20src=x%20onerror=alert(3)%3E", content=b"1")
    for text in HOSTILE:
        body: dict[str, Any] = {"verdict": "deny", "command": [text], "reason": text, "rule": text}
        body["host"], body["source"], body["message"] = text, text, text
        event = Event(EventKind.DENIAL, text[:60], text[:60], "http", body, made)
        service.app.audit.write(event)
        refused = {**body, "event": "refused", "code": "CW-NOT-ALLOWED", "port": 443}
        service.app.audit.write(Event(EventKind.CONNECTION, "", "eve", "http", refused, made))
        package = {**body, "event": "package-refused", "name": text, "reasons": [text], "risk": 5}
        service.app.audit.write(Event(EventKind.CONNECTION, "", "eve", "http", package, made))
    say(service, *((f"tool{number}", text) for number, text in enumerate(HOSTILE)), ("plain", "x"))
    return made


def pages(service: RunningService, session: str, question: str) -> list[str]:
    with service.client("ann") as ann:
        record = ann.get("/v1/audit?verdict=deny").json()["records"][0]["id"]
    found = [*PAGES, f"/ui/approvals/{question}", f"/ui/sessions/{session}"]
    found += ["/ui/servers/notes", f"/ui/people/{service.ids['eve']}"]
    return [*found, f"/ui/audit/{record}", "/ui/nowhere"]


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", **PHONE},
}
EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
"""One page in so many is looked at in the dark and on a phone; the pages share their styles."""


def looks_of(number: int, every: int) -> tuple[str, ...]:
    return tuple(LOOKS) if number % every == 0 else ("light",)


@pytest.mark.requirement("SRV-5")
@EVERY
def test_every_page_is_accessible_and_executes_no_hostile_text(
    service: RunningService,
    browser: WatchedBrowser,
    session: str,
    threads: ThreadPoolExecutor,
    every: int,
) -> None:
    need_axe()  # before the question: a skipped test would wait for its answer
    question, waiting = ask(service, threads, session, HOSTILE_COMMAND)
    failures: list[str] = []
    with service.client("ann") as ann, browser.at(service, "ann", **LOOKS["light"]) as page:
        page.on("dialog", lambda dialog: failures.append(f"a script ran: {dialog.message}"))
        for number, path in enumerate(pages(service, session, question)):
            response = page.goto(path)
            assert response is not None
            if path == "/ui/nowhere":  # the console tells of the status
                browser.problems.clear()
            assert response.status == (404 if path == "/ui/nowhere" else 200), path
            assert int(page.evaluate("document.documentElement.outerHTML.length")) < 250_000
            assert "owned" not in page.title()
            assert "\u202e" not in page.content()
            assert "\x1b" not in page.content()
            for look in looks_of(number, every):
                failures += [f"{path}, {look}: {each}" for each in problems_in(page, look)]
        ann.post(f"/v1/approvals/{question}", json={"answer": "deny"})
    waiting.result(DEADLINE_S)
    assert not failures, "\n".join(failures)


SHORTEN = """() => { for (const list of document.querySelectorAll("ul.feed, tbody"))
  [...list.children].slice(12).forEach((row) => row.remove()) }"""


def problems_in(page: Page, look: str) -> list[str]:
    """In the dark only colours can differ from the light, and on a phone all but colours."""
    page.set_viewport_size(LOOKS[look]["viewport"])
    page.emulate_media(color_scheme=LOOKS[look]["color_scheme"])
    if look != "light":  # seen whole there; rows of a list are alike
        page.evaluate(SHORTEN)
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    found = [f"scrolls sideways by {overflow}"] if overflow > 0 else []
    match look:
        case "dark":
            return [*found, *accessibility_problems(page, "color-contrast")]
        case "phone":
            return [*found, *accessibility_problems(page, without=("color-contrast",))]
    return [*found, *accessibility_problems(page)]


@pytest.mark.requirement("SRV-5", "POL-8")
def test_a_question_appears_by_itself_and_is_answered_by_keys(
    service: RunningService, browser: WatchedBrowser, session: str, threads: ThreadPoolExecutor
) -> None:
    with browser.at(service, "ann") as page:
        page.goto("/ui/approvals")
        expect(page.locator("#questions")).to_contain_text("Nobody waits")
        _, waiting = ask(service, threads, session, "touch by-keys && echo done")
        row = page.locator("[data-row]")
        expect(row).to_contain_text("touch by-keys", timeout=WAIT_MS)
        expect(page.locator("#waiting")).to_have_text("1")
        page.keyboard.press("j")
        expect(row).to_have_class("is-selected")
        page.keyboard.press("a")
        expect(page.locator("#questions")).to_contain_text("Nobody waits")
        assert waiting.result(DEADLINE_S).json()["stdout"] == "done\n"
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        expect(page.locator("#search")).to_be_focused()
        page.keyboard.type("by-keys")
        page.keyboard.press("Enter")
        expect(page.locator("#records")).to_contain_text("touch by-keys")


@pytest.mark.requirement("SRV-5", "POL-2")
def test_the_command_is_drawn_as_its_parts_with_the_verdict_of_each(
    service: RunningService, browser: WatchedBrowser, session: str, threads: ThreadPoolExecutor
) -> None:
    command = "echo one | tee copy.txt && (touch two)"
    question, waiting = ask(service, threads, session, command)
    with browser.at(service, "ann") as page:
        page.goto(f"/ui/approvals/{question}")
        parts = page.locator(".tree .part")
        assert [" ".join(each.split()) for each in parts.all_inner_texts()] == [
            "allow echo one", "allow tee copy.txt", "ask touch two",
        ]  # fmt: skip
        expect(page.locator("#main")).to_contain_text("/workspace/copy.txt")
        expect(page.locator("#main")).to_contain_text("Bash(touch two)")
        page.get_by_role("button", name="Deny").click()
        expect(page).to_have_url(f"{service.url}/ui/approvals")
    assert waiting.result(DEADLINE_S).json()["status"] == "denied"


@pytest.mark.requirement("SRV-5", "POL-8")
def test_of_two_people_who_answer_at_once_one_is_told_that_the_other_was_first(
    service: RunningService, browser: WatchedBrowser, session: str, threads: ThreadPoolExecutor
) -> None:
    question, waiting = ask(service, threads, session, "touch twice")
    with browser.at(service, "ann") as ann, browser.at(service, "bob") as bob:
        for page in (ann, bob):
            page.goto(f"/ui/approvals/{question}")
        ann.get_by_role("button", name="Allow once").click(no_wait_after=True)
        bob.get_by_role("button", name="Deny").click(no_wait_after=True)
        alerts = [_alert_or_list(page) for page in (ann, bob)]
        browser.problems.clear()  # the console tells of the status of the error page
    assert sorted(alerts) == ["list", "told"]
    status = waiting.result(DEADLINE_S).json()["status"]
    assert status == ("ok" if alerts[0] == "list" else "denied")


def _alert_or_list(page: Page) -> str:
    told, listed = page.get_by_role("alert"), page.locator("#questions")
    expect(told.or_(listed)).to_be_visible(timeout=WAIT_MS)
    return "told" if told.is_visible() else "list"


@pytest.mark.requirement("SRV-5")
def test_decisions_appear_as_they_happen_with_their_reason(
    service: RunningService, browser: WatchedBrowser, eve: httpx.Client, session: str
) -> None:
    with browser.at(service, "ann") as page:
        page.goto("/")
        expect(page.locator("#rates canvas")).to_be_visible()
        eve.post(f"/v1/sessions/{session}/commands", json={"command": "rm -rf /"})
        row = page.locator("#feed li", has_text="rm -rf /").first
        expect(row).to_contain_text("deny", timeout=WAIT_MS)
        expect(row).to_contain_text("deletes the whole file system")
        expect(page.locator("#sandboxes")).to_contain_text("eve")


@pytest.mark.requirement("SRV-5")
def test_a_flood_of_records_is_sampled_and_the_page_stays_responsive(
    service: RunningService, browser: WatchedBrowser
) -> None:
    with browser.at(service, "ann") as page:
        page.goto("/")
        stop = threading.Event()

        def flood() -> None:
            number = 0
            while not stop.is_set() and number < 3000:
                number += 1
                body: dict[str, Any] = {"verdict": "deny", "command": [f"flood {number}"]}
                service.app.audit.write(Event(EventKind.DENIAL, "", "eve", "http", body))

        with ThreadPoolExecutor(8) as writers:
            for _ in range(8):
                writers.submit(flood)
            try:
                expect(page.locator("#sampled")).to_contain_text(
                    "more in this second", timeout=WAIT_MS
                )
                page.keyboard.press("?")
                expect(page.locator("#keys")).to_be_visible()
                assert page.locator("#feed li").count() <= 60
            finally:
                stop.set()


@pytest.mark.requirement("SRV-5")
def test_panels_of_now_follow_what_happens(
    service: RunningService, browser: WatchedBrowser, eve: httpx.Client
) -> None:
    with browser.at(service, "ann") as page:
        page.goto("/")
        made = new_session(eve, timeout=1)
        row = page.locator("#sandboxes tr", has_text=made[:12])
        expect(row).to_be_visible(timeout=WAIT_MS)
        row.get_by_role("link").focus()
        expect(row).to_have_class("is-selected")
        eve.post(f"/v1/sessions/{made}/code", json={"code": "while True: pass"})
        expect(page.locator("#limits")).to_contain_text(re.compile("cpu|wall"), timeout=WAIT_MS)
        expect(page.locator("#histogram")).to_contain_text("≤")
        # Drawn again since, and the link has kept the focus.
        expect(row.get_by_role("link")).to_be_focused()
        eve.delete(f"/v1/sessions/{made}")
        expect(row).to_have_count(0, timeout=WAIT_MS)


@pytest.mark.requirement("SRV-5")
def test_a_terminal_of_the_session_takes_keys_and_fills_the_screen(
    service: RunningService, browser: WatchedBrowser, eve: httpx.Client
) -> None:
    made = new_session(eve)
    with browser.at(service, "eve") as page:
        page.goto(f"/ui/sessions/{made}")
        page.locator("#terminal-open").click()
        screen = page.locator("#terminal")
        expect(screen).to_be_focused(timeout=WAIT_MS)
        page.keyboard.type("echo $((6*7))")
        page.keyboard.press("Enter")
        expect(screen).to_contain_text(re.compile(r"^42$", re.MULTILINE), timeout=WAIT_MS)
        page.keyboard.press("Control+Alt+Enter")
        box = page.locator("#terminal-panel").bounding_box()
        size = page.viewport_size
        assert box is not None
        assert size is not None
        assert (box["x"], box["y"], box["width"]) == (0, 0, size["width"])
        # Sequences that move the cursor: the first line is written over by the second.
        page.keyboard.type(r"clear; printf 'wrong\033[1;1Hright\033[31m red\n'; stty size")
        page.keyboard.press("Enter")
        expect(screen).to_contain_text(re.compile(r"^right red", re.MULTILINE), timeout=WAIT_MS)
        expect(screen.locator(".f1").first).to_contain_text("red")
        expect(screen).not_to_contain_text(re.compile(r"^wrong", re.MULTILINE))
        # The program knows the size of the full screen.
        rows, columns = (int(each) for each in re.findall(r"^(\d+) (\d+)$", screen.inner_text(), re.MULTILINE)[-1])  # fmt: skip
        assert columns > 100
        assert rows > 20
        page.keyboard.press("Control+Alt+Enter")
        expect(page.locator("#terminal-full")).to_be_focused()  # no keyboard trap
        page.locator("#terminal-line").fill("exit 3")
        page.keyboard.press("Enter")
        expect(page.locator("#terminal-state")).to_contain_text("exit code 3", timeout=WAIT_MS)


@pytest.mark.requirement("SRV-5")
def test_a_hostile_program_stays_inside_the_screen_of_its_terminal(
    service: RunningService, browser: WatchedBrowser
) -> None:
    """The screen of the page without a service: what a hostile program can print."""
    with browser.at(service, "eve") as page:
        page.goto("/")
        page.evaluate(assets()["screen.js"].content.decode())
        drawn = page.evaluate(
            """(texts) => { const place = document.createElement("pre"), screen = new TerminalScreen(24, 80);
            for (const text of texts) screen.write(text);
            screen.draw(place);
            return [place.textContent, place.innerHTML, place.querySelectorAll(":not(span)").length]; }""",
            [
                "<script>document.title='owned'</script><img src=x onerror=alert(1)>\r\n",
                "\u202egnp\u2066\u200b\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
                "\x1b[999999;999999Hx\x1b[99999999999999999999A\x1b[5;2r\x1b[-1;-5H",
                "\x1b[38;2;999;0;0m\x1b[38;5mred\x1b[48", ";5;200mafter\x1b[0m",
                "\x1b[?1049h\x1b[2J\x1b[9999S\x1b[9999L\x1b[9999P\x1b[9999@\x1b[?1049l",
                "x" * 1_000_000, "\r\n" * 5000, "\x1b[" + "1;" * 500, "last\r\n", "\x1b",
            ],
        )  # fmt: skip
        text, html, others = drawn
        assert "owned" not in page.title()
        assert others == 0
        assert "<script" not in html
        assert not {"\u202e", "\u2066", "\u200b", "\x1b"} & set(text)
        assert "last" in text
        assert len(text) < 2100 * 81


@pytest.mark.requirement("SRV-5", "OBS-3")
def test_health_shows_the_host_alerts_and_what_code_can_do(
    service: RunningService, browser: WatchedBrowser
) -> None:
    fire_alert(service)
    with browser.at(service, "ann") as page:
        page.goto("/ui/health")
        expect(page.locator("#blast-radius")).to_contain_text("no network interface")
        picture = page.get_by_role("img", name="The blast radius. read: ")
        expect(picture).to_have_accessible_name(re.compile("reach: 5 can, 6 cannot"))
        expect(page.locator("#blast-radius .verb .cannot").first).to_have_text("cannot")
        dots = page.locator("#blast-radius circle.dot")
        assert dots.count() == page.locator("#blast-radius .verb dt").count()
        alert = page.locator("#alerts li", has_text="a request with a secret").first
        expect(alert).to_contain_text("firing")
        alert.locator("summary").click()
        alert.locator("[name=reason]").fill("<b>known</b> \u202ebad")
        alert.get_by_role("button", name="Silence").click()
        expect(page.locator("#alerts li").first).to_contain_text("silenced")
        expect(page.locator("#alerts table")).to_contain_text("<b>known</b>")
        page.get_by_role("button", name="End").click()
        expect(page.locator("#alerts li").first).to_contain_text("firing")
        page.get_by_role("button", name="Check the host").click()
        expect(page.locator("#host li", has_text="trial run")).to_contain_text("ok")
        expect(page.locator("#host")).to_contain_text("backup")
        assert str(service.home) not in page.content()
    with page_client(service, "eve") as eve:
        text = eve.open("/ui/health").text
        assert "blast-radius" not in text
        for path in ("/ui/health/checks", "/ui/health/silences"):
            fields = {"rule": "*", "hours": "1", "reason": "x"}
            assert eve.send(path, **fields).status_code == 403


def fire_alert(service: RunningService) -> None:
    """One record that fires a built-in rule at once, and the rules evaluated."""
    body: dict[str, Any] = {"event": "leak-refused", "host": HOSTILE[0]}
    body["status"] = body["event"]
    service.app.audit.write(Event(EventKind.CONNECTION, "", "eve", "http", body))
    admin = AlertAdmin(str(service.home), service.app.settings)
    assert admin.check(by=Principal("root", "cli"), ask=None).firing


@pytest.mark.requirement("SRV-5", "SRV-3")
def test_a_page_that_breaks_its_own_policy_fails_its_test(
    service: RunningService, browser: WatchedBrowser
) -> None:
    """The control of every test here: each of them would fail by such a page."""
    broken = (
        "document.body.append(Object.assign(new Image(), {src: 'https://evil.example/x.png'}))",
        "document.body.setAttribute('style', 'color: red')",
        "document.body.append(Object.assign(document.createElement('script'), {text: 'a()'}))",
    )
    for script in broken:
        with (
            pytest.raises(AssertionError, match="CSP"),
            browser.at(service, "ann") as page,
        ):
            page.goto("/ui/sessions")
            page.evaluate(script)
            # An answer of the page is handled behind the console's messages before it.
            until(lambda: page.evaluate("1") and browser.problems)
    with browser.at(service, "ann") as page:  # a page as it is
        page.goto("/ui/sessions")


@pytest.mark.requirement("SRV-5", "SRV-2")
def test_a_person_signs_in_by_the_form_and_by_the_printed_link(
    service: RunningService, browser: WatchedBrowser
) -> None:
    with browser.at(service, None) as page:
        page.goto("/ui/audit?verdict=deny")
        page.locator("#by-password [name=name]").fill("ann")
        page.locator("#by-password [name=password]").fill("correct horse battery")
        page.keyboard.press("Enter")
        expect(page).to_have_url(f"{service.url}/ui/audit?verdict=deny")
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(f"{service.url}/ui/sign-in")
        page.goto("/#sign-in=cwl_secret")
        expect(page.locator("#link-code")).to_have_value("cwl_secret")
        assert "cwl_secret" not in page.url


@pytest.mark.requirement("SRV-5")
def test_a_page_outlives_a_restart_of_the_service(browser: WatchedBrowser, tmp_path: Path) -> None:
    config = config_in(tmp_path)
    with running_service(tmp_path, config=config) as first:
        add_person(first, "ann", "owner")
        context = browser.chromium.new_context(base_url=first.url)
        page = context.new_page()
        page.goto("/ui/sign-in")
        page.locator("#by-password [name=name]").fill("ann")
        page.locator("#by-password [name=password]").fill("correct horse battery")
        page.keyboard.press("Enter")
        expect(page.locator("#tile-sandboxes")).to_have_text("0")
        port = first.port
    expect(page.locator("#banner")).to_contain_text("connection", timeout=WAIT_MS)
    with running_service(tmp_path, config=config, may_exist=True, port=port) as second:
        expect(page.locator("#banner")).to_be_hidden(timeout=WAIT_MS)
        for name in ("eve",):
            add_person(second, name, "user")
        with second.client("eve") as eve:
            new_session(eve)
            expect(page.locator("#tile-sandboxes")).to_have_text("1", timeout=WAIT_MS)
        context.close()
