"""How sightings become one answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.outcomes import SEVERITIES, Severity
from cellwall.guard.detect.scoring import (
    CAPS,
    combine_scores,
    limit_hits,
    merge_hits,
    raise_disguised,
    rank,
)
from cellwall.guard.report import Hit


def hit(
    start: int,
    end: int,
    *,
    category: str = "injection",
    severity: Severity = "medium",
    score: float = 0.5,
    via: tuple[str, ...] = (),
    rule: str = "r",
) -> Hit:
    return Hit(category=category, severity=severity, rule=rule, message="m", start=start, end=end,
               score=score, via=via)  # fmt: skip


HITS = st.lists(
    st.builds(
        lambda start, length, category, severity, score: hit(
            start, start + length, category=category, severity=severity, score=score
        ),
        st.integers(0, 500),
        st.integers(1, 30),
        st.sampled_from([*CAPS, "own"]),
        st.sampled_from(SEVERITIES),
        st.floats(0.01, 1),
    ),
    max_size=40,
)


@given(HITS)
def test_a_score_is_between_nothing_and_certainty_and_more_hits_never_lower_it(
    hits: list[Hit],
) -> None:
    score = combine_scores(hits)
    assert 0 <= score <= 1
    assert combine_scores(hits[:-1]) <= score + 1e-9


def test_a_second_kind_of_evidence_counts_for_more_than_the_same_again() -> None:
    flood = [hit(n, n + 1, category="role-marker") for n in range(100)]
    assert combine_scores(flood) == pytest.approx(CAPS["role-marker"])
    two = [hit(0, 1, category="role-marker"), hit(5, 6, category="exfiltration")]
    assert combine_scores(two) == pytest.approx(0.75)
    assert combine_scores([]) == 0


def test_overlapping_hits_of_a_category_become_the_strongest_over_the_whole_stretch() -> None:
    found = merge_hits(
        [
            hit(5, 20, severity="high", rule="b"),
            hit(0, 10),
            hit(30, 40),
            hit(8, 12, category="task"),
        ]
    )
    assert found == [
        hit(0, 20, severity="high", rule="b"),
        hit(8, 12, category="task"),
        hit(30, 40),
    ]


def test_the_text_itself_is_told_before_a_decoded_form_of_it() -> None:
    assert merge_hits([hit(0, 9, via=("html",)), hit(0, 9)]) == [hit(0, 9)]


@given(HITS, st.integers(1, 10))
def test_of_a_flood_every_place_stays_covered_and_the_worst_stays_known(
    hits: list[Hit], most: int
) -> None:
    kept = limit_hits(hits, most)
    assert len(kept) <= max(most, 0)
    assert all(any(one.start <= old.start and old.end <= one.end for one in kept) for old in hits)
    worst = max((rank(old.severity) for old in hits), default=-1)
    assert max((rank(one.severity) for one in kept), default=-1) == worst


@pytest.mark.parametrize(
    ("hits", "severities"),
    [
        ([hit(0, 9, via=("rot13",))], ["high"]),
        ([hit(0, 9, via=("tags",), category="task")], ["high"]),
        ([hit(0, 9, via=("url", "base64"))], ["high"]),
        # Mail carries whole texts in base64; a task in one is a task, no more.
        ([hit(0, 9, via=("base64",), category="task")], ["medium"]),
        ([hit(0, 9, via=("html",))], ["medium"]),
        ([hit(0, 9, via=("rot13",), severity="low")], ["low"]),
        ([hit(0, 9), hit(50, 52, category="hidden")], ["high", "medium"]),
        ([hit(0, 9), hit(5000, 5002, category="hidden")], ["medium", "medium"]),
        ([hit(0, 9), hit(50, 52, category="hidden", severity="low")], ["medium", "low"]),
    ],
)
def test_an_instruction_in_a_disguise_is_at_least_high(
    hits: list[Hit], severities: list[str]
) -> None:
    assert [one.severity for one in raise_disguised(hits)] == severities
