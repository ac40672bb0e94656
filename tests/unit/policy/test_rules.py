"""Layers come together strictest-wins: one that is added can only tighten (POL-7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rules import (
    OTHERWISE,
    Layer,
    LayerRules,
    Rule,
    RulesByLayer,
    Source,
    decision_of,
    judge,
    restrict,
)
from unit.policy.policies import rule as made_rule
from unit.policy.policies import rules as made_rules
from unit.policy.policies import verdict as shell_verdict

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


def said_by(layer: LayerRules, matches) -> Decision | None:
    """The decision of one layer by itself; None where the layer says nothing."""
    decision = judge([layer], matches)
    is_silent = (decision.rule, decision.source) == ("default", "built-in")
    return None if is_silent else decision


def rule(verdict: Verdict, tool: str, layer: Layer = Layer.USER, reason: str = "") -> Rule:
    return Rule(verdict, tool, None, Source(f"{layer.word}.toml", 7), layer, reason)


def verdict_of(rules: Sequence[Rule], tool: str) -> Verdict:
    return judge(RulesByLayer.of(rules).layers, lambda each: each.tool == tool).verdict


@pytest.mark.requirement("POL-1")
def test_deny_comes_before_ask_before_allow_whatever_their_order() -> None:
    rules = [rule(ALLOW, "X"), rule(ASK, "X"), rule(DENY, "X")]
    assert [verdict_of(rules[:end], "X") for end in (1, 2, 3)] == [ALLOW, ASK, DENY]
    assert verdict_of(rules[::-1], "X") is DENY


@pytest.mark.requirement("POL-1")
def test_no_match_is_a_denial() -> None:
    assert judge((), lambda each: True) == Decision(
        DENY, "default", "no rule allows this", "built-in"
    )
    assert verdict_of([rule(ALLOW, "X")], "Y") is DENY
    assert verdict_of([rule(DENY, "X")], "Y") is DENY


@pytest.mark.requirement("POL-7")
def test_a_lower_layer_cannot_allow_what_a_higher_one_does_not() -> None:
    rules = [rule(ALLOW, "X", Layer.ADMINISTRATOR), rule(ALLOW, "Y", Layer.PROJECT)]
    assert verdict_of(rules, "Y") is DENY
    assert verdict_of(rules, "X") is DENY
    both = [*rules, rule(ALLOW, "X", Layer.PROJECT)]
    assert verdict_of(both, "X") is ALLOW


@pytest.mark.requirement("POL-7")
def test_a_layer_that_only_denies_leaves_the_rest_as_it_was() -> None:
    rules = [rule(ALLOW, "X"), rule(ALLOW, "Y"), rule(DENY, "Y", Layer.PROJECT)]
    assert (verdict_of(rules, "X"), verdict_of(rules, "Y")) == (ALLOW, DENY)


def test_a_layer_can_ask_about_what_another_allows_but_not_about_what_it_denies() -> None:
    rules = [rule(ALLOW, "X"), rule(ASK, "X", Layer.PROJECT), rule(ASK, "Y", Layer.PROJECT)]
    assert (verdict_of(rules, "X"), verdict_of(rules, "Y")) == (ASK, DENY)


@pytest.mark.requirement("POL-5")
def test_a_decision_names_rule_reason_and_place() -> None:
    assert decision_of(rule(DENY, "X", reason="because"), "it") == Decision(
        DENY, "X", "because", "user.toml:7", "it"
    )
    assert decision_of(rule(ASK, "X")).reason == "the user rules ask a person about this"
    closed = judge(RulesByLayer.of([rule(ALLOW, "X", Layer.PROJECT)]).layers, lambda each: False)
    assert closed.reason.startswith("the project rules allow other calls, and not this one")


def test_of_two_denials_the_highest_layer_is_told() -> None:
    rules = [rule(DENY, "X", Layer.PROJECT), rule(DENY, "X", Layer.BUILT_IN, "built in")]
    assert judge(RulesByLayer.of(rules).layers, lambda each: True).reason == "built in"


@pytest.mark.requirement("POL-4")
def test_every_denial_is_looked_at_before_any_allow() -> None:
    asked: list[Verdict] = []

    def note(each: Rule) -> bool:
        asked.append(each.verdict)
        return False

    rules = [rule(ALLOW, "X", Layer.ADMINISTRATOR), rule(ASK, "X"), rule(DENY, "X", Layer.SESSION)]
    judge(RulesByLayer.of(rules).layers, note)
    assert asked[0] is DENY


def test_what_needs_no_allow_can_still_be_forbidden() -> None:
    layers = RulesByLayer.of(
        [rule(ALLOW, "X"), rule(ASK, "Y"), rule(DENY, "Z", Layer.PROJECT)]
    ).layers
    found = [restrict(layers, lambda each, tool=tool: each.tool == tool) for tool in "XYZW"]
    assert [each.verdict if each else None for each in found] == [None, ASK, DENY, None]
    strict = restrict(layers, lambda each: True)
    assert strict is not None
    assert strict.verdict is DENY


def test_a_group_keeps_the_layers_as_closed_as_they_are() -> None:
    layered = RulesByLayer.of([rule(ALLOW, "Bash"), rule(DENY, "Read", Layer.PROJECT)])
    assert [(each.layer, each.is_closed) for each in layered.for_group("read")] == [
        (Layer.USER, True),
        (Layer.PROJECT, False),
    ]
    assert layered.for_group("code") == (
        LayerRules(Layer.USER, is_closed=True, file="user.toml"),
        LayerRules(Layer.PROJECT),
    )
    assert judge(layered.for_group("code"), lambda each: True).verdict is DENY


@pytest.mark.requirement("POL-1", "POL-7")
def test_otherwise_asks_about_what_no_rule_of_its_layer_matches_and_loosens_no_other_layer() -> (
    None
):
    rest = rule(ASK, OTHERWISE, Layer.PROJECT)
    own = [rule(ALLOW, "X", Layer.PROJECT), rule(DENY, "Y", Layer.PROJECT), rest]
    assert [verdict_of(own, name) for name in ("X", "Y", "Z")] == [ALLOW, DENY, ASK]
    users = [rule(ALLOW, "X", Layer.USER), rule(ALLOW, "V", Layer.USER)]
    assert [verdict_of([*own, *users], name) for name in ("X", "V", "Z")] == [ALLOW, ASK, DENY]
    assert verdict_of([rule(ALLOW, "X", Layer.PROJECT)], "Z") is DENY  # without it


TOOLS = ["Bash", "Read", "Write", "Task"]
ONE = st.builds(rule, st.sampled_from(list(Verdict)), st.sampled_from(TOOLS))
LAYERED = st.builds(
    rule, st.sampled_from(list(Verdict)), st.sampled_from(TOOLS), st.sampled_from(list(Layer))
)


def placed(rules: list[Rule], layer: Layer) -> list[Rule]:
    return [rule(each.verdict, each.tool, layer) for each in rules]


@pytest.mark.requirement("POL-7")
@given(st.lists(LAYERED, max_size=12), st.lists(ONE, max_size=5), st.sampled_from(TOOLS))
def test_a_layer_that_is_added_only_tightens(base: list[Rule], new: list[Rule], tool: str) -> None:
    above = [each for each in base if each.layer < Layer.SESSION]
    layers = RulesByLayer.of(above).layers
    if all(said_by(each, lambda r: r.tool == tool) is None for each in layers):
        return  # nobody speaks of it yet: it is denied because nobody allows it
    added = [*above, *placed(new, Layer.SESSION)]
    assert verdict_of(added, tool) >= verdict_of(above, tool)


@pytest.mark.requirement("POL-7")
@given(st.lists(LAYERED, max_size=12), st.sampled_from(TOOLS))
def test_the_whole_is_never_looser_than_any_layer(rules: list[Rule], tool: str) -> None:
    whole = verdict_of(rules, tool)
    said = [said_by(each, lambda r: r.tool == tool) for each in RulesByLayer.of(rules).layers]
    spoken = [each.verdict for each in said if each is not None]
    assert whole == max(spoken, default=DENY)


@pytest.mark.requirement("POL-7")
@given(st.lists(LAYERED, max_size=12), LAYERED, st.sampled_from(TOOLS))
def test_a_denial_that_is_added_only_tightens(rules: list[Rule], new: Rule, tool: str) -> None:
    added = [*rules, rule(DENY, new.tool, new.layer)]
    assert verdict_of(added, tool) >= verdict_of(rules, tool)


@given(st.lists(LAYERED, max_size=12), st.sampled_from(TOOLS))
def test_no_group_is_judged_differently_alone(rules: list[Rule], tool: str) -> None:
    groups = {"Bash": "bash", "Read": "read", "Write": "write", "Task": "other"}
    alone = judge(RulesByLayer.of(rules).for_group(groups[tool]), lambda r: r.tool == tool)  # type: ignore[arg-type]
    assert alone.verdict is verdict_of(rules, tool)


@pytest.mark.requirement("POL-8")
def test_an_answer_lifts_one_question_and_nothing_else():
    asking = made_rules(["Bash(git *)", "Bash(ls *)"], ask=["Bash(git push *)"])
    said = replace(
        made_rule("Bash(git push origin main)", Verdict.ALLOW, Layer.USER),
        answers="Bash(git push *)",
    )
    other = replace(said, answers="Bash(npm *)")
    answered, unanswered = Policy([*asking, said]), Policy([*asking, other])
    assert shell_verdict(answered, "git push origin main") == "allow"
    assert shell_verdict(answered, "git push origin dev") == "ask"
    assert shell_verdict(answered, "ls") == "allow", "the layer of an answer stays open"
    assert shell_verdict(answered, "curl x") == "deny"
    assert shell_verdict(unanswered, "git push origin main") == "ask"
    administrator = made_rules(ask=["Bash(git push *)"], layer=Layer.ADMINISTRATOR)
    assert shell_verdict(Policy([*asking, *administrator, said]), "git push origin main") == "ask"
    assert shell_verdict(Policy([said]), "git push origin main") == "deny", (
        "it allows nothing by itself"
    )
