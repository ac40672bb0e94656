"""Names of the users inside."""

from __future__ import annotations

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.users_inside import no_second_user, parse_user


@pytest.mark.parametrize(
    ("name", "user"),
    [
        (None, "sandbox"),
        ("", "sandbox"),
        ("sandbox", "sandbox"),
        ("1000", "sandbox"),
        ("root", "root"),
        ("0", "root"),
    ],
)
def test_a_user_has_a_name_and_a_uid(name: object, user: str) -> None:
    assert parse_user(name) == user


@pytest.mark.parametrize(
    "name", ["Root", "root ", "00", "+0", "0:0", "root:root", "nobody", 0, True, ["root"], b"root"]
)
def test_any_other_name_is_refused(name: object) -> None:
    with pytest.raises(BadInput) as refused:
        parse_user(name)
    assert (refused.value.code, refused.value.code) == ("CW-NO-USER", no_second_user().code)
    assert refused.value.hint
