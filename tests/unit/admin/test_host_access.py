"""A rule for a host is proposed only where it would change the verdict (NET-2, POL-7)."""

from __future__ import annotations

import pytest

from cellwall.admin.host_access import host_access
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Rule, Source
from cellwall.runtime.policies import PolicyPlace

PLACE = PolicyPlace("/etc/rules/policy.toml", Layer.SESSION)
HOST = "api.example.com"
RULE = f"WebFetch(domain:{HOST})"


def rule(text: str, verdict: Verdict, layer: Layer, line: int) -> Rule:
    return parse_rule(text, verdict=verdict, source=Source("policy.toml", line), layer=layer)


OPEN = rule("Bash", Verdict.ALLOW, Layer.SESSION, 1)


@pytest.mark.requirement("NET-2")
def test_the_narrowest_rule_is_proposed_for_a_host_that_no_rule_allows() -> None:
    found = host_access(HOST, policy=Policy.of([OPEN]), place=PLACE)
    assert found.decision.verdict is Verdict.DENY
    assert found.proposal is not None
    assert (found.proposal.text, found.proposal.file, found.obstacle) == (RULE, "policy.toml", "")
    allowed = Policy.of([OPEN, rule(RULE, Verdict.ALLOW, Layer.SESSION, 2)])
    after = host_access(HOST, policy=allowed, place=PLACE)
    assert after.is_allowed
    assert after.proposal is None
    assert after.shown_sha256 != found.shown_sha256


@pytest.mark.requirement("NET-2", "POL-7")
@pytest.mark.parametrize(
    "stricter",
    [
        rule("WebFetch", Verdict.DENY, Layer.ADMINISTRATOR, 7),
        rule(RULE, Verdict.DENY, Layer.SESSION, 7),
        rule("Bash", Verdict.ALLOW, Layer.ADMINISTRATOR, 7),  # allows that, and nothing else
    ],
    ids=["administrator", "same file", "closed layer"],
)
def test_no_rule_is_proposed_against_a_stricter_one(stricter: Rule) -> None:
    found = host_access(HOST, policy=Policy.of([OPEN, stricter]), place=PLACE)
    assert found.proposal is None
    assert "stricter" in found.obstacle


@pytest.mark.requirement("NET-2", "POL-8")
def test_a_rule_answers_the_rule_that_asks() -> None:
    asking = rule("WebFetch", Verdict.ASK, Layer.SESSION, 3)
    found = host_access(HOST, policy=Policy.of([OPEN, asking]), place=PLACE)
    assert found.proposal is not None
    assert found.proposal.answers == "WebFetch"


@pytest.mark.requirement("NET-2")
@pytest.mark.parametrize("host", ["10.0.0.1", "localhost", "[::1]", "169.254.169.254", "a b", ""])
def test_addresses_and_texts_that_are_no_names_get_no_rule(host: str) -> None:
    found = host_access(host, policy=Policy.of([OPEN]), place=PLACE)
    assert found.proposal is None
    assert found.obstacle


@pytest.mark.requirement("NET-2")
def test_the_shipped_policy_gets_no_rule() -> None:
    assert host_access(HOST, policy=Policy.of([OPEN]), place=None).proposal is None
