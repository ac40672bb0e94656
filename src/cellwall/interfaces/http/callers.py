"""The caller of a request, by its access token.

Programs send the token in `Authorization`. A browser may keep it in a cookie instead: then each
request that changes something also needs the CSRF token in a header, which no other site knows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection

from cellwall.admin.accounts import Identity
from cellwall.core.errors import Denied, SignInRefused
from cellwall.core.types import Permission, Principal
from cellwall.interfaces.http.cookies import ACCESS_COOKIE
from cellwall.interfaces.http.service import Service, service_of
from cellwall.runtime import judging

INTERFACE = "http"
CSRF_HEADER = "X-CSRF-Token"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user or service."""

    identity: Identity
    address: str
    is_by_cookie: bool = False

    @property
    def principal(self) -> Principal:
        return self.identity.principal(INTERFACE)

    @property
    def id(self) -> str:
        """The owner of what the caller creates."""
        return self.identity.user_id


def address_of(connection: HTTPConnection) -> str:
    """The peer's address; headers of proxies are not believed."""
    return connection.client.host if connection.client else ""


def csrf_token(access: str) -> str:
    """The token that a page sends back in a header. Only who holds the cookie can compute it."""
    digest = hashlib.sha256(b"cellwall csrf\0" + access.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


async def authenticate(service: Service, token: str, *, address: str) -> Identity:
    """The identity of a token for this API; raises `SignInRefused`."""
    return await service.accounts.authenticate(
        token, audience=service.settings.audience, address=address
    )


async def current_caller(request: Request) -> Caller:
    """The caller of this request; raises `SignInRefused`."""
    address = address_of(request)
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _space, token = header.partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
    else:
        token = ACCESS_COOKIE.read(request, service_of(request))
    if not token:
        raise SignInRefused(
            "this request bears no access token",
            hint="Send `Authorization: Bearer TOKEN`; POST /v1/auth/token gives a token.",
            code="CW-SIGN-IN-MISSING",
        )
    is_by_cookie = header is None
    identity = await authenticate(service_of(request), token, address=address)
    found = Caller(identity, address, is_by_cookie)
    request.state.caller = found  # for the record of a refusal
    if is_by_cookie and request.method not in _SAFE_METHODS:
        sent = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(sent.encode(), csrf_token(token).encode()):
            raise Denied(
                "a request with a cookie needs the CSRF token",
                hint=f"Send {CSRF_HEADER}; GET /v1/auth/session tells it.",
                code="CW-CSRF",
            )
    return found


def require(service: Service, caller: Caller, permission: Permission) -> None:
    """Raise `Denied` unless the role of the caller holds the permission."""
    judging.require(service.app.settings, caller.principal, permission)


def may(service: Service, caller: Caller, permission: Permission) -> bool:
    """Whether the role of the caller holds the permission."""
    return permission in service.app.runtime.roles.role_of(caller.principal).permissions


def require_person(caller: Caller, deed: str) -> None:
    """Raise `Denied` for a service token: a stolen one must not lock out its user, nor outlive its
    own revocation by another token."""
    if caller.identity.scopes is not None:
        raise Denied(
            f"a service token {deed}",
            hint="Sign in as a person: POST /v1/auth/token.",
            code="CW-TOKEN-BY-TOKEN",
        )


class CallerByToken(HTTPBearer):
    """The dependency of every route that needs a caller.

    A security scheme for OpenAPI, and without dependencies of its own: FastAPI takes 0.03 ms for
    each of them, with each request.
    """

    async def __call__(self, request: Request) -> Caller:  # type: ignore[override]  # not the text of the header
        return await current_caller(request)


CurrentCaller = Annotated[
    Caller,
    Depends(
        CallerByToken(
            auto_error=False,
            scheme_name="token",
            description="An access token of `POST /v1/auth/token`, or a service token.",
        )
    ),
]
