"""The endpoint as an OAuth protected resource: its metadata and challenge (RFC 9728, RFC 6750)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from cellwall.core.types import Json, Permission

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedResource:
    """The address under which clients reach the endpoint; it is the audience of their tokens."""

    url: str
    issuer: str

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
            "scopes_supported": [each.value for each in Permission],
        }

    def challenge(self, *, is_token_wrong: bool) -> str:
        """For `WWW-Authenticate`. No error where no token came (RFC 6750, section 3.1)."""
        error = 'error="invalid_token", ' if is_token_wrong else ""
        return f'Bearer realm="cellwall", {error}resource_metadata="{self.metadata_url}"'
