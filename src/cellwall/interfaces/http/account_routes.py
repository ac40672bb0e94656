"""`/v1/users`, `/v1/teams`, `/v1/tokens`: who may use the service, for those who manage it.

Each function of `accounts.directory` checks the role of the caller itself.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from cellwall.core.accounts import ServiceToken, Team, User
from cellwall.core.types import Permission
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.accounts import (
    NewTeam,
    NewToken,
    NewTokenBody,
    NewUser,
    SignInLinkBody,
    TeamBody,
    TeamList,
    TokenBody,
    TokenList,
    UserBody,
    UserChange,
    UserPage,
)
from cellwall.interfaces.http.callers import CurrentCaller, require, require_person
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=CheckedRoute, tags=["accounts"], responses=ERRORS)


@routes.get("/users")
async def list_users(
    service: CurrentService,
    caller: CurrentCaller,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    after: Annotated[str, Query(max_length=64)] = "",
) -> UserPage:
    """All users, by name."""
    found = await service.accounts.directory.list_users(
        by=caller.principal, after=after, limit=limit + 1
    )
    page = [user_body(each) for each in found[:limit]]
    return UserPage(users=page, next=page[-1].name if len(found) > limit else None)


@routes.post("/users", status_code=201)
async def add_user(service: CurrentService, caller: CurrentCaller, body: NewUser) -> UserBody:
    """Add a user; a sign-in link then sets the password. A service token gives no role with
    permissions that it lacks."""
    directory = service.accounts.directory
    return user_body(await directory.add_user(body.name, role=body.role, by=caller.principal))


@routes.patch("/users/{user_id}", status_code=204)
async def change_user(
    service: CurrentService, caller: CurrentCaller, user_id: str, body: UserChange
) -> None:
    """Change the role of a user, or disable the account, which ends its tokens."""
    require(service, caller, Permission.USERS_MANAGE)
    directory = service.accounts.directory
    if body.role is not None:
        await directory.set_role(user_id, body.role, by=caller.principal)
    if body.is_disabled is not None:
        await directory.set_disabled(user_id, is_disabled=body.is_disabled, by=caller.principal)


@routes.post("/users/{user_id}/link")
async def make_link(service: CurrentService, caller: CurrentCaller, user_id: str) -> SignInLinkBody:
    """A one-time link with which the user sets a new password. With a service token: not for the
    token's own user, and for no user who may do more than the token."""
    await service.accounts.directory.require_linkable(user_id, by=caller.principal)
    link = await service.accounts.sign_in.make_link(user_id, by=caller.principal)
    return SignInLinkBody(link=link)


@routes.delete("/users/{user_id}/tokens", status_code=204)
async def revoke_user(service: CurrentService, caller: CurrentCaller, user_id: str) -> None:
    """End every token of a user, at once."""
    await service.accounts.directory.revoke_user(user_id, by=caller.principal)


@routes.delete("/users/tokens", status_code=204)
async def revoke_everybody(service: CurrentService, caller: CurrentCaller) -> None:
    """End every token of every user, at once; that of the caller as well."""
    await service.accounts.directory.revoke_everybody(by=caller.principal)


@routes.post("/keys/rotate", status_code=204)
async def rotate_keys(service: CurrentService, caller: CurrentCaller) -> None:
    """Sign with a new key from now on; tokens of the old one stay valid until they expire."""
    await service.accounts.rotate_keys(by=caller.principal)


@routes.get("/teams")
async def list_teams(service: CurrentService, caller: CurrentCaller) -> TeamList:
    """All teams for those who manage users, else those of the caller."""
    found = await service.accounts.directory.list_teams(caller.identity, by=caller.principal)
    return TeamList(teams=[_team(each) for each in found])


@routes.post("/teams", status_code=201)
async def add_team(service: CurrentService, caller: CurrentCaller, body: NewTeam) -> TeamBody:
    """Add a team."""
    return _team(await service.accounts.directory.add_team(body.name, by=caller.principal))


@routes.put("/teams/{team_id}/members/{user_id}", status_code=204)
async def add_member(
    service: CurrentService, caller: CurrentCaller, team_id: str, user_id: str
) -> None:
    """Add a user to a team."""
    await service.accounts.directory.add_member(team_id, user_id, by=caller.principal)


@routes.delete("/teams/{team_id}/members/{user_id}", status_code=204)
async def remove_member(
    service: CurrentService, caller: CurrentCaller, team_id: str, user_id: str
) -> None:
    """Remove a user from a team."""
    await service.accounts.directory.remove_member(team_id, user_id, by=caller.principal)


@routes.get("/tokens")
async def list_tokens(service: CurrentService, caller: CurrentCaller) -> TokenList:
    """The caller's service tokens, without their secrets."""
    found = await service.accounts.directory.list_own_tokens(caller.identity)
    return TokenList(tokens=[token_body(each) for each in found])


@routes.post("/tokens", status_code=201)
async def create_token(
    service: CurrentService, caller: CurrentCaller, body: NewToken
) -> NewTokenBody:
    """A service token; it cannot hold more than the credential that asks for it."""
    require_person(caller, "creates no other token")
    directory = service.accounts.directory
    if body.user is None or body.user == caller.id:
        secret, made = await directory.create_own_token(
            caller.identity, name=body.name, scopes=body.scopes, lives_s=body.lives_s
        )
    else:
        secret, made = await directory.create_token(
            body.user,
            name=body.name,
            scopes=body.scopes,
            lives_s=body.lives_s,
            by=caller.principal,
        )
    return NewTokenBody(token=secret, **token_body(made).model_dump())


@routes.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(service: CurrentService, caller: CurrentCaller, token_id: str) -> None:
    """End one of the caller's service tokens; with a service token that one alone."""
    if token_id != caller.identity.credential:
        require_person(caller, "ends no other token")
    await service.accounts.directory.revoke_own_token(caller.identity, token_id)


def user_body(user: User) -> UserBody:
    """An account, without its password."""
    return UserBody(
        id=user.id,
        name=user.name,
        role=user.role,
        is_disabled=user.is_disabled,
        has_password=user.password_hash is not None,
        created=user.created_s,
    )


def _team(team: Team) -> TeamBody:
    return TeamBody(id=team.id, name=team.name, created=team.created_s)


def token_body(token: ServiceToken) -> TokenBody:
    """A service token without its secret."""
    return TokenBody(
        id=token.id,
        name=token.name,
        scopes=list(token.scopes),
        created=token.created_s,
        expires=token.expires_s,
        is_revoked=token.is_revoked,
    )
