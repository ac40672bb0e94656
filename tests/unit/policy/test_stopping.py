"""`stop = true`: a denial that also stops the agent, wherever in a call the rule matches."""

from __future__ import annotations

from functools import cache

import pytest

from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer

RULES = """
[permissions]
allow = ["Bash", "Read", "Write"]
deny = ["Bash(curl *)", "Read(secret.txt)"]

[[rule]]
verdict = "deny"
rule = "Bash(curl evil.example*)"
stop = true

[[rule]]
verdict = "deny"
rule = "Read(*.key)"
stop = true

[[rule]]
verdict = "deny"
rule = "Bash(rm -rf /)"
stop = true
"""


@cache
def policy() -> Policy:
    file = parse_policy(RULES, file="p", name="p.toml", layer=Layer.USER, folder="/w")
    return Policy.of(file.rules)


def judged(tool: str, **given: str) -> Decision:
    return policy().check(ToolCall(tool, given, "/w", "/home/u"))


def stops(decision: Decision) -> bool:
    return decision.verdict is Verdict.DENY and (
        decision.stops or any(stops(part) for part in decision.parts)
    )


@pytest.mark.requirement("POL-5")
@pytest.mark.parametrize(
    ("call", "stopping"),
    [
        ({"tool": "Bash", "command": "ls"}, False),
        ({"tool": "Bash", "command": "curl other.example"}, False),
        ({"tool": "Bash", "command": "curl evil.example/x"}, True),
        ({"tool": "Bash", "command": "ls | (cd /; curl evil.example)"}, True),
        ({"tool": "Bash", "command": "curl other.example; curl evil.example"}, True),
        ({"tool": "Bash", "command": "sh -c 'curl evil.example'"}, True),
        ({"tool": "Bash", "command": "rm -rf /"}, True),  # a built-in denial is told first
        ({"tool": "Bash", "command": "cat a.key"}, True),
        ({"tool": "Bash", "command": "cat < a.key"}, True),
        ({"tool": "Read", "file_path": "a.key"}, True),
        ({"tool": "Read", "file_path": "secret.txt"}, False),
        ({"tool": "Write", "file_path": "a.txt"}, False),
        ({"tool": "Unknown", "x": "a.key"}, False),
    ],
)
def test_a_denial_by_a_rule_that_stops_says_so(call, stopping):
    assert stops(judged(**call)) is stopping


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('stop = "yes"', "neither true nor false"),
        ("stop = 1", "neither true nor false"),
        ("stops = true", "stops"),
    ],
)
def test_stop_is_true_or_false(change, told):
    text = f'[[rule]]\nverdict = "deny"\nrule = "Bash"\n{change}\n'
    with pytest.raises(ConfigError, match=told):
        parse_policy(text, file="p", name="p.toml", layer=Layer.USER, folder="/w")


@pytest.mark.parametrize("verdict", ["allow", "ask"])
def test_only_a_denial_stops(verdict):
    text = f'[[rule]]\nverdict = "{verdict}"\nrule = "Bash"\nstop = true\n'
    with pytest.raises(ConfigError, match="only a rule that denies stops"):
        parse_policy(text, file="p", name="p.toml", layer=Layer.USER, folder="/w")
    plain = text.replace("true", "false")
    assert parse_policy(plain, file="p", name="p.toml", layer=Layer.USER, folder="/w").rules
