"""Ownership is checked in one function; addresses are counted by network (RBAC-3, RBAC-4)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.accounts.identity import Identity, address_subject, require_own
from cellwall.accounts.names import canonical_name
from cellwall.core.errors import BadInput, NotFound


@dataclass(frozen=True)
class Thing:
    owner_id: str
    team_id: str | None = None


def who(
    user_id: str = "usr_ann", teams: frozenset[str] = frozenset(), role: str = "user"
) -> Identity:
    return Identity(
        user_id=user_id, name="ann", role=role, teams=teams, credential="jti_1", expires_s=1.0
    )


@pytest.mark.requirement("RBAC-3")
def test_the_owner_and_the_team_have_access():
    own, shared = Thing("usr_ann"), Thing("usr_bob", "team_1")
    assert require_own(own, who(), what="session") is own
    assert require_own(shared, who(teams=frozenset({"team_1"})), what="session") is shared


@pytest.mark.requirement("RBAC-3")
@pytest.mark.parametrize("role", ["guest", "user", "power-user", "administrator", "owner"])
def test_a_foreign_resource_answers_exactly_like_a_missing_one(role):
    answers = set()
    for thing in (None, Thing("usr_bob"), Thing("usr_bob", "team_1"), Thing(""), Thing("", "")):
        with pytest.raises(NotFound) as caught:
            require_own(thing, who(role=role), what="session")
        error = caught.value
        answers.add((error.code, error.message, error.hint, error.detail))
    assert len(answers) == 1


@pytest.mark.requirement("RBAC-3")
def test_nobody_owns_what_has_no_owner():
    with pytest.raises(NotFound):
        require_own(Thing(""), who(user_id=""), what="session")
    with pytest.raises(NotFound):
        require_own(None, who(user_id="", teams=frozenset({""})), what="session")


@given(st.sampled_from(["a", "b"]), st.sampled_from(["a", "b"]), st.sets(st.sampled_from("xy")),
       st.sampled_from(["x", "y", None]))  # fmt: skip
def test_access_is_ownership_or_membership_and_nothing_else(owner, user, teams, team):
    identity = who(user, frozenset(teams))
    try:
        require_own(Thing(owner, team), identity, what="session")
        has_access = True
    except NotFound:
        has_access = False
    assert has_access == (owner == user or team in teams)


@pytest.mark.requirement("RBAC-4")
@pytest.mark.parametrize(
    ("address", "subject"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("unix", "unknown"),
        ("192.0.2.7:80", "unknown"),
    ],
)
def test_how_addresses_are_counted(address, subject):
    assert address_subject(address) == f"address:{subject}"


@pytest.mark.parametrize("name", ["Ann", "ann.smith@example.com", "a" * 64, "7of9"])
def test_names_have_one_spelling(name):
    assert canonical_name(name) == name.lower()


@pytest.mark.parametrize(
    "name", ["", "a" * 65, "-a", "a b", "añn", "\u0430nn", "ann\n", "ﬁ", "\u212a", "a/b"]
)
def test_names_that_are_refused(name):
    with pytest.raises(BadInput):
        canonical_name(name)
