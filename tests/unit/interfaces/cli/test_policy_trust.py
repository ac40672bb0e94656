"""What a person sees of a project's rules before they count: all of them (POL-7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.admin.policy_trust import Offered
from cellwall.admin.standing_grants import WaitingGrant
from cellwall.core.errors import BadInput
from cellwall.core.standing_grants import GrantKind, StandingGrant
from cellwall.interfaces.cli.grant_text import shown
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


@pytest.mark.requirement("POL-7", "POL-13")
def test_all_that_is_in_force_of_a_rule_is_shown() -> None:
    """A denial that excludes all files denies nothing, and an allowed package may lift limits."""
    text = (
        '[[rule]]\nverdict = "deny"\nrule = "Read(~/.ssh/**)"\nunless = ["*"]\nstop = true\n'
        '[[rule]]\nverdict = "allow"\nrule = "Install(pypi:x)"\n'
        'lifts = ["age", "source"]\nuntil = 2099-01-01\n'
    )
    name = "policy.toml"
    file = parse_policy(text, file=name, name=name, layer=Layer.SESSION, folder="/p")
    place = "/p/policy.toml"
    told = rules_text(Offered(place, name, file.sha256, file.rules, place))
    assert told.partition("\n")[2] == (
        "It allows, without a question:\n"
        "| Install(pypi:x)\n"
        "  and it lifts the limit:\n"
        "| age\n"
        "  and it lifts the limit:\n"
        "| source\n"
        "  until the end of this day:\n"
        "| 2099-01-01\n"
        "It denies:\n"
        "| Read(~/.ssh/**)\n"
        "  but not for files named:\n"
        "| *\n"
        "  and then it stops the agent:\n"
        "| stop = true\n"
        "All rules of the file are above: 1 allow, 0 ask, 1 deny.\n"
    )


def test_whether_a_file_is_of_one_project_is_known_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLWALL_CONFIG", str(tmp_path / ".cellwall" / "config.toml"))
    places = ("/p/.cellwall/policy.toml", "/p/policy.toml", f"{tmp_path}/.cellwall/policy.toml")
    found = [Offered(each, each, "", (), each).is_project for each in places]
    assert found == [True, False, False]


@pytest.mark.requirement("POL-13")
def test_a_name_that_looks_like_another_is_pointed_out() -> None:
    """Attack: a Cyrillic letter in the name of a well-known host."""
    rules = ["WebFetch(domain:github.com)", "WebFetch(domain:g\u0456thub.com)"]
    told = rules_text(offered(listed("allow", rules))).splitlines()
    careful = [number for number, line in enumerate(told) if "CAREFUL" in line]
    assert [told[number - 1] for number in careful] == [f"| {rules[1]}"]  # the other is the control
    grant = StandingGrant(GrantKind.MCP, "notes", "")
    details = ("domains github.com", "domains g\u0456thub.com")
    text = shown([WaitingGrant(grants=(grant,), title="MCP server notes", details=details)])
    assert [line for line in text.splitlines() if "CAREFUL" in line] == [text.splitlines()[-1]]


@pytest.mark.requirement("POL-13")
def test_one_long_line_does_not_scroll_the_others_away() -> None:
    grant = StandingGrant(GrantKind.MCP, "notes", "")

    def told(length: int) -> str:
        details = (f"env PATH={'x' * length}",)
        return shown([WaitingGrant(grants=(grant,), title="MCP server notes", details=details)])

    assert "x" * 20_000 in told(20_000)  # the control
    with pytest.raises(BadInput) as refused:
        told(40_000)
    assert refused.value.code == "CW-GRANTS-LONG"
