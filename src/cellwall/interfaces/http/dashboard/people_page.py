"""`/ui/people`: users and their roles for owners; everybody's own tokens, passkeys and sign-ins."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import EventKind
from cellwall.core.types import ROLE_NAMES, Permission
from cellwall.interfaces.http import account_routes, credential_routes, passkey_routes
from cellwall.interfaces.http.bodies.accounts import NewToken, NewUser, UserChange
from cellwall.interfaces.http.bodies.base import body_of
from cellwall.interfaces.http.dashboard.browser import BrowserSession, CurrentBrowser, CurrentForm
from cellwall.interfaces.http.dashboard.pages import PageRoute, render
from cellwall.interfaces.http.dashboard.templating import with_query
from cellwall.interfaces.http.lookup_routes import read_audit

routes = APIRouter(route_class=PageRoute)
_LIST = "/ui/people"
_ONE = _LIST + "/{user_id}"
_DAY_S = 86_400.0
_DAYS = re.compile(r"[0-9]{1,3}")
_MAX_HISTORY = 20
Deed = Literal["role", "disable", "enable", "link", "revoke", "passkeys", "token", "sign-in"]


@routes.get(_LIST)
async def people_page(
    request: Request, browser: CurrentBrowser, after: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    """Users, and the credentials of this person."""
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
    return render(
        request,
        "people.html",
        browser=browser,
        users=users,
        next=following,
        tokens=(await account_routes.list_tokens(service, caller)).tokens,
        passkeys=(await passkey_routes.list_passkeys(service, caller)).passkeys,
        sign_ins=(await credential_routes.list_sign_ins(service, caller)).sign_ins,
        history=await _history(browser, browser.name),
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


@routes.get(_ONE)
async def person_page(request: Request, browser: CurrentBrowser, user_id: str) -> Response:
    """One user with all credentials, for those who manage users."""
    return await _person(request, browser, user_id)


async def _person(
    request: Request, browser: BrowserSession, user_id: str, *, secret: str = ""
) -> Response:
    service, caller = browser.service, browser.caller
    user = await credential_routes.get_user(service, caller, user_id)
    passkeys = await credential_routes.list_user_passkeys(service, caller, user_id)
    tokens = await credential_routes.list_user_tokens(service, caller, user_id)
    sign_ins = await credential_routes.list_user_sign_ins(service, caller, user_id)
    return render(
        request,
        "person.html",
        browser=browser,
        user=user,
        passkeys=passkeys.passkeys,
        tokens=tokens.tokens,
        sign_ins=sign_ins.sign_ins,
        history=await _history(browser, user.name) if browser.sees_all else [],
        roles=ROLE_NAMES,
        secret=secret,
    )


@routes.post(_ONE)
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
        return await _person(request, browser, user_id, secret=link)
    if deed == "revoke":
        await account_routes.revoke_user(service, caller, user_id)
    elif deed == "passkeys":
        await passkey_routes.remove_passkeys(service, caller, user_id)
    elif deed == "token":
        await credential_routes.revoke_user_token(service, caller, user_id, form.text("id"))
    elif deed == "sign-in":
        await credential_routes.end_user_sign_in(service, caller, user_id, form.text("id"))
    else:
        wanted: dict[str, object] = {"is_disabled": deed == "disable"}
        if deed == "role":
            wanted = {"role": form.text("role")}
        change = body_of(UserChange, wanted)
        await account_routes.change_user(service, caller, user_id, change)
    return RedirectResponse(f"{_LIST}/{user_id}", status_code=303)


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


@routes.post("/ui/passkeys/{passkey_id}/remove")
async def remove_passkey(browser: CurrentBrowser, passkey_id: str) -> Response:
    """Remove one of the person's own passkeys."""
    await passkey_routes.remove_passkey(browser.service, browser.caller, passkey_id)
    return RedirectResponse(_LIST, status_code=303)


@routes.post("/ui/sign-ins/{sign_in_id}/end")
async def end_sign_in(browser: CurrentBrowser, sign_in_id: str) -> Response:
    """End one of the person's own sign-ins."""
    await credential_routes.end_sign_in(browser.service, browser.caller, sign_in_id)
    return RedirectResponse(_LIST, status_code=303)


async def _history(browser: BrowserSession, name: str) -> list[dict[str, Any]]:
    """The newest sign-ins and failures of a user, from the record."""
    page = await read_audit(
        browser.service,
        browser.caller,
        limit=_MAX_HISTORY,
        before=None,
        action=None,
        session=None,
        principal=name,
        since=None,
        until=None,
        text=None,
        kind=EventKind.SIGN_IN,
        verdict=None,
        record=None,
    )
    return page.records
