"""The protocol of bench/: families and kinds left out together, thresholds by rate, intervals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from guard_families import Share, Text, folds, load, operating_point, render
from guard_texts import TextWriter, merged


def _texts() -> list[Text]:
    attacks = [Text(name, True, "x") for name in ("a_one", "a_two", "direct_b", "direct_c")]
    return attacks + [Text(kind, False, "x") for kind in ("mail", "log", "code") for _ in range(4)]


@pytest.mark.requirement("GRD-10")
def test_a_source_is_left_out_whole_and_every_kind_once() -> None:
    made = folds(_texts())
    assert {"a_one", "a_two"} <= next(fold for fold in made if "a_one" in fold)
    assert sorted(name for fold in made for name in fold) == sorted(
        {text.family for text in _texts()}
    )
    with pytest.raises(BadInput, match="no attack"):
        folds([Text("mail", False, "x")])


@pytest.mark.requirement("GRD-8")
def test_recall_is_measured_at_a_rate_of_false_alarms() -> None:
    scores = [5.0, 0.5, 3.0, 0.0, 4.0, *([1.0] * 11)]
    point = operating_point(_texts(), scores, 0.09)
    assert (point.threshold, point.recall, point.false_alarms) == (1.0, 0.5, 1 / 12)
    assert point.worst == 0.25
    strict = operating_point(_texts(), scores, 0.01)
    assert (strict.threshold, strict.false_alarms, strict.recall) == (4.0, 0.0, 0.25)
    assert "a_one" in render(strict)


def test_the_interval_is_wilsons() -> None:
    low, high = Share(5, 10).interval
    assert (round(low, 3), round(high, 3)) == (0.237, 0.763)
    assert Share(0, 60).interval[0] == 0.0


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="sets"):
        load(tmp_path)


def test_written_texts_repeat_with_their_seed() -> None:
    first, again = TextWriter.of_seed(3), TextWriter.of_seed(3)
    texts = [first.attack() for _ in range(50)]
    assert texts == [again.attack() for _ in range(50)]
    assert len(set(texts)) > 40
    assert first.near_miss("about")


def test_written_texts_have_no_unfilled_slot() -> None:
    writer = TextWriter.of_seed(3)
    texts = [writer.attack() for _ in range(50)]
    texts += [writer.request("tools") for _ in range(50)]
    texts += [writer.near_miss("email") for _ in range(50)]
    assert any("@" in text for text in texts)
    assert not any("{" + name + "}" in text for text in texts for name in ("act", "mail", "word"))


def test_two_lists_with_one_name_are_refused() -> None:
    parts = {"mail": ["Dear {name},"]}
    assert merged({"name": ["Ann"]}, parts) == {"name": ["Ann"], **parts}
    with pytest.raises(BadInput, match="mail"):
        merged({"mail": ["ann@example.net"]}, parts)
