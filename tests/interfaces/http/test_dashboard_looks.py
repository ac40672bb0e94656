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
    settle,
    write_looks,
)
from interfaces.http.running_service import RunningService, new_session, running_service
from interfaces.http.test_dashboard_browser import (
    EVERY,
    LOOKS,
    PAGES,
    board,
    config_in,
    looks_of,
)
from interfaces.test_cli_process import until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
# Without scripts the page stands still; it is complete without them.
OPTIONS = {**LOOKS["light"], "java_script_enabled": False, "reduced_motion": "reduce"}
# Each breaks a page in a way that people have broken pages.
BROKEN = {
    "no grid": ".frame { display: block; }",
    "no panels": ".panel { background: none; border: 0; padding: 40px; }",
    "no columns": ".columns { grid-template-columns: 1fr; }",
    "hidden text": "main * { color: transparent !important; background: none !important; }",
    "other theme": "html[data-theme] { --bg: #101214 !important; --surface: #171a1d !important; }",
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
@EVERY
def test_every_page_looks_as_before(
    service: RunningService,
    browser: WatchedBrowser,
    paths: dict[str, str],
    tmp_path: Path,
    every: int,
) -> None:
    if "RECORD_LOOKS" in os.environ:
        every = 1
    folder = Path(os.environ.get("RECORD_LOOKS", tmp_path))
    kept = {look: read_looks(look) for look in LOOKS}
    seen: dict[str, dict[str, PageLook]] = {look: {} for look in LOOKS}
    with browser.at(service, "ann", **OPTIONS) as page:
        for number, (name, path) in enumerate(paths.items()):
            page.goto(path)
            browser.problems.clear()  # the console tells of the status 404
            settle(page)
            for look in looks_of(number, every):
                options = LOOKS[look]
                page.set_viewport_size(options["viewport"])
                page.emulate_media(color_scheme=options["color_scheme"], reduced_motion="reduce")
                file = folder / f"{name.replace('/', '-').replace('?', '-')}.{look}.png"
                seen[look][name] = look_at(page, keep=file)
    if "RECORD_LOOKS" in os.environ:
        for look, found in seen.items():
            write_looks(look, found)
        return
    failures = [
        f"{name}, {look}: {each}"
        for look in LOOKS
        for name in seen[look]
        for each in (
            differences(kept[look][name], seen[look][name])
            if name in kept[look]
            else ["not recorded"]
        )
    ]
    hint = f"Screenshots are in {folder}; RECORD_LOOKS=FOLDER records what is wanted."
    assert not failures, "\n".join([*failures, hint])


@pytest.mark.long  # the control of the comparison, which changes seldom
@pytest.mark.requirement("SRV-5")
def test_a_broken_layout_is_noticed_and_other_fonts_are_not(
    service: RunningService, browser: WatchedBrowser, paths: dict[str, str]
) -> None:
    with browser.at(service, "ann", **OPTIONS) as page:
        found: dict[str, list[str]] = {}
        for path in ("/ui/health", "/ui/policy"):
            page.goto(paths[path])
            settle(page)
            whole = look_at(page)
            assert differences(whole, styled(page, FONTS)) == []
            for name, style in BROKEN.items():
                found.setdefault(name, []).extend(differences(whole, styled(page, style)))
    assert [name for name, noticed in found.items() if not noticed] == []


def styled(page: Page, style: str) -> PageLook:
    page.evaluate(APPLY, style)
    found = look_at(page)
    page.evaluate(APPLY, "")
    return found
