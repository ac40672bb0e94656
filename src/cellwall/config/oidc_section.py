"""The section of the OpenID provider (SRV-2)."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from cellwall.config.fields import Section, absolute_path, listed, one_of, word
from cellwall.core.types import OWNER, ROLE_NAMES

_ALGORITHMS = ("RS256", "PS256", "ES256", "ES384", "Ed25519")


def _check_issuer(text: str) -> str:
    if not text:
        return text
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme == "https" and bool(parts.hostname) and parts.username is None
    except ValueError:
        is_valid, parts = False, urlsplit("")
    if not is_valid or parts.query or parts.fragment or not text.isprintable():
        raise PydanticCustomError(
            "issuer", 'is not an issuer. Write for example "https://login.example.com".'
        )
    return text


def _check_roles(table: dict[str, str]) -> dict[str, str]:
    # A provider that is taken over must not become the owner.
    known = [role for role in ROLE_NAMES if role != OWNER]
    if not set(table.values()) <= set(known):
        raise PydanticCustomError(
            "role", f"maps to a role that is unknown or not for claims. Known: {', '.join(known)}."
        )
    return table


class OidcSection(Section):
    """Sign-in at an OpenID provider (SRV-2). Left out: passwords and passkeys only."""

    issuer: Annotated[str, AfterValidator(_check_issuer)] = Field(
        default="", description="the provider, exactly as it names itself", max_length=255
    )
    client_id: str = Field(
        default="", description="this service as the provider knows it", max_length=255
    )
    client_secret_file: Annotated[str, absolute_path("/etc/cellwall/oidc")] | None = Field(
        default=None,
        description="its secret, in a file of mode 0600; left out for a public client",
        max_length=4096,
    )
    scopes: tuple[str, ...] = listed(("openid", "profile"), "scopes to ask for", most=20)
    algorithms: tuple[Annotated[str, one_of(*_ALGORITHMS, noun="an algorithm")], ...] = listed(
        ("RS256", "ES256", "PS256"), "signatures of ID tokens that count", most=5
    )
    ca_file: Annotated[str, absolute_path("/etc/ssl/company.pem")] | None = Field(
        default=None,
        description="certificate authorities of the provider, in place of the system's",
        max_length=4096,
    )
    new_users: Annotated[str, one_of("refuse", "guest")] = word(
        "the first sign-in of somebody without an account: refuse it, or create a guest",
        "refuse",
        "guest",
    )
    name_claim: str = Field(
        default="preferred_username", description="the name of a new account", max_length=64
    )
    role_claim: str = Field(
        default="",
        description="the claim that sets the role of accounts created here, such as `groups`; left "
        "out, they stay as they are",
        max_length=64,
    )
    roles: Annotated[dict[str, str], AfterValidator(_check_roles)] = Field(
        default={},
        description="value of that claim to role; the highest counts, without one a guest",
        max_length=1000,
    )

    @model_validator(mode="after")
    def _check_client(self) -> OidcSection:
        if self.issuer and not self.client_id:
            raise PydanticCustomError("client_id", "is missing. The provider gives it.")
        if "openid" not in self.scopes:
            raise PydanticCustomError("scopes", "lacks openid.")
        return self
