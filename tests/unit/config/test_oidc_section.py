"""The OpenID provider as configured (SRV-2)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cellwall.config.oidc_section import OidcSection

pytestmark = pytest.mark.requirement("SRV-2")
VALID = {"issuer": "https://login.example.com/realms/x", "client_id": "cellwall"}


def test_a_provider_needs_an_issuer_and_a_client():
    assert OidcSection().issuer == ""
    found = OidcSection(**VALID, role_claim="groups", roles={"admins": "administrator"})
    assert (found.issuer, found.new_users) == (VALID["issuer"], "refuse")


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "http://login.example.com"}, {"issuer": "login.example.com"},
        {"issuer": "https://"}, {"issuer": "https://u@h.example"}, {"issuer": "https://h.example/?a"},
        {"issuer": "https://h.example/#a"}, {"client_id": ""}, {"scopes": ("profile",)},
        {"algorithms": ("none",)}, {"algorithms": ("HS256",)}, {"new_users": "owner"},
        {"roles": {"admins": "owner"}}, {"roles": {"admins": "king"}}, {"ca_file": "ca.pem"},
    ],
)  # fmt: skip
def test_another_provider_is_refused(changes):
    with pytest.raises(ValidationError):
        OidcSection(**{**VALID, **changes})
