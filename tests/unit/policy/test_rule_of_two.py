"""The rule of two: untrusted content, private data and egress do not meet unasked (POL-9)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.labels import Label, LabelSet, LabelSource
from cellwall.core.verdict import Verdict
from cellwall.policy.rule_of_two import object_to, unconsented

U = LabelSource(Label.UNTRUSTED, "content of a.example", "act_1")
P = LabelSource(Label.PRIVATE, "secret KEY", "act_2")
E = LabelSource(Label.EGRESS, "b.example", "act_3")
SOURCES = st.lists(
    st.builds(LabelSource, st.sampled_from(list(Label)), st.sampled_from("xyz")), max_size=6
)


@pytest.mark.requirement("POL-9")
@pytest.mark.parametrize("order", list(itertools.permutations([U, P, E])))
def test_two_labels_pass_and_the_third_needs_consent(order: tuple[LabelSource, ...]) -> None:
    for count in (0, 1):
        held = LabelSet(order[:count])
        assert unconsented(held, [order[count]], admitted=(), named=()) == ()
    assert unconsented(LabelSet(order[:2]), [order[2]], admitted=(), named=()) == (order[2],)


@pytest.mark.requirement("POL-9")
def test_all_three_in_one_action_need_consent() -> None:
    assert unconsented(LabelSet(), [U, P, E], admitted=(), named=()) == (U, P, E)


@pytest.mark.requirement("POL-9")
def test_consent_holds_for_the_source_and_no_other() -> None:
    held, admitted = LabelSet((U, P, E)), {E.key}
    other = LabelSource(Label.EGRESS, "c.example")
    assert unconsented(held, [E], admitted=admitted, named=()) == ()
    assert unconsented(held, [E, other], admitted=admitted, named=()) == (other,)


@pytest.mark.requirement("POL-9")
def test_a_person_who_names_all_three_has_consented_to_these_alone() -> None:
    keys = {U.key, P.key, E.key}
    assert unconsented(LabelSet(), [U, P, E], admitted=(), named=keys) == ()
    tainted = LabelSource(Label.UNTRUSTED, "message by email")
    assert tainted in unconsented(LabelSet(), [U, P, E, tainted], admitted=(), named=keys)
    assert unconsented(LabelSet((tainted,)), [U, P, E], admitted=(), named=keys) == (U, P, E)
    # Two of three, named by a person, do not excuse the third that was there before.
    assert unconsented(LabelSet((U,)), [P, E], admitted=(), named={P.key, E.key}) == (P, E)


@pytest.mark.requirement("POL-9")
def test_the_reason_names_each_label_with_its_sources_and_actions() -> None:
    decision = object_to(LabelSet((U, P)), [E], verdict=Verdict.ASK, action_id="act_3")
    assert decision.verdict is Verdict.ASK
    assert decision.rule == "rule-of-two"
    assert decision.reason == (
        "in one session, untrusted content (content of a.example by act_1), private data "
        "(secret KEY by act_2) and egress (b.example by this action) would meet"
    )


@given(SOURCES, SOURCES, SOURCES)
def test_more_labels_never_ask_less(
    held: list[LabelSource], more: list[LabelSource], brought: list[LabelSource]
) -> None:
    few = unconsented(LabelSet(tuple(held)), brought, admitted=(), named=())
    many = unconsented(LabelSet((*held, *more)), brought, admitted=(), named=())
    assert set(few) <= set(many)


def test_labels_survive_their_json_form_and_foreign_values_are_left_out() -> None:
    found = LabelSet((U, P, E))
    assert LabelSet.of_json(found.to_json()) == found
    assert (
        LabelSet.of_json({"untrusted": "x", "private": [1, {"source": 2}], "y": []}).sources == ()
    )
