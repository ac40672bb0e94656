"""What a person sees of a project's rules before they count: all of them (POL-7)."""

from __future__ import annotations

import pytest

from cellwall.admin.policy_trust import Offered
from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.policy_trust import rules_text
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer


def offered(text: str) -> Offered:
    name = "policy.toml"
    file = parse_policy(text, file=name, name=name, layer=Layer.PROJECT, folder="/p")
    return Offered("/p/policy.toml", name, file.sha256, file.rules, "/p/policy.toml")


def listed(verdict: str, rules: list[str]) -> str:
    return f"[permissions]\n{verdict} = {rules!r}\n".replace("'", '"')


@pytest.mark.requirement("POL-7")
def test_no_rule_is_hidden_among_many_harmless_ones() -> None:
    rules = [f"Bash(pytest tests/test_with_a_long_name_{number:03}.py)" for number in range(300)]
    rules[150:150] = ["Bash", "Bash(curl *)", "Read(//**)"]
    told = rules_text(offered(listed("allow", rules)))
    assert [line[2:] for line in told.splitlines() if line.startswith("| ")] == rules
    assert told.splitlines()[-1] == "All rules of the file are above: 303 allow, 0 ask, 0 deny."


@pytest.mark.requirement("POL-7")
def test_more_rules_than_anybody_reads_are_refused() -> None:
    rules = [f"Bash(pytest {number})" for number in range(1000)]
    with pytest.raises(BadInput) as refused:
        rules_text(offered(listed("deny", rules)))
    assert (refused.value.code, bool(refused.value.hint)) == ("CW-POLICY-TOO-LONG", True)


def test_a_long_rule_is_shown_to_its_end() -> None:
    rule = f"Bash(echo {'x' * 2000} EVIL {'x' * 2000})"
    told = rules_text(offered(listed("allow", [rule]))).replace("\n|+", "")
    assert f"| {rule}\n" in told


@pytest.mark.requirement("POL-7")
def test_what_a_rule_answers_and_says_stands_with_it_and_what_allows_comes_first() -> None:
    text = listed("deny", ["Bash(rm *)"]) + (
        '[[rule]]\nverdict = "allow"\nrule = "Bash(git push)"\nanswers = "Bash(git *)"\n'
        'reason = "so it is"\n'
    )
    told = rules_text(offered(text))
    assert told.partition("\n")[2] == (
        "It allows, without a question:\n"
        "| Bash(git push)\n"
        "  but only where this rule asks:\n"
        "| Bash(git *)\n"
        "  because, as it says:\n"
        "| so it is\n"
        "It denies:\n"
        "| Bash(rm *)\n"
        "All rules of the file are above: 1 allow, 0 ask, 1 deny.\n"
    )
