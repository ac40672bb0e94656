"""`/v1/auth/sign-ins` and `/v1/users/{id}/…`: live sign-ins, and the credentials of a user for
those who manage users (SRV-2).

Each function of `accounts` checks the role of the caller itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from cellwall.core.accounts import RefreshFamily
from cellwall.core.errors import NotFound
from cellwall.core.types import Permission
from cellwall.interfaces.http.account_routes import token_body, user_body
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.accounts import TokenList, UserBody
from cellwall.interfaces.http.bodies.sign_in import LiveSignIn, LiveSignInList, PasskeyList
from cellwall.interfaces.http.callers import Caller, CurrentCaller, require, require_person
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.passkey_routes import passkey_body
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=CheckedRoute, tags=["accounts"], responses=ERRORS)
_OWN = "/auth/sign-ins"
_USER = "/users/{user_id}"


@routes.get(_OWN)
async def list_sign_ins(service: CurrentService, caller: CurrentCaller) -> LiveSignInList:
    """The live sign-ins of the caller."""
    return _listed(caller, await service.accounts.live_sign_ins.list_own(caller.identity))


@routes.delete(_OWN + "/{sign_in_id}", status_code=204)
async def end_sign_in(service: CurrentService, caller: CurrentCaller, sign_in_id: str) -> None:
    """End one of the caller's sign-ins, at once."""
    require_person(caller, "ends no sign-in")
    await service.accounts.live_sign_ins.end_own(caller.identity, sign_in_id)


@routes.get(_USER)
async def get_user(service: CurrentService, caller: CurrentCaller, user_id: str) -> UserBody:
    """One user."""
    require(service, caller, Permission.USERS_MANAGE)
    found = await service.store.find_user(user_id)
    if found is None:
        raise NotFound("there is no such user", hint="Check the id.")
    return user_body(found)


@routes.get(_USER + "/sign-ins")
async def list_user_sign_ins(
    service: CurrentService, caller: CurrentCaller, user_id: str
) -> LiveSignInList:
    """The live sign-ins of a user."""
    found = await service.accounts.live_sign_ins.list_of(user_id, by=caller.principal)
    return _listed(caller, found)


@routes.delete(_USER + "/sign-ins/{sign_in_id}", status_code=204)
async def end_user_sign_in(
    service: CurrentService, caller: CurrentCaller, user_id: str, sign_in_id: str
) -> None:
    """End one sign-in of a user, at once."""
    live = service.accounts.live_sign_ins
    await live.end_of(user_id, sign_in_id, by=caller.principal)


@routes.get(_USER + "/passkeys")
async def list_user_passkeys(
    service: CurrentService, caller: CurrentCaller, user_id: str
) -> PasskeyList:
    """The passkeys of a user."""
    found = await service.accounts.directory.list_passkeys(user_id, by=caller.principal)
    return PasskeyList(passkeys=[passkey_body(each) for each in found])


@routes.get(_USER + "/tokens")
async def list_user_tokens(
    service: CurrentService, caller: CurrentCaller, user_id: str
) -> TokenList:
    """The service tokens of a user, without their secrets."""
    found = await service.accounts.directory.list_tokens(user_id, by=caller.principal)
    return TokenList(tokens=[token_body(each) for each in found])


@routes.delete(_USER + "/tokens/{token_id}", status_code=204)
async def revoke_user_token(
    service: CurrentService, caller: CurrentCaller, user_id: str, token_id: str
) -> None:
    """End one service token of a user, at once."""
    directory = service.accounts.directory
    found = await directory.list_tokens(user_id, by=caller.principal)
    if all(each.id != token_id for each in found):
        raise NotFound("there is no such token", hint="Check the id, and who owns it.")
    await directory.revoke_token(token_id, by=caller.principal)


def _listed(caller: Caller, found: Sequence[RefreshFamily]) -> LiveSignInList:
    return LiveSignInList(
        sign_ins=[
            LiveSignIn(
                id=each.id,
                created=each.created_s,
                expires=each.expires_s,
                is_current=each.id == caller.identity.family_id,
            )
            for each in found
        ]
    )
