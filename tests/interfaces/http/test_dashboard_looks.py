"""Every page looks as it did: light, dark and on a phone (SRV-5). See `dashboard_looks`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from playwright.sync_api import Page

from interfaces.http.browser import WatchedBrowser, add_person, watched_browser
from interfaces.http.dashboard_looks import (
    PageLook,
    differences,
    look_at,
    read_looks,
    write_looks,
)
from interfaces.http.running_service import RunningService, new_session, running_service
from interfaces.http.test_dashboard_browser import LOOKS, PAGES, board, config_in
from interfaces.test_cli_process import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
RECORDS = "RECORD_LOOKS" in os.environ
# Each breaks a page in a way that people have broken pages.
BROKEN = {
    "no grid": ".frame { display: block; }",
    "no panels": ".panel { background: none; border: 0; padding: 40px; }",
    "no columns": ".columns { grid-template-columns: 1fr; }",
    "hidden text": "main * { color: transparent !important; background: none !important; }",
    "other theme": "html { --bg: #777; --surface: #777; }",
    "wide content": "main { padding-left: 120px; }",
    "large text": "body { font-size: 24px; }",
}
FONTS = (
    ":root { --sans: serif; --mono: 'Liberation Mono', monospace; } body { letter-spacing: .01em; }"
)
APPLY = "(text) => { const sheet = new CSSStyleSheet(); sheet.replaceSync(text); document.adoptedStyleSheets = text ? [sheet] : []; }"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("cellwall-looks")
    with running_service(home, config=config_in(home)) as found:
        for name, role in (("ann", "owner"), ("eve", "user")):
            add_person(found, name, role)
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[WatchedBrowser]:
    with watched_browser() as found:
        yield found


@pytest.fixture(scope="module")
def paths(service: RunningService) -> Iterator[dict[str, str]]:
    """All pages by their names, with the same content at each run."""
    with service.client("ann") as ann:
        session = new_session(ann)
        commands = f"/v1/sessions/{session}/commands"
        for command in ("echo hello > note.txt", "cat note.txt", "rm -rf /", "sudo id"):
            ann.post(commands, json={"command": command})
        with asked(service, ann, commands) as question:
            record = ann.get("/v1/audit?verdict=deny").json()["records"][0]["id"]
            found = {each.partition("?")[0] or each: each for each in PAGES}
            yield {
                **found,
                "/ui/approvals?state=ended": "/ui/approvals?state=ended",
                "/ui/approvals": "/ui/approvals",
                "/ui/approvals/ID": f"/ui/approvals/{question}",
                "/ui/sessions/ID": f"/ui/sessions/{session}?folder=.&changes=show",
                "/ui/audit/ID": f"/ui/audit/{record}",
                "/ui/nowhere": "/ui/nowhere",
            }


class asked:  # a context manager, used as a function
    """A question that waits while the block lasts."""

    def __init__(self, service: RunningService, ann: httpx.Client, commands: str) -> None:
        self._service, self._ann = service, ann
        body = {"command": "touch one && echo two"}
        self._asking = threading.Thread(target=self._ask, args=(commands, body))

    def _ask(self, commands: str, body: dict[str, str]) -> None:
        with self._service.client("ann") as client:
            client.post(commands, json=body, timeout=600)

    def __enter__(self) -> str:
        self._asking.start()
        until(lambda: board(self._service))
        return str(board(self._service)[0].id)

    def __exit__(self, *_: object) -> None:
        for each in board(self._service):
            self._ann.post(f"/v1/approvals/{each.id}", json={"answer": "deny"})
        self._asking.join()


@pytest.mark.requirement("SRV-5")
@pytest.mark.parametrize("look", LOOKS)
def test_every_page_looks_as_before(
    service: RunningService,
    browser: WatchedBrowser,
    paths: dict[str, str],
    look: str,
    tmp_path: Path,
) -> None:
    kept, seen = read_looks(look), dict[str, PageLook]()
    failures: list[str] = []
    options = {**LOOKS[look], "java_script_enabled": False, "reduced_motion": "reduce"}
    canvas = browser.chromium.new_page()
    with browser.at(service, "ann", **options) as page:
        for name, path in paths.items():
            page.goto(path)
            browser.problems.clear()  # the console tells of the status 404
            file = tmp_path / f"{look}{name.replace('/', '-').replace('?', '-')}.png"
            seen[name] = look_at(page, canvas, keep=file)
            if name not in kept:
                failures.append(f"{name}: not recorded")
            else:
                failures += [f"{name}: {each}" for each in differences(kept[name], seen[name])]
    canvas.close()
    if RECORDS:
        write_looks(look, seen)
        print(f"screenshots: {tmp_path}")  # for the person who records
        return
    help_text = f"screenshots are in {tmp_path}; RECORD_LOOKS=1 records what is wanted"
    assert not failures, "\n".join([*failures, help_text])
    assert set(kept) == set(seen)


@pytest.mark.requirement("SRV-5")
def test_a_broken_layout_is_noticed_and_other_fonts_are_not(
    service: RunningService, browser: WatchedBrowser, paths: dict[str, str]
) -> None:
    options = {**LOOKS["light"], "java_script_enabled": False, "reduced_motion": "reduce"}
    canvas = browser.chromium.new_page()
    with browser.at(service, "ann", **options) as page:
        found: dict[str, list[str]] = {}
        for path in ("/ui/health", "/ui/policy"):
            page.goto(paths[path])
            whole = look_at(page, canvas)
            assert differences(whole, styled(page, canvas, FONTS)) == []
            for name, style in BROKEN.items():
                found.setdefault(name, []).extend(differences(whole, styled(page, canvas, style)))
    canvas.close()
    assert [name for name, noticed in found.items() if not noticed] == []


def styled(page: Page, canvas: Page, style: str) -> PageLook:
    page.evaluate(APPLY, style)
    found = look_at(page, canvas)
    page.evaluate(APPLY, "")
    return found
