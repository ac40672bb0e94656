"""Rules for the ports of servers inside a sandbox: `Port(8000)`, `Port(8000-8999)`, `Port`.

The caller of a sandbox connects to a server that was allowed to run, so a port that no rule names
is open (ADR 45). A layer that allows some ports denies the others; rules for other tools say
nothing about ports. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.calls import group_of
from cellwall.policy.rules import BadRule, LayerRules, Rule, RulesByLayer, judge_by_layers

_MAX_PORT = 65_535
_PORTS = re.compile(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?", re.ASCII)
_HINT = f"Write for example Port(8000) or Port(8000-8999); ports are 1 to {_MAX_PORT}."


@lru_cache(maxsize=1024)
def parse_ports(text: str) -> range:
    """The ports of a specifier: one number, or the first and the last."""
    found = _PORTS.fullmatch(text)
    if found is None:
        raise BadRule("this names no port", hint=_HINT)
    first, last = int(found[1]), int(found[2] or found[1])
    if not first <= last <= _MAX_PORT:
        raise BadRule("this names no range of ports", hint=_HINT)
    return range(first, last + 1)


@dataclass(frozen=True, slots=True)
class PortRules:
    """The rules for ports of a policy."""

    layers: tuple[LayerRules, ...]

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> PortRules:
        about_ports = [rule for rule in rules if group_of(rule.tool) == "port"]
        layers = RulesByLayer.of(about_ports).for_group("port")
        return cls(tuple(replace(each, is_closed=bool(each.allow)) for each in layers))


def judge_port(rules: PortRules, port: str) -> Decision:
    """The decision on a call `Port(8000)`. Raises `BadRule` for a text that is not one port."""
    asked = parse_ports(port)
    if len(asked) != 1:
        raise BadRule("a call names one port", hint=_HINT)

    def matches(rule: Rule) -> bool:
        return rule.specifier is None or asked[0] in parse_ports(rule.specifier)

    subject = f"Port({port})"
    found = judge_by_layers(rules.layers, matches, subject=subject)
    reason = "no rule names this port, and its server was allowed to run"
    return found or Decision(Verdict.ALLOW, "session", reason, "built-in", subject)
