"""Rules for the ports of servers inside a sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import BadRule, Layer, Rule, Source

pytestmark = pytest.mark.requirement("POL-1", "INT-2")


def rule(text: str, verdict: Verdict, layer: Layer = Layer.SESSION) -> Rule:
    return parse_rule(text, verdict=verdict, source=Source("p.toml", 1), layer=layer)


def verdict(port: int, *rules: Rule) -> str:
    return Policy.of(rules).check(f"Port({port})").verdict.word


def test_port_that_no_rule_names_is_open():
    assert verdict(8000) == "allow"
    others = rule("Bash(ls)", Verdict.ALLOW), rule("Port(22)", Verdict.DENY)
    assert verdict(8000, *others) == "allow"


def test_named_ports_are_denied_or_asked_about_and_deny_takes_precedence():
    rules = (
        rule("Port(8000-8999)", Verdict.ASK),
        rule("Port(8080)", Verdict.DENY),
        rule("Port", Verdict.ALLOW),
    )
    assert [verdict(port, *rules) for port in (7999, 8000, 8080, 8999, 9000)] == [
        *("allow", "ask", "deny", "ask", "allow")
    ]
    assert Policy.of(rules).check("Port(8080)").rule == "Port(8080)"
    assert verdict(1, rule("Port(*)", Verdict.DENY)) == "deny"


def test_layer_that_allows_some_ports_denies_the_others_and_closes_nothing_else():
    allowed = rule("Port(8000)", Verdict.ALLOW, Layer.ADMINISTRATOR)
    assert (verdict(8000, allowed), verdict(8001, allowed)) == ("allow", "deny")
    wider = rule("Port", Verdict.ALLOW, Layer.SESSION)
    assert (verdict(8000, allowed, wider), verdict(8001, allowed, wider)) == ("allow", "deny")
    policy = Policy.of([allowed, rule("Bash(ls)", Verdict.ALLOW)])
    assert policy.check("Bash(ls)").verdict is Verdict.ALLOW


@pytest.mark.parametrize(
    "text", ["0", "65536", "9-8", "80,81", "http", "8000-", "-1", "٨٠", "1" * 99]
)
def test_rule_that_names_no_port_is_refused(text: str):
    with pytest.raises(BadRule) as refused:
        rule(f"Port({text})", Verdict.DENY)
    assert "Port(8000-8999)" in refused.value.hint


def test_call_that_names_no_single_port_is_denied():
    policy = Policy.of([rule("Port", Verdict.ALLOW)])
    for call in ("Port(1-5)", "Port(x)", {"tool": "Port", "input": {}}):
        assert policy.check(call).rule == "bad-call", call


def test_examples_of_a_rule_are_tried():
    good = rule("Port(8000-8999)", Verdict.DENY)
    Policy.of([replace(good, match=("8500", "Port(8000)"), not_match=("9000",))])
    with pytest.raises(ConfigError, match="does not match"):
        Policy.of([replace(good, match=("9000",))])
