"""What a person sees of a rule that an approval writes."""

from __future__ import annotations

import pytest

from cellwall.interfaces.cli.approvals import written_rule
from cellwall.policy.rule_parser import MAX_RULE_CHARACTERS


@pytest.mark.requirement("POL-13")
def test_the_longest_rule_is_shown_whole_before_it_is_signed() -> None:
    end = "; rm -rf /)"
    rule = f"Bash({'x' * 2000} && curl example.com {'x' * 2000}"
    rule = rule[: MAX_RULE_CHARACTERS - len(end)] + end
    told = written_rule(rule)
    assert told.replace("\n|+", "") == f"This rule is written to your policy:\n| {rule}\n"
    assert written_rule("") == ""
