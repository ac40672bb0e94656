"""Of several denials the first one is reported, in the order of the rules."""

from __future__ import annotations

from itertools import permutations

import pytest

from unit.policy.policies import bash, policy

pytestmark = pytest.mark.requirement("POL-5")

DENIALS = ("Read(notes.txt)", "Read(./a/**)", "Read(**/b/**)", "Read(**/c/*.txt)")


@pytest.mark.slow
@pytest.mark.parametrize("order", list(permutations(DENIALS)))
def test_the_first_of_several_denials_is_reported(order):
    made = policy(allow=["Bash(cat *)"], deny=order)
    decision = bash(made, "cat a/b/c/notes.txt")
    assert (decision.verdict.word, decision.rule) == ("deny", order[0])
