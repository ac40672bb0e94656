"""`/v1/auth`: tokens by password or one-time link, their refresh and their end (SRV-2).

A browser can have its tokens in cookies: HttpOnly, so that no script reads them, and
SameSite=Strict, so that no other site sends them. Requests that change something then need the
CSRF token as well, see `callers`.
"""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from cellwall.admin.accounts import TokenPair
from cellwall.core.errors import BadInput, Denied, SignInRefused
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.accounts import (
    PasswordChange,
    RefreshRequest,
    RevokeRequest,
    SignInRequest,
    Tokens,
    WhoAmI,
)
from cellwall.interfaces.http.callers import (
    CSRF_HEADER,
    CurrentCaller,
    address_of,
    authenticate,
    csrf_token,
    current_caller,
    require_person,
)
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.cookies import ACCESS_COOKIE, REFRESH_COOKIE
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(route_class=CheckedRoute, tags=["accounts"], responses=ERRORS)
_REFRESH_PREFIX = "cwr_"


@routes.post("/auth/token")
async def sign_in(
    request: Request, response: Response, service: CurrentService, body: SignInRequest
) -> Tokens:
    """Sign in. Wrong names, wrong passwords and disabled accounts get one answer."""
    address, audience = address_of(request), _audience(service, body.resource)
    ways = service.accounts.sign_in
    if body.link is not None:
        pair = await ways.by_link(
            body.link, body.password, address=address, audience=audience, name=body.name
        )
    else:
        pair = await ways.by_password(body.name, body.password, address=address, audience=audience)
    return set_tokens(service, response, pair, in_cookies=body.cookie)


def _audience(service: Service, resource: str | None) -> str:
    settings = service.settings
    if resource not in (None, settings.audience, settings.mcp_url):
        raise BadInput(
            "tokens are issued only for this service",
            hint=f"Leave resource out, or name {settings.mcp_url}.",
        )
    return resource or settings.audience


@routes.post("/auth/refresh")
async def refresh(
    request: Request,
    response: Response,
    service: CurrentService,
    body: RefreshRequest | None = None,
) -> Tokens:
    """Exchange a refresh token. One that was used before ends the whole sign-in, unless that was
    seconds ago: then the answer is the same refresh token as before."""
    token = body.refresh_token if body is not None else None
    in_cookies = token is None
    if token is None:
        token = REFRESH_COOKIE.read(request, service)
        if token and CSRF_HEADER not in request.headers:
            # Any value: a page of another origin cannot set the header without a preflight.
            raise Denied(
                "a request with a cookie needs the CSRF header",
                hint=f"Send {CSRF_HEADER}.",
                code="CW-CSRF",
            )
    if not token:
        raise SignInRefused(
            "there is no refresh token",
            hint="Sign in: POST /v1/auth/token.",
            code="CW-SIGN-IN-MISSING",
        )
    pair = await service.accounts.sign_in.refresh(token, address=address_of(request))
    return set_tokens(service, response, pair, in_cookies=in_cookies)


@routes.post("/auth/revoke", status_code=204)
async def revoke(
    request: Request,
    response: Response,
    service: CurrentService,
    body: RevokeRequest | None = None,
) -> None:
    """End a token. One that does not count any more is no error (RFC 7009)."""
    address = address_of(request)
    if body is not None and body.token is not None:
        await _revoke_given(service, body.token, address=address)
        return
    caller = await current_caller(request)
    if body is not None and body.everywhere:
        require_person(caller, "ends no other token")
        await service.accounts.directory.revoke_own(caller.identity)
    else:
        await service.accounts.directory.revoke_access(caller.identity)
    if caller.is_by_cookie:
        delete_tokens(service, response)


def delete_tokens(service: Service, response: Response) -> None:
    """Remove the cookies of a sign-in from the browser."""
    ACCESS_COOKIE.remove(response, service)
    REFRESH_COOKIE.remove(response, service)


async def _revoke_given(service: Service, token: str, *, address: str) -> None:
    if token.startswith(_REFRESH_PREFIX):
        await service.accounts.sign_in.sign_out(token, address=address)
        return
    try:
        identity = await authenticate(service, token, address=address)
    except SignInRefused as refused:
        if refused.code == "CW-SIGN-IN-SLOW":
            raise
        return
    await service.accounts.directory.revoke_access(identity)


@routes.get("/auth/session")
async def who_am_i(request: Request, service: CurrentService, caller: CurrentCaller) -> WhoAmI:
    """The caller, and what the caller may do."""
    role = service.app.runtime.roles.role_of(caller.principal)
    access = ACCESS_COOKIE.read(request, service)
    return WhoAmI(
        id=caller.id,
        name=caller.identity.name,
        role=role.name,
        permissions=sorted(each.value for each in role.permissions),
        teams=sorted(caller.identity.teams),
        csrf_token=csrf_token(access) if caller.is_by_cookie else None,
    )


@routes.put("/auth/password", status_code=204)
async def change_password(
    service: CurrentService, caller: CurrentCaller, body: PasswordChange
) -> None:
    """Change the caller's password; needs the old one, and ends every token."""
    await service.accounts.directory.change_password(
        caller.identity, body.old, body.new, address=caller.address
    )


def set_tokens(
    service: Service, response: Response, pair: TokenPair, *, in_cookies: bool
) -> Tokens:
    """The answer to a sign-in: the tokens, or cookies that hold them."""
    expires_in = max(0.0, round(pair.expires_s - time.time(), 1))
    if not in_cookies:
        return Tokens(
            access_token=pair.access,
            refresh_token=pair.refresh,
            expires_in=expires_in,
            csrf_token=None,
        )
    ACCESS_COOKIE.put(response, service, pair.access, max_age_s=int(expires_in))
    REFRESH_COOKIE.put(response, service, pair.refresh)
    return Tokens(
        access_token=None,
        refresh_token=None,
        expires_in=expires_in,
        csrf_token=csrf_token(pair.access),
    )
