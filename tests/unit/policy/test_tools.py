"""A rule for one tool of a group speaks of all of it; a server's rule of that server alone."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from cellwall.policy.tools import covers

ALLOW, DENY = Verdict.ALLOW, Verdict.DENY


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize(
    ("rule", "tool", "is_covered"),
    [
        ("Edit", "Write", True),
        ("Write", "NotebookEdit", True),
        ("MultiEdit", "Edit", True),
        ("Read", "Grep", True),
        ("Glob", "LS", True),
        ("Read", "Write", False),
        ("Bash", "Code", False),
        ("Task", "Task", True),
        ("Task", "Agent", False),
        ("Bash", "bash", False),
        ("mcp__git", "mcp__git__push", True),
        ("mcp__git", "mcp__github__push", False),
        ("mcp__git", "mcp__git", True),
        ("mcp__git__*", "mcp__git__push", True),
        ("mcp__git__push", "mcp__git__push", True),
        ("mcp__git__push", "mcp__git__push_all", False),
        ("mcp__git__get_*", "mcp__git__get_x", True),
        ("mcp__git__get_*", "mcp__git__set_x", False),
        ("mcp__a__b__c", "mcp__a__b__c", True),
        ("Read", "mcp__git__push", False),
    ],
)
def test_a_rule_covers_its_group(rule: str, tool: str, is_covered: bool, verdict: Verdict) -> None:
    assert covers(rule, tool, verdict) is is_covered


@pytest.mark.parametrize("tool", ["mcp__git__hub__x", "mcp__git___x", "mcp__git____"])
@pytest.mark.parametrize("rule", ["mcp__git", "mcp__git__*"])
def test_a_name_with_two_readings_is_denied_but_not_allowed(rule: str, tool: str) -> None:
    """A server may call itself `git__hub` or `git_`."""
    assert not covers(rule, tool, ALLOW)
    assert covers(rule, tool, DENY)
    assert covers(tool, tool, ALLOW)
