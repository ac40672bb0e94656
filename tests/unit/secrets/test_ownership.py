"""Names of secrets by their owner: nobody can write the name of another's (RBAC-3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.types import Principal
from cellwall.secrets.leases import check_secret_name
from cellwall.secrets.ownership import prefix_of, shown_name, stored_name

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,40}", fullmatch=True)
USERS = st.text(min_size=1, max_size=64)


@pytest.mark.requirement("RBAC-3")
@given(NAMES, USERS, NAMES, USERS)
def test_two_users_never_name_the_same_secret(name: str, user: str, other: str, foe: str) -> None:
    mine, theirs = Principal(user, "http"), Principal(foe, "mcp-http")
    stored = stored_name(name, mine)
    assert check_secret_name(stored) == stored
    assert shown_name(stored) == name
    if user != foe:
        assert stored_name(other, theirs) != stored
        assert stored_name(stored, theirs) != stored
        assert not stored.startswith(prefix_of(theirs))


@given(NAMES, USERS)
def test_interfaces_of_one_account_share_its_secrets_and_a_local_user_has_none_of_them(
    name: str, user: str
) -> None:
    assert stored_name(name, Principal(user, "http")) == stored_name(
        name, Principal(user, "mcp-http")
    )
    for interface in ("cli", "sdk", "mcp", "hook"):
        assert stored_name(name, Principal(user, interface)) == name
