"""A plan is words ended by NUL, and no value can begin a step of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.sandbox.linux.plan import Plan


def test_words_are_ended_by_nul() -> None:
    plan = Plan()
    plan.step("user", 1, 2)
    plan.step("exec", "a b", "")
    assert plan.encode() == b"user\x001\x002\0exec\0a b\0\0"


@pytest.mark.parametrize("place", range(3))
def test_a_nul_anywhere_is_refused(place: int) -> None:
    words = ["arg", "a", "b"]
    words[place] += "\0drop"
    with pytest.raises(BadInput) as refused:
        Plan().step(*words)
    assert refused.value.code == "CW-NUL-BYTE"


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        min_size=1,
        max_size=9,
    )
)
def test_what_goes_in_comes_out_word_for_word(words: list[str]) -> None:
    plan = Plan()
    plan.step(*words)
    assert plan.encode().decode().split("\0") == [*words, ""]


def test_bytes_that_are_no_text_keep_their_value() -> None:
    plan = Plan()
    plan.step("arg", "\udcff\udc80")
    assert plan.encode() == b"arg\0\xff\x80\0"


def test_a_blob_may_hold_nul_since_its_length_was_told() -> None:
    plan = Plan()
    plan.step("seccomp", 1, 3)
    plan.blob(b"\0\0\0")
    plan.step("cwd", "/")
    assert plan.encode() == b"seccomp\x001\x003\0\0\0\0\0cwd\0/\0"
