"""Tokens of ports: the bound of one account."""

from __future__ import annotations

import pytest

from cellwall.admin.accounts import Identity
from cellwall.interfaces.previews.grants import PreviewGrants


@pytest.mark.requirement("SRV-3")
def test_links_of_one_account_never_end_those_of_another() -> None:
    grants = PreviewGrants()
    ann, bob = _identity("usr_ann"), _identity("usr_bob")
    kept, _ = grants.issue(ann, "sbx_a", 8000, lifetime_s=60)
    first, _ = grants.issue(bob, "sbx_b", 8000, lifetime_s=60)
    assert grants.find(first, "sbx_b", 8000) is not None  # the control
    for _ in range(1_000):
        last, _ = grants.issue(bob, "sbx_b", 8000, lifetime_s=60)
    assert grants.find(first, "sbx_b", 8000) is None  # the oldest of the same account
    assert grants.find(last, "sbx_b", 8000) is not None
    assert grants.find(kept, "sbx_a", 8000) is not None


def _identity(user_id: str) -> Identity:
    return Identity(
        user_id=user_id,
        name=user_id,
        role="user",
        teams=frozenset(),
        credential="jti_1",
        expires_s=1.0,
    )
