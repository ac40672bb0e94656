"""Debian's Chromium, driven by Playwright, at a running service; and a client that acts like one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from conftest import need
from interfaces.http.running_service import PASSWORD, ROOT, RunningService

PROJECT = Path(__file__).resolve().parents[3]
AXE = PROJECT / ".tools/axe/node_modules/axe-core/axe.min.js"
_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


@dataclass
class PageClient:
    """A browser without scripts: cookies, and forms that are sent with their token."""

    http: httpx.Client
    page: httpx.Response | None = None

    def open(self, path: str, **headers: str) -> httpx.Response:
        self.page = self.http.get(path, headers=headers, follow_redirects=True)
        return self.page

    @property
    def token(self) -> str:
        assert self.page is not None
        found = _TOKEN.search(self.page.text)
        assert found is not None, self.page.text[:300]
        return found[1]

    def send(self, path: str, **fields: str) -> httpx.Response:
        """Send a form of the last page, and follow where it leads."""
        data = {"form_token": self.token, **fields}
        return self.http.post(path, data=data, follow_redirects=True)

    def sign_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        self.open("/ui/sign-in")
        self.page = self.send("/ui/sign-in", name=name, password=password, next="/")
        return self.page


def add_person(service: RunningService, name: str, role: str) -> None:
    """A user with a password and, since a password ends all tokens, a new token."""
    service.add_user(name, role)
    service.set_password(name)
    directory = service.accounts.directory
    secret, _ = service.call(
        directory.create_token(service.ids[name], name="test", scopes=(), lives_s=3600, by=ROOT)
    )
    service.tokens[name] = secret


@contextmanager
def page_client(service: RunningService, name: str | None = None) -> Iterator[PageClient]:
    with service.client(None) as http:
        found = PageClient(http)
        if name is not None:
            assert found.sign_in(name).status_code == 200
        yield found


@dataclass
class WatchedBrowser:
    """Chromium, in which whatever a page complains about is kept."""

    chromium: Browser
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def at(self, service: RunningService, name: str | None, **options: Any) -> Iterator[Page]:
        """A page of a new profile; the block fails by console errors and CSP violations."""
        context = self.chromium.new_context(base_url=service.url, **options)
        context.set_default_timeout(20_000)
        try:
            page = context.new_page()
            self.watch(page)
            if name is not None:
                sign_in(service, context, name)
            yield page
            assert not self.problems, "; ".join(self.problems)
        finally:
            self.problems.clear()
            context.close()

    def watch(self, page: Page) -> None:
        """Keep what this page complains about."""
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on(
            "console",
            lambda said: (
                self.problems.append(f"{said.text} {said.location['url']}")
                if said.type == "error"
                else None
            ),
        )
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (event) =>"
            " console.error(`CSP ${event.violatedDirective} ${event.blockedURI}`))"
        )


def sign_in(service: RunningService, context: BrowserContext, name: str) -> None:
    """By the cookies of a real sign-in: the form has tests of its own."""
    with page_client(service, name) as client:
        cookies = [
            {"name": each.name, "value": str(each.value), "domain": "127.0.0.1", "path": each.path}
            for each in client.http.cookies.jar
        ]
    context.add_cookies(cookies)  # type: ignore[arg-type]  # a TypedDict


@contextmanager
def watched_browser() -> Iterator[WatchedBrowser]:
    program = shutil.which("chromium")
    need(program is not None, "chromium (./dev test installs it)")
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs a user namespace, which root in a container lacks.
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield WatchedBrowser(chromium)
        finally:
            chromium.close()


def need_axe() -> None:
    need(AXE.exists(), "axe-core (./dev test installs it)")


def accessibility_problems(page: Page, *rules: str, without: Sequence[str] = ()) -> list[str]:
    """What axe-core finds against WCAG 2.2 A and AA; with `rules` by these alone."""
    need_axe()
    # Evaluated by the debugger, which the policy of the page does not bind.
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": tags}
    options = {"runOnly": only, "resultTypes": ["violations"]}
    options["rules"] = {name: {"enabled": False} for name in without}
    found = page.evaluate("(options) => axe.run(options)", options)
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"][:3]
    ]
