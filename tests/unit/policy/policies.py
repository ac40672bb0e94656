"""How tests make a policy out of a few rules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Rule, Source

CWD, HOME = "/w", "/home/ann"


def rule(text: str, verdict: Verdict, layer: Layer = Layer.SESSION) -> Rule:
    return parse_rule(text, verdict=verdict, source=Source("p.toml", 1, 1, CWD), layer=layer)


def rules(
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    layer: Layer = Layer.SESSION,
) -> list[Rule]:
    return [
        *(rule(text, Verdict.ALLOW, layer) for text in allow),
        *(rule(text, Verdict.ASK, layer) for text in ask),
        *(rule(text, Verdict.DENY, layer) for text in deny),
    ]


def policy(allow: Sequence[str] = (), ask: Sequence[str] = (), deny: Sequence[str] = ()) -> Policy:
    return _compile(tuple(allow), tuple(ask), tuple(deny))


@cache
def _compile(allow: tuple[str, ...], ask: tuple[str, ...], deny: tuple[str, ...]) -> Policy:
    """A policy is immutable, and many tests ask for the same one; to compile one takes 60 ms."""
    return Policy(rules(allow, ask, deny))


def bash(made: Policy, command: str) -> Decision:
    call = {"tool": "Bash", "input": {"command": command}}
    return made.check(call, cwd=CWD, home=HOME)


def verdict(made: Policy, command: str) -> str:
    return bash(made, command).verdict.word
