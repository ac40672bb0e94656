"""Sign-in, users, teams and service tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from cellwall.core.types import ROLE_NAMES
from cellwall.interfaces.http.bodies.base import NO_NUL, RequestBody, Seconds, examples

assert ROLE_NAMES == ("guest", "user", "power-user", "administrator", "owner")  # noqa: S101  # the bodies below list them
RoleName = Literal["guest", "user", "power-user", "administrator", "owner"]
Secret = Annotated[str, Field(max_length=8192)]
Name = Annotated[str, Field(min_length=1, max_length=64)]


class SignInRequest(RequestBody):
    """A name with its password, or a one-time link with the password to be set."""

    name: str = Field(
        "", max_length=256, pattern=NO_NUL, description="with a link only for the first owner"
    )
    password: str = Field(max_length=1024)
    link: str | None = Field(None, max_length=200, description="the secret of a sign-in link")
    cookie: bool = Field(False, description="for browsers: keep the tokens in cookies")
    resource: str | None = Field(
        None,
        max_length=400,
        description="the address that the token is for (RFC 8707): this API, or that of `/mcp`",
    )
    model_config = examples(
        {"name": "ann", "password": "correct horse battery"},
        {"name": "ann", "password": "correct horse battery", "link": "cwl_…"},
    )


class Tokens(BaseModel):
    """An access token and the refresh token that replaces it. In cookies both are absent here."""

    access_token: str | None
    refresh_token: str | None
    token_type: Literal["Bearer"] = "Bearer"  # noqa: S105  # the type, by RFC 6750
    expires_in: float = Field(description="seconds until the access token expires")
    csrf_token: str | None = Field(description="with cookies: to be sent in X-CSRF-Token")
    model_config = examples(
        {
            "access_token": "eyJ…",
            "refresh_token": "cwr_…",
            "token_type": "Bearer",
            "expires_in": 600,
            "csrf_token": None,
        }
    )


class RefreshRequest(RequestBody):
    """A refresh token; without one the token is in a cookie."""

    refresh_token: str | None = Field(None, max_length=200)
    model_config = examples({"refresh_token": "cwr_…"})


class RevokeRequest(RequestBody):
    """The token to end; without one that of the request, with `everywhere` all of the user."""

    token: str | None = Field(None, max_length=8192)
    everywhere: bool = False
    model_config = examples({}, {"token": "cwr_…"}, {"everywhere": True})


class PasswordChange(RequestBody):
    """Ends every token of the user."""

    old: str = Field(max_length=1024)
    new: str = Field(max_length=1024)
    model_config = examples({"old": "correct horse battery", "new": "another staple horse"})


class WhoAmI(BaseModel):
    """The caller of the request."""

    id: str
    name: str
    role: str
    permissions: list[str] = Field(description="by role, settings and token together")
    teams: list[str]
    csrf_token: str | None


class NewUser(RequestBody):
    """A user without a password; a sign-in link sets it."""

    name: Name
    role: RoleName = "user"
    model_config = examples({"name": "ann", "role": "user"})


class UserChange(RequestBody):
    """What is left out stays."""

    role: RoleName | None = None
    is_disabled: bool | None = None
    model_config = examples({"role": "power-user"}, {"is_disabled": True})


class UserBody(BaseModel):
    """An account."""

    id: str
    name: str
    role: str
    is_disabled: bool
    has_password: bool
    created: Seconds


class UserPage(BaseModel):
    """Some of the users, by name."""

    users: list[UserBody]
    next: str | None = Field(description="`after` of the next page; null on the last")


class SignInLinkBody(BaseModel):
    """The secret of a link; shown once."""

    link: str


class NewTeam(RequestBody):
    """A group of users that can share sandboxes."""

    name: Name
    model_config = examples({"name": "research"})


class TeamBody(BaseModel):
    """A team."""

    id: str
    name: str
    created: Seconds


class TeamList(BaseModel):
    """All teams."""

    teams: list[TeamBody]


class NewToken(RequestBody):
    """A service token: for a program, with no more than its user may do."""

    name: Name
    scopes: list[Annotated[str, Field(max_length=60)]] = Field(
        [], max_length=50, description="permissions; empty: all that the caller has"
    )
    lives_s: float = Field(86_400, gt=0, description="seconds until it expires")
    user: str | None = Field(
        None, max_length=60, pattern=NO_NUL, description="another user's id, by an owner"
    )
    model_config = examples({"name": "ci", "scopes": ["sandbox:execute"], "lives_s": 86_400})


class TokenBody(BaseModel):
    """A service token without its secret."""

    id: str
    name: str
    scopes: list[str]
    created: Seconds
    expires: Seconds
    is_revoked: bool


class NewTokenBody(TokenBody):
    """The token itself is shown this once."""

    token: str


class TokenList(BaseModel):
    """The caller's service tokens."""

    tokens: list[TokenBody]
