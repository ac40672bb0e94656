"""A plan is words ended by NUL, and no value can begin a step of its own.

The Landlock ruleset: at every ABI only the named places can be written (ISO-1).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.sandbox.linux import plan
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


WRITING = (
    plan.WRITE_FILE | plan.REMOVE_DIR | plan.REMOVE_FILE | plan.MAKE_DIR | plan.MAKE_REG
    | plan.MAKE_SOCK | plan.MAKE_FIFO | plan.MAKE_SYM | plan.REFER | plan.TRUNCATE
)  # fmt: skip
NODES = plan.MAKE_CHAR | plan.MAKE_BLOCK


@pytest.mark.requirement("ISO-1")
@pytest.mark.parametrize("abi", range(1, 9))
def test_only_named_places_can_be_written_and_nobody_makes_devices(abi: int) -> None:
    rules = plan.landlock_ruleset(abi, writable=("/w",), devices=("/dev/null",))
    access = dict(rules.rules)
    assert access.keys() == {"/", "/w", "/dev/null"}
    assert access["/"] & (WRITING | NODES) == 0
    assert access["/w"] & WRITING == WRITING & rules.handled
    assert {place: granted & NODES for place, granted in access.items()} == dict.fromkeys(access, 0)
    assert access["/w"] & plan.IOCTL_DEV == 0
    assert all(
        granted & ~rules.handled == 0 for granted in access.values()
    )  # else the kernel refuses all


@pytest.mark.parametrize(
    ("abi", "newest"),
    [(1, plan.MAKE_SYM), (2, plan.REFER), (3, plan.TRUNCATE), (5, plan.IOCTL_DEV)],
)
def test_each_abi_handles_what_it_brought_and_nothing_newer(abi: int, newest: int) -> None:
    assert plan.landlock_rights(abi).bit_length() == newest.bit_length()
    assert plan.landlock_rights(abi) == (newest << 1) - 1


@pytest.mark.parametrize("abi", range(1, 9))
def test_scopes_are_asked_for_only_where_the_kernel_has_them(abi: int) -> None:
    both = plan.SCOPE_ABSTRACT_UNIX_SOCKET | plan.SCOPE_SIGNAL
    assert plan.landlock_ruleset(abi, writable=(), devices=()).scoped == (both if abi >= 6 else 0)
