"""Brackets that some programs read as open and others as closed are not taken for closed."""

from __future__ import annotations

import pytest

from cellwall.policy.commands.brackets import is_closed


@pytest.mark.parametrize(
    "pattern", ["", "abc", "[abc]", "[^abc]x[d]", "[[:alpha:]_]", r"[\/]", r"\[x", r"[a\n]"]
)
def test_closed_by_every_reading(pattern: str):
    assert is_closed(pattern)


@pytest.mark.parametrize("pattern", ["[", "[^", "[]", "[[:alpha:]", r"[\]", "[a", "x[", "[[.]"])
def test_open_by_some_reading(pattern: str):
    assert not is_closed(pattern)
