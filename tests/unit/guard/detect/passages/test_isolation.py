"""A passage counts by how it stands out among the others of its text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.guard.detect.passages.isolation import IsolationSettings, isolated

_SETTINGS = IsolationSettings(rank=3, beside=2, floor=-5.0, share=0.5, most=3.0)


@pytest.mark.requirement("GRD-2")
def test_instructions_all_over_a_text_count_less_than_one_in_one_place() -> None:
    alone = [-9.0] * 12
    alone[5] = 2.0
    assert isolated(alone, _SETTINGS) == alone
    together = list(alone)
    together[4] = together[6] = together[7] = 2.0  # one attack of four sentences
    assert isolated(together, _SETTINGS)[5] == 2.0
    everywhere = [2.0] * 12
    assert isolated(everywhere, _SETTINGS) == [-1.0] * 12


@pytest.mark.requirement("GRD-2")
def test_decoys_take_off_no_more_than_the_limit() -> None:
    scores = [9.0] * 500
    scores[250] = 6.0
    assert isolated(scores, _SETTINGS)[250] == 3.0


@pytest.mark.requirement("GRD-11")
@given(st.lists(st.floats(-30, 30), max_size=60))
def test_a_score_never_rises(scores: list[float]) -> None:
    found = isolated(scores, _SETTINGS)
    assert len(found) == len(scores)
    assert all(
        before - _SETTINGS.most <= after <= before
        for before, after in zip(scores, found, strict=True)
    )
