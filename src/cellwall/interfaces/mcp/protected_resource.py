"""The endpoint as an OAuth protected resource: its metadata and challenge (RFC 9728, RFC 6750)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from cellwall.core.types import Json, Permission

WELL_KNOWN = "/.well-known/oauth-protected-resource"
TOOL_SCOPES = frozenset(
    {
        Permission.FILES_READ,
        Permission.FILES_WRITE,
        Permission.SANDBOX_EXECUTE,
        Permission.NETWORK_USE,
        Permission.PACKAGES_INSTALL,
    }
)
"""What Cellwall's own tools need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedResource:
    """The address under which clients reach the endpoint; it is the audience of their tokens."""

    url: str
    issuer: str
    with_gateway: bool = False
    """Whether tools of other servers are offered as well."""

    @property
    def tool_scopes(self) -> frozenset[Permission]:
        """What the tools need; a token without any of them can do nothing here."""
        return TOOL_SCOPES | {Permission.TOOLS_CALL} if self.with_gateway else TOOL_SCOPES

    @property
    def metadata_path(self) -> str:
        """Where clients look first; `WELL_KNOWN` alone is what they try next."""
        return WELL_KNOWN + urlsplit(self.url).path

    @property
    def metadata_url(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{self.metadata_path}"

    def metadata(self) -> dict[str, Json]:
        return {
            "resource": self.url,
            "resource_name": "Cellwall",
            "authorization_servers": [self.issuer],
            "bearer_methods_supported": ["header"],
            # Answers to questions count where the token may answer.
            "scopes_supported": sorted({*self.tool_scopes, Permission.APPROVALS_ANSWER}),
        }

    def challenge(self, error: Literal["", "invalid_token", "insufficient_scope"]) -> str:
        """For `WWW-Authenticate`. No error where no token came (RFC 6750, section 3.1)."""
        stated = f'error="{error}", ' if error else ""
        place = f'resource_metadata="{self.metadata_url}"'
        scopes = " ".join(sorted(self.tool_scopes))
        return f'Bearer realm="cellwall", {stated}scope="{scopes}", {place}'
