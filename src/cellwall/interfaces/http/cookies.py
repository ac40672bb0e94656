"""Cookies that sign a browser in.

Over TLS each name begins with `__Host-`: a browser takes such a cookie only over TLS, from this
very host and for all paths (RFC 6265bis, 4.1.3.2). Without the prefix, a page of a sibling domain,
or one that an attacker on the network sends without TLS, could put its own cookie in the place of
ours, and the person would work in the account of the attacker. A service without TLS is on
loopback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from starlette.requests import HTTPConnection
from starlette.responses import Response

if TYPE_CHECKING:
    from cellwall.interfaces.http.service import Service


@dataclass(frozen=True, slots=True)
class HostCookie:
    """A cookie that no script reads, and no other site sends."""

    name: str
    path: str = "/"
    """Where it is sent without TLS; the prefix demands all paths."""
    samesite: Literal["lax", "strict"] = "strict"

    def read(self, connection: HTTPConnection, service: Service) -> str:
        """The value; empty without one."""
        return connection.cookies.get(self._name(service), "")

    def put(
        self, response: Response, service: Service, value: str, *, max_age_s: int | None = None
    ) -> None:
        """Without a `max_age_s` the browser keeps the cookie until it is closed."""
        response.set_cookie(
            self._name(service),
            value,
            max_age=max_age_s,
            path="/" if service.settings.is_https else self.path,
            httponly=True,
            samesite=self.samesite,
            secure=service.settings.is_https,
        )

    def remove(self, response: Response, service: Service) -> None:
        """With the same attributes: a browser ignores another form of a name with the prefix."""
        self.put(response, service, "", max_age_s=0)

    def _name(self, service: Service) -> str:
        return f"__Host-{self.name}" if service.settings.is_https else self.name


ACCESS_COOKIE = HostCookie("cellwall_access")
REFRESH_COOKIE = HostCookie("cellwall_refresh", path="/v1/auth")
FORM_COOKIE = HostCookie("cellwall_form")
OIDC_COOKIE = HostCookie("cellwall_oidc", path="/v1/auth/oidc", samesite="lax")
"""Lax: the provider sends the browser back from its own site."""
