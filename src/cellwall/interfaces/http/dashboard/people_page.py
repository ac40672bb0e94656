"""`/ui/people`: users and their roles for owners; the person's own tokens for everybody."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.core.errors import BadInput
from cellwall.core.types import ROLE_NAMES, Permission
from cellwall.interfaces.http import account_routes
from cellwall.interfaces.http.bodies.accounts import NewToken, NewUser, UserChange
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser, CurrentForm
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import with_query

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/people"
_DAY_S = 86_400.0
_DAYS = re.compile(r"[0-9]{1,3}")
Deed = Literal["role", "disable", "enable", "link", "revoke"]


@routes.get(_LIST)
async def people_page(
    request: Request, browser: CurrentBrowser, after: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """Users, and the tokens of this person."""
    return await _page(request, browser, after=after)


async def _page(
    request: Request, browser: BrowserSession, *, after: str = "", secret: str = "", what: str = ""
) -> Response:
    """`secret` is shown once, as the answer to the form that made it: never in an address."""
    service, caller = browser.service, browser.caller
    users, following = [], ""
    if browser.may(Permission.USERS_MANAGE):
        page = await account_routes.list_users(service, caller, limit=100, after=after)
        users = page.users
        following = with_query(_LIST, after=page.next) if page.next else ""
    tokens = (await account_routes.list_tokens(service, caller)).tokens
    return render(
        request,
        "people.html",
        browser=browser,
        users=users,
        next=following,
        tokens=tokens,
        roles=ROLE_NAMES,
        may_manage=browser.may(Permission.USERS_MANAGE),
        secret=secret,
        what=what,
    )


@routes.post(_LIST)
async def add_person(request: Request, browser: CurrentBrowser, form: CurrentForm) -> Response:
    """Add a user; the page shows the one-time link with which the user sets a password."""
    service, caller = browser.service, browser.caller
    wanted = body_of(NewUser, {"name": form.text("name"), "role": form.text("role")})
    user = await account_routes.add_user(service, caller, wanted)
    made = await account_routes.make_link(service, caller, user.id)
    link = f"{service.settings.public_url}/#sign-in={made.link}"
    return await _page(request, browser, secret=link, what=f"One-time link for {user.name}")


@routes.post(_LIST + "/{user_id}")
async def change_person(
    request: Request, browser: CurrentBrowser, user_id: str, form: CurrentForm
) -> Response:
    """One change of a user, through the function of the API."""
    service, caller = browser.service, browser.caller
    deed = form.text("deed")
    if deed not in get_args(Deed):
        raise BadInput("there is no such change", hint="Load the page again.")
    if deed == "link":
        made = await account_routes.make_link(service, caller, user_id)
        link = f"{service.settings.public_url}/#sign-in={made.link}"
        return await _page(request, browser, secret=link, what="One-time link")
    if deed == "revoke":
        await account_routes.revoke_user(service, caller, user_id)
    else:
        wanted: dict[str, object] = {"is_disabled": deed == "disable"}
        if deed == "role":
            wanted = {"role": form.text("role")}
        change = body_of(UserChange, wanted)
        await account_routes.change_user(service, caller, user_id, change)
    return RedirectResponse(_LIST, status_code=303)


@routes.post("/ui/tokens")
async def add_token(request: Request, browser: CurrentBrowser, form: CurrentForm) -> Response:
    """A service token for a program; its secret is shown once."""
    days = form.text("days")
    if _DAYS.fullmatch(days) is None or not 1 <= int(days) <= 365:
        raise BadInput("a token lives between 1 and 365 days", hint="Choose a number of days.")
    body = body_of(NewToken, {"name": form.text("name"), "lives_s": int(days) * _DAY_S})
    made = await account_routes.create_token(browser.service, browser.caller, body)
    return await _page(request, browser, secret=made.token, what=f"Token {made.name}")


@routes.post("/ui/tokens/{token_id}/revoke")
async def revoke_token(browser: CurrentBrowser, token_id: str) -> Response:
    """End one of the person's own tokens."""
    await account_routes.revoke_token(browser.service, browser.caller, token_id)
    return RedirectResponse(_LIST, status_code=303)
