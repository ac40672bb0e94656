"""Rules and classifier vote: what a rule says alone, and what it needs the classifier for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellwall.guard.detect.passages import PassageFinding, vote
from cellwall.guard.report import Hit

_MEDIUM = Hit(
    category="injection", severity="medium", rule="a", message="m", start=0, end=3, score=0.5
)
_HIGH = replace(_MEDIUM, severity="high")
_TASK = replace(_MEDIUM, category="task", rule="task.injected")
_SHORT = frozenset({"text over 300", "text of lines"})
_LONG = frozenset({"text over 3000", "text of lines"})


def severities(hits: list[Hit], finding: PassageFinding) -> list[str]:
    return [hit.severity for hit in vote(hits, finding)]


@pytest.mark.requirement("GRD-8")
@pytest.mark.parametrize(
    ("hits", "traits", "expected"),
    [
        ([_MEDIUM], _SHORT, ["medium"]),
        ([replace(_MEDIUM, category="tool-call")], _SHORT, ["low"]),
        ([_MEDIUM], _LONG, ["low"]),
        ([_HIGH], _SHORT, ["high"]),
        ([_HIGH], _LONG, ["low"]),
        ([replace(_MEDIUM, severity="critical")], _LONG, ["critical"]),
        ([_MEDIUM, replace(_HIGH, rule="b")], _LONG, ["medium", "high"]),
        ([_MEDIUM, replace(_HIGH, rule="b")], _LONG | {"text about attacks"}, ["low", "low"]),
        ([_MEDIUM, _MEDIUM], _LONG, ["low", "low"]),
        ([_HIGH] * 20, _LONG, ["high"] * 20),
        ([_HIGH] * 20, _LONG | {"text about attacks"}, ["low"] * 20),
        ([_TASK], _LONG, ["medium"]),
        ([_TASK], frozenset({"text over 120", "text of lines"}), ["low"]),
        ([_TASK], _LONG - {"text of lines"}, ["low"]),
        ([_TASK], _LONG | {"text to a reader"}, ["low"]),
        ([replace(_MEDIUM, category="hidden")], _LONG, ["medium"]),
    ],
)
def test_a_doubtful_finding_of_a_rule_is_only_marked_without_the_classifier(
    hits: list[Hit], traits: frozenset[str], expected: list[str]
) -> None:
    assert severities(hits, PassageFinding(traits=traits)) == expected
    assert severities(hits, PassageFinding(traits=traits, assents=True)) == [
        hit.severity for hit in hits
    ]


@pytest.mark.requirement("GRD-8")
def test_where_the_classifier_denies_only_what_is_critical_or_hidden_stands() -> None:
    hits = [_HIGH, replace(_MEDIUM, rule="b"), replace(_MEDIUM, severity="critical")]
    hits.append(replace(_MEDIUM, category="hidden"))
    assert severities(hits, PassageFinding(traits=_SHORT)) == [hit.severity for hit in hits]
    denied = PassageFinding(traits=_SHORT, denies=True)
    assert severities(hits, denied) == ["low", "low", "critical", "medium"]


@pytest.mark.requirement("GRD-8")
def test_an_address_with_a_gap_is_a_template_where_nothing_asks_to_fill_it() -> None:
    gap = replace(_HIGH, category="beacon", rule="beacon.image-holder")
    other = replace(gap, rule="beacon.image-data")
    assert severities([gap, other], PassageFinding(traits=_LONG)) == ["high", "high"]
    denied = PassageFinding(traits=_LONG, denies=True)
    assert severities([gap, other], denied) == ["low", "high"]
    tiny = PassageFinding(traits=frozenset({"text under 120"}), denies=True)
    assert severities([gap], tiny) == ["high"]


@pytest.mark.requirement("GRD-2")
def test_the_classifier_reports_what_no_rule_covers() -> None:
    own = replace(_MEDIUM, category="instruction", rule="passage.instruction", start=1, end=9)
    finding = PassageFinding(hits=(own,), traits=_SHORT, assents=True)
    assert [hit.rule for hit in vote([_MEDIUM], finding)] == ["a"]
    assert [hit.rule for hit in vote([], finding)] == ["passage.instruction"]
