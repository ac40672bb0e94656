"""`/v1/auth/oidc`: sign-in at an OpenID provider, in a browser (SRV-2).

The browser keeps a secret in a cookie between both requests. SameSite=Lax, since it must come along
when the provider sends the browser back; it is worth nothing without the state and the code.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from cellwall.admin.accounts import BegunSignIn, OidcSignIn
from cellwall.core.errors import NotFound
from cellwall.interfaces.http.auth_routes import set_tokens
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.sign_in import (
    Confirmation,
    IdentityBody,
    IdentityList,
    ProviderAddress,
    SignInMethods,
)
from cellwall.interfaces.http.callers import CurrentCaller, address_of
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.cookies import OIDC_COOKIE
from cellwall.interfaces.http.service import CurrentService, Service

routes = APIRouter(route_class=CheckedRoute, tags=["accounts"], responses=ERRORS)
_LIVES_S = 600
_HOME = "/"
_MAX_QUERY = 8192


@routes.get("/auth/methods")
async def sign_in_methods(service: CurrentService) -> SignInMethods:
    """How people can sign in here; without a token."""
    return SignInMethods(password=True, passkey=True, oidc=service.accounts.oidc is not None)


@routes.get("/auth/oidc/start", status_code=303, response_class=RedirectResponse)
async def start(request: Request, service: CurrentService) -> RedirectResponse:
    """Send the browser to the provider."""
    begun = await _provider(service).begin(
        audience=service.settings.audience, address=address_of(request)
    )
    response = RedirectResponse(begun.url, status_code=303)
    _keep(service, response, begun)
    return response


@routes.post("/auth/oidc/link")
async def link(
    response: Response,
    service: CurrentService,
    caller: CurrentCaller,
    body: Confirmation | None = None,
) -> ProviderAddress:
    """Add an identity at the provider to the caller's account: the browser goes to the address."""
    begun = await _provider(service).begin_link(
        caller.identity,
        password=None if body is None else body.password,
        audience=service.settings.audience,
        address=caller.address,
    )
    _keep(service, response, begun)
    return ProviderAddress(url=begun.url)


@routes.get("/auth/identities")
async def list_identities(service: CurrentService, caller: CurrentCaller) -> IdentityList:
    """The identities at the provider with which the caller signs in."""
    found = await service.accounts.directory.list_own_identities(caller.identity)
    return IdentityList(
        identities=[
            IdentityBody(issuer=each.issuer, subject=each.subject, created=each.created_s)
            for each in found
        ]
    )


@routes.delete("/auth/identities", status_code=204)
async def remove_identity(
    service: CurrentService,
    caller: CurrentCaller,
    subject: Annotated[str, Query(max_length=255)],
) -> None:
    """Remove one of them. Sign-ins that it began go on until they are revoked."""
    await service.accounts.directory.remove_own_identity(caller.identity, subject)


@routes.delete("/users/{user_id}/identities", status_code=204)
async def remove_identities(service: CurrentService, caller: CurrentCaller, user_id: str) -> None:
    """Remove all identities of a user, as after a theft."""
    await service.accounts.directory.remove_identities(user_id, by=caller.principal)


@routes.get("/auth/oidc/callback", status_code=303, response_class=RedirectResponse)
async def callback(request: Request, service: CurrentService) -> RedirectResponse:
    """Where the provider sends the browser back; the tokens are then in cookies."""
    # A parameter that comes twice would be read differently by us and by others.
    query = request.query_params.multi_items()
    answer = dict(query) if len(request.url.query) <= _MAX_QUERY else {}
    pair = await _provider(service).finish(
        answer if len(answer) == len(query) else {},
        browser_secret=OIDC_COOKIE.read(request, service),
        address=address_of(request),
    )
    response = RedirectResponse(_HOME, status_code=303)
    OIDC_COOKIE.remove(response, service)
    set_tokens(service, response, pair, in_cookies=True)
    return response


def _provider(service: Service) -> OidcSignIn:
    if service.accounts.oidc is None:
        raise NotFound("this service knows no OpenID provider", hint="See [oidc] in the settings.")
    return service.accounts.oidc


def _keep(service: Service, response: Response, begun: BegunSignIn) -> None:
    OIDC_COOKIE.put(response, service, begun.browser_secret, max_age_s=_LIVES_S)
