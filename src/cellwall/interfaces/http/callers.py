"""The caller of a request, by its access token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPAuthorizationCredentials

from cellwall.core.errors import Unauthenticated
from cellwall.core.types import Principal

INTERFACE = "http"
_BEARER = HTTPBearer(auto_error=False, description="An access token of `POST /v1/auth/token`.")


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user or service."""

    principal: Principal
    address: str

    @property
    def owner(self) -> str:
        """The owner of what the caller creates."""
        return self.principal.name


class Authenticator(Protocol):
    """Tells the principal of an access token."""

    async def principal_of(self, token: str, *, address: str) -> Principal:
        """Raises `Unauthenticated` for every token that does not count now."""


def address_of(request: Request) -> str:
    """The peer's address; headers of proxies are not believed."""
    return request.client.host if request.client else ""


async def current_caller(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
) -> Caller:
    """The caller of this request; raises `Unauthenticated`."""
    if credentials is None:
        raise Unauthenticated(
            "this request bears no access token",
            hint="Send `Authorization: Bearer TOKEN`; POST /v1/auth/token gives a token.",
        )
    accounts: Authenticator = request.app.state.accounts
    address = address_of(request)
    return Caller(await accounts.principal_of(credentials.credentials, address=address), address)


CurrentCaller = Annotated[Caller, Depends(current_caller)]
