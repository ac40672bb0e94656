"""The verdict on an attack rests on its control and on facts from outside, not on its own words."""

from __future__ import annotations

import pytest

from cellwall.redteam.attack import NOT_TRIED, AttackVerdict, Observation, judge
from cellwall.redteam.catalog import attacks

HELD, THROUGH, NOT_PROVED = AttackVerdict.HELD, AttackVerdict.THROUGH, AttackVerdict.NOT_PROVED
GOT = Observation("through", "it worked")
EPERM = Observation("refused", "EPERM")


@pytest.mark.requirement("RED-1")
@pytest.mark.parametrize(
    ("control", "attempt", "effects", "verdict"),
    [
        (GOT, EPERM, [], HELD),
        (GOT, GOT, [], THROUGH),
        (EPERM, GOT, [], THROUGH),
        (GOT, EPERM, ["a file of the host changed"], THROUGH),
        (EPERM, EPERM, [], NOT_PROVED),
        (NOT_TRIED, EPERM, [], NOT_PROVED),
        (Observation("lacks", "cgroup v1"), EPERM, [], NOT_PROVED),
        (Observation("refused", "ENOSYS"), EPERM, [], NOT_PROVED),
        (GOT, NOT_TRIED, [], NOT_PROVED),
        (GOT, Observation("lacks", "nothing there"), [], NOT_PROVED),
        (GOT, Observation("broken", "KeyError"), [], NOT_PROVED),
    ],
)
def test_only_a_refusal_with_a_control_that_succeeded_is_held(control, attempt, effects, verdict):
    result = judge(attacks()[0], control=control, attempt=attempt, effects=effects)
    assert (result.verdict, bool(result.reason)) == (verdict, True)


@pytest.mark.requirement("RED-1")
@pytest.mark.parametrize(
    "word",
    [
        None,
        "held",
        ["held", ""],
        ["refused"],
        ["refused", 1],
        ["refused", "a", "b"],
        {"refused": ""},
    ],
)
def test_a_word_that_no_attempt_reports_is_a_broken_attempt(word):
    assert Observation.of(word).kind == "broken"
    assert judge(attacks()[0], control=GOT, attempt=Observation.of(word)).verdict is NOT_PROVED
