"""`/v1/auth/passkeys`: registration, sign-in and removal of passkeys (SRV-2)."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from cellwall.core.accounts import Passkey
from cellwall.interfaces.http.auth_routes import set_tokens
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.accounts import Tokens
from cellwall.interfaces.http.bodies.sign_in import (
    CeremonyBody,
    Confirmation,
    NewPasskey,
    PasskeyBody,
    PasskeyList,
    PasskeySignIn,
)
from cellwall.interfaces.http.callers import CurrentCaller, address_of
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=CheckedRoute, tags=["accounts"], responses=ERRORS)


@routes.post("/auth/passkeys/register")
async def begin_registration(
    service: CurrentService, caller: CurrentCaller, body: Confirmation
) -> CeremonyBody:
    """Begin a registration: options for `navigator.credentials.create`."""
    begun = await service.accounts.passkeys.begin_registration(
        caller.identity, password=body.password, address=caller.address
    )
    return CeremonyBody(id=begun.id, options=dict(begun.options))


@routes.post("/auth/passkeys", status_code=201)
async def add_passkey(
    service: CurrentService, caller: CurrentCaller, body: NewPasskey
) -> PasskeyBody:
    """Add the passkey that the browser created."""
    return passkey_body(
        await service.accounts.passkeys.finish_registration(
            caller.identity, body.id, body.credential, name=body.name
        )
    )


@routes.get("/auth/passkeys")
async def list_passkeys(service: CurrentService, caller: CurrentCaller) -> PasskeyList:
    """The passkeys of the caller."""
    found = await service.accounts.passkeys.list_own(caller.identity)
    return PasskeyList(passkeys=[passkey_body(each) for each in found])


@routes.delete("/auth/passkeys/{passkey_id}", status_code=204)
async def remove_passkey(service: CurrentService, caller: CurrentCaller, passkey_id: str) -> None:
    """Remove a passkey of the caller. Sign-ins that it began go on until they are revoked."""
    await service.accounts.passkeys.remove_own(caller.identity, passkey_id)


@routes.delete("/users/{user_id}/passkeys", status_code=204)
async def remove_passkeys(service: CurrentService, caller: CurrentCaller, user_id: str) -> None:
    """Remove all passkeys of a user, as after a theft."""
    await service.accounts.directory.remove_passkeys(user_id, by=caller.principal)


@routes.post("/auth/passkeys/challenge")
async def begin_sign_in(request: Request, service: CurrentService) -> CeremonyBody:
    """Begin a sign-in: options for `navigator.credentials.get`, the same for everybody."""
    begun = await service.accounts.passkeys.begin_sign_in(address=address_of(request))
    return CeremonyBody(id=begun.id, options=dict(begun.options))


@routes.post("/auth/passkeys/token")
async def sign_in(
    request: Request, response: Response, service: CurrentService, body: PasskeySignIn
) -> Tokens:
    """Sign in with the answer of the browser."""
    pair = await service.accounts.passkeys.finish_sign_in(
        body.id,
        body.credential,
        address=address_of(request),
        audience=service.settings.audience,
    )
    return set_tokens(service, response, pair, in_cookies=body.cookie)


def passkey_body(passkey: Passkey) -> PasskeyBody:
    """A passkey without its key."""
    return PasskeyBody(
        id=passkey.id, name=passkey.name, created=passkey.created_s, used=passkey.used_s
    )
