"""Pages: how one is rendered, with its security headers, and how errors become pages."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from cellwall.core.errors import AuditFailed, BadInput, CellwallError, SignInRefused
from cellwall.core.outcomes import ErrorInfo
from cellwall.core.types import Permission
from cellwall.interfaces.http.dashboard.assets import asset_address
from cellwall.interfaces.http.dashboard.browser import (
    BrowserSession,
    keep_form_cookie,
    page_of,
    renewal,
)
from cellwall.interfaces.http.dashboard.templating import environment
from cellwall.interfaces.http.problems import RefusedOutcome, record_denial, status_of
from cellwall.interfaces.http.service import service_of
from cellwall.interfaces.http.shown_questions import shown_questions

THEME_COOKIE = "cellwall_theme"
THEMES = ("auto", "light", "dark")
_CSP = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SLOW = "CW-SIGN-IN-SLOW"


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A page in the navigation."""

    name: str
    path: str
    title: str
    key: str
    """Typed after `g`, it opens the page."""
    permission: Permission | None = None
    """Without it the page would be empty, so the entry is left out."""


NAVIGATION = (
    NavigationEntry("now", "/", "Now", "n"),
    NavigationEntry("approvals", "/ui/approvals", "Approvals", "a"),
    NavigationEntry("sessions", "/ui/sessions", "Sessions", "s"),
    NavigationEntry("policy", "/ui/policy", "Policy", "p", Permission.SANDBOX_EXECUTE),
    NavigationEntry("egress", "/ui/egress", "Egress", "e"),
    NavigationEntry("secrets", "/ui/secrets", "Secrets", "c"),
    NavigationEntry("packages", "/ui/packages", "Packages", "k"),
    NavigationEntry("servers", "/ui/servers", "MCP servers", "m", Permission.CONFIG_WRITE),
    NavigationEntry("audit", "/ui/audit", "Audit", "u"),
    NavigationEntry("health", "/ui/health", "Health", "h"),
    NavigationEntry("fleet", "/ui/fleet", "Fleet", "f", Permission.AUDIT_READ),
    NavigationEntry("people", "/ui/people", "People", "o"),
)


def render(
    request: Request,
    template: str,
    *,
    browser: BrowserSession | None,
    status: int = 200,
    **context: object,
) -> Response:
    """One page. Each response has a nonce of its own: no text in a page can run as a script."""
    nonce = secrets.token_urlsafe(18)
    service = service_of(request)
    theme = request.cookies.get(THEME_COOKIE, "")
    body = (
        environment()
        .get_template(template)
        .render(
            browser=browser,
            nonce=nonce,
            asset=asset_address,
            here=page_of(request),
            theme=theme if theme in THEMES else "auto",
            navigation=[each for each in NAVIGATION if _is_shown(each, browser)],
            waiting=0 if browser is None else _waiting(browser),
            **context,
        )
    )
    response = HTMLResponse(body, status_code=status)
    response.headers["Content-Security-Policy"] = _CSP.format(nonce)
    # With `no-referrer` a browser sends `Origin: null` with forms, which the gate refuses.
    response.headers["Referrer-Policy"] = "same-origin"
    keep_form_cookie(request, response, service)
    return response


def _is_shown(entry: NavigationEntry, browser: BrowserSession | None) -> bool:
    if browser is None:
        return False
    return entry.permission is None or browser.may(entry.permission)


def _waiting(browser: BrowserSession) -> int:
    return len(shown_questions(browser.service, browser.caller))


class PageRoute(APIRoute):
    """A route whose errors are pages, and whose browsers are sent to sign in."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except SignInRefused as refused:
                if refused.code == _SLOW:
                    return error_page(request, refused)
                return sign_in_again(request)
            except RefusedOutcome as refused:
                return error_page(request, refused.error, audit_id=refused.audit_id)
            except RequestValidationError:
                hint = "Check the address, or go back and load the page again."
                return error_page(request, BadInput("the request is malformed", hint=hint))
            except CellwallError as error:
                try:
                    return error_page(request, error, audit_id=await record_denial(request, error))
                except AuditFailed as failure:
                    return error_page(request, failure)

        return handle


def sign_in_again(request: Request) -> Response:
    """Renew the sign-in. A browser that comes from another site sends no cookies at first, since
    they are SameSite=Strict: a page that loads itself again is of our own site."""
    is_foreign = request.headers.get("sec-fetch-site", "same-origin") in {"cross-site", "same-site"}
    if is_foreign and request.method == "GET":
        return render(request, "again.html", browser=None, next=page_of(request))
    return renewal(request)


def error_page(request: Request, error: CellwallError, *, audit_id: str = "") -> Response:
    """An error with its code and hint, without paths of the host."""
    hide = service_of(request).paths.hide_in
    info, status = ErrorInfo.of(error), status_of(error)
    return render(
        request,
        "error.html",
        browser=getattr(request.state, "browser", None),
        status=status,
        title=HTTPStatus(status).phrase,
        code=info.code,
        message=hide(info.message),
        hint=hide(info.hint),
        audit_id=audit_id,
    )
