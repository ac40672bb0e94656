"""Sign-in and sign-out in a browser (SRV-2): by password, one-time link, passkey or OpenID."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.core.errors import BadInput, CellwallError, SignInRefused
from cellwall.interfaces.http.auth_routes import delete_tokens, set_tokens
from cellwall.interfaces.http.callers import address_of
from cellwall.interfaces.http.cookies import REFRESH_COOKIE
from cellwall.interfaces.http.dashboard.browser import (
    RENEW,
    SIGN_IN,
    CurrentBrowser,
    CurrentForm,
    check_form,
    form_token,
    own_page,
    page_before,
)
from cellwall.interfaces.http.dashboard.pages import THEME_COOKIE, THEMES, PageRoute, render
from cellwall.interfaces.http.problems import status_of
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=PageRoute)
_YEAR_S = 365 * 86_400
_NO_PASSWORD = 1024
Next = Annotated[str, Query(alias="next", max_length=2200)]


@routes.get(SIGN_IN)
async def sign_in_page(request: Request, service: CurrentService, after: Next = "/") -> Response:
    """The form. The code of a one-time link stands behind `#`, where no log keeps it; a script puts
    it into the form."""
    return _form(request, service, after, error=None)


@routes.post(SIGN_IN)
async def sign_in(request: Request, service: CurrentService, form: CurrentForm) -> Response:
    """Sign in, and go to the page that was wanted."""
    after = own_page(form.text("next"))
    await check_form(request, form_token(request, service, ""))
    ways, address = service.accounts.sign_in, address_of(request)
    audience = service.settings.audience
    name, password, link = form.text("name")[:256], form.text("password"), form.text("link").strip()
    try:
        if len(password) > _NO_PASSWORD or "\0" in name:
            raise BadInput("the name or the password is too long")
        if link:
            code = link.rpartition("sign-in=")[2][:200]
            pair = await ways.by_link(
                code, password, address=address, audience=audience, name=form.text("owner")[:256]
            )
        else:
            pair = await ways.by_password(name, password, address=address, audience=audience)
    except CellwallError as error:
        return _form(request, service, after, error=error, name=name, link=link)
    response = RedirectResponse(after, status_code=303)
    set_tokens(service, response, pair, in_cookies=True)
    return response


def _form(
    request: Request,
    service: CurrentService,
    after: str,
    *,
    error: CellwallError | None,
    name: str = "",
    link: str = "",
) -> Response:
    return render(
        request,
        "sign_in.html",
        browser=None,
        status=200 if error is None else status_of(error),
        form_token=form_token(request, service, ""),
        next=own_page(after),
        error=error,
        name=name,
        link=link,
        has_oidc=service.accounts.oidc is not None,
    )


@routes.api_route(RENEW, methods=["GET", "POST"])
async def renew(request: Request, service: CurrentService, after: Next = "/") -> Response:
    """Exchange the refresh token for new ones, and send the browser back. Of two pages that do so
    at once, both get the same tokens, see `SignIn.refresh`."""
    back, token = own_page(after), REFRESH_COOKIE.read(request, service)
    if token:
        with suppress(SignInRefused):
            pair = await service.accounts.sign_in.refresh(token, address=address_of(request))
            # 307 keeps method and body: a form that came here is sent on.
            status = 303 if request.method == "GET" else 307
            response = RedirectResponse(back, status_code=status)
            set_tokens(service, response, pair, in_cookies=True)
            return response
    response = RedirectResponse(f"{SIGN_IN}?next={quote(back, safe='')}", status_code=303)
    if "hx-request" in request.headers:
        # A part of a page is loaded: the whole page must go.
        response = RedirectResponse(SIGN_IN, status_code=200)
        response.headers["HX-Redirect"] = SIGN_IN
    delete_tokens(service, response)
    return response


@routes.post("/ui/sign-out")
async def sign_out(browser: CurrentBrowser) -> Response:
    """End this sign-in, with its refresh token."""
    await browser.service.accounts.directory.revoke_access(browser.caller.identity)
    response = RedirectResponse(SIGN_IN, status_code=303)
    delete_tokens(browser.service, response)
    return response


@routes.post("/ui/theme")
async def choose_theme(request: Request, browser: CurrentBrowser, form: CurrentForm) -> Response:
    """Light, dark, or as the system has it."""
    wanted = form.text("theme")
    response = RedirectResponse(page_before(request), status_code=303)
    response.set_cookie(
        THEME_COOKIE,
        wanted if wanted in THEMES else THEMES[0],
        max_age=_YEAR_S,
        path="/",
        httponly=True,
        samesite="strict",
        secure=browser.service.settings.is_https,
    )
    return response
