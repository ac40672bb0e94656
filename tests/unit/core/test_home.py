"""Where one user's state lies."""

from __future__ import annotations

import os
import pwd

import pytest

from cellwall.core.home import cache_path, state_path, user_home

_OF_THE_ACCOUNT = pwd.getpwuid(os.geteuid()).pw_dir


def test_the_home_of_the_variable():
    assert user_home({"HOME": "/home/ann"}) == "/home/ann"
    assert state_path({"HOME": "/home/ann"}) == "/home/ann/.local/state/cellwall"
    assert cache_path({"HOME": "/home/ann"}) == "/home/ann/.cache/cellwall"


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "here"}], ids=str)
def test_without_an_absolute_home_the_state_is_that_of_the_account(environ: dict[str, str]):
    """With an empty one, root's log would lie in `/.local`; with a relative one, in each directory."""
    assert user_home(environ) == _OF_THE_ACCOUNT
    assert state_path(environ) == f"{_OF_THE_ACCOUNT}/.local/state/cellwall"
    assert cache_path(environ) == f"{_OF_THE_ACCOUNT}/.cache/cellwall"


def test_variables_that_name_the_place_come_first():
    environ = {"HOME": "/home/ann", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/c"}
    assert (state_path(environ), cache_path(environ)) == ("/s/cellwall", "/c/cellwall")
    assert state_path(environ | {"CELLWALL_HOME": "/own"}) == "/own"
