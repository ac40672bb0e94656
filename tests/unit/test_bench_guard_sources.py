"""The mean over sources in bench/: authors are left out whole, sources weigh alike."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from guard_families import Text, operating_point
from guard_sources import author, author_folds, expected, render

pytestmark = pytest.mark.requirement("GRD-10")
_AUTHORS = [
    Text(f"{head}written {name}", not head, "x") for name in "abc" for head in ("", "near ")
]


def test_an_author_is_left_out_with_the_ordinary_texts() -> None:
    made = author_folds([*_AUTHORS, Text("own", True, "x")])
    assert sorted(name for fold in made for name in fold) == sorted(
        text.family for text in _AUTHORS
    )
    for fold in made:
        assert all(f"near {name}" in fold for name in fold if not name.startswith("near "))
    assert (author("near written a"), author("found b"), author("near about")) == ("a", "b", "")


def test_sources_weigh_alike_however_many_sets_they_have() -> None:
    sets = [Text(name, True, "x") for name in ("many_one", "many_two", "many_three", "direct_b")]
    kinds = [Text("mail", False, "x")] * 4
    point = operating_point([*sets, *kinds], [5.0, 5.0, 5.0, 0.0, *([1.0] * 4)], 0.01)
    found = expected(point, _AUTHORS, [2.0, 0.0, 0.0, 0.0, 0.0, 3.0])
    assert found.sources == {
        "many": 1.0,
        "direct_b": 0.0,
        "author of a": 1.0,
        "author of b": 0.0,
        "author of c": 0.0,
    }
    assert found.mean == pytest.approx(0.4)
    assert {name: share.rate for name, share in found.near.items()} == {"a": 0, "b": 0, "c": 1}
    low, high = found.interval
    assert 0 <= low < found.mean < high <= 1
    assert found.interval == (low, high)
    assert "mean recall over 5 sources 40.0%" in render(found)
