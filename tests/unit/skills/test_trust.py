"""Whose signature counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError
from cellwall.core.keys import make_key
from cellwall.skills.trust import own_key, signing_key, trusted_keys


def test_the_own_key_is_made_once_and_trusted_first(state_home, tmp_path):
    assert own_key(state_home) is None
    assert trusted_keys(state_home, []) == ()
    made = signing_key(state_home).public
    assert signing_key(state_home).public == made
    other = make_key(str(tmp_path / "k.pem"), "team").public
    assert trusted_keys(state_home, [str(other), str(made)]) == (made, other)
    assert Path(state_home, "keys", "skills.pem").stat().st_mode & 0o777 == 0o600


def test_a_key_that_others_may_read_is_not_a_key_less_but_a_refusal(state_home):
    signing_key(state_home)
    Path(state_home, "keys", "skills.pem").chmod(0o644)
    with pytest.raises(CellwallError) as raised:
        trusted_keys(state_home, [])
    assert raised.value.code == "CW-KEY-UNSAFE"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"signer": "team"}, "CW-USAGE"),
        ({"path": "/nowhere/k.pem"}, "CW-KEY"),
        ({"path": "/dev/null"}, "CW-KEY-UNSAFE"),
    ],
)
def test_what_is_no_key_is_told(state_home, options, code):
    with pytest.raises(CellwallError) as raised:
        signing_key(state_home, **options)
    assert raised.value.code == code


def test_a_name_that_no_note_can_hold_is_told(state_home, tmp_path):
    make_key(str(tmp_path / "k.pem"), "team")
    with pytest.raises(CellwallError) as raised:
        signing_key(state_home, path=str(tmp_path / "k.pem"), signer="the team")
    assert raised.value.code == "CW-USAGE"
