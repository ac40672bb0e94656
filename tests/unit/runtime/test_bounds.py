"""Nothing unbounded or malformed passes the first step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.errors import BadInput
from holdfast.core.limits import MIB, Limits
from holdfast.core.skills import Skill
from holdfast.core.types import Action, Principal, RunCode, RunCommand
from holdfast.runtime.bounds import Bounds, check_room

BOUNDS = Bounds(max_code_bytes=100, max_stdin_bytes=100)
FINE = Action(principal=Principal("me", "sdk"), want=RunCommand(("ls", "-la")))


def code_of(action: Action) -> str | None:
    try:
        BOUNDS.check(action)
    except BadInput as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"want": RunCommand(())}, "HF-BAD-INPUT"),
        ({"want": RunCommand(("",))}, "HF-BAD-INPUT"),
        ({"want": RunCommand(("a", "b\0c"))}, "HF-NUL-BYTE"),
        ({"want": RunCommand(("a\0",))}, "HF-NUL-BYTE"),
        ({"want": RunCommand(("a", ""))}, None),
        ({"want": RunCommand(("a",) * 4000)}, None),
        ({"want": RunCommand(("a",) * 4001)}, "HF-ARGUMENTS-TOO-LONG"),
        ({"want": RunCommand(("a", "x" * (128 * 1024 - 1)))}, None),
        ({"want": RunCommand(("a", "x" * (128 * 1024)))}, "HF-ARGUMENTS-TOO-LONG"),
        ({"want": RunCommand(("a", "\u00e9" * (64 * 1024)))}, "HF-ARGUMENTS-TOO-LONG"),
        ({"want": RunCommand(("a", *["x" * 100_000] * 11))}, "HF-ARGUMENTS-TOO-LONG"),
        ({"want": RunCommand(("a", "\udcff"))}, None),  # bytes that are no UTF-8, as Python has them
        ({"want": RunCode("python", b"x" * 100)}, None),
        ({"want": RunCode("python", b"x" * 101)}, "HF-CODE-TOO-LARGE"),
        ({"want": RunCode("python", b"a\0b")}, "HF-NUL-BYTE"),
        ({"stdin": b"\0" * 100}, None),
        ({"stdin": b"x" * 101}, "HF-STDIN-TOO-LARGE"),
        ({"env": {"A": "b"}}, None),
        ({"env": {"A": "b\0"}}, "HF-BAD-ENV"),
        ({"env": {"A\0": "b"}}, "HF-BAD-ENV"),
        ({"env": {"A=B": "b"}}, "HF-BAD-ENV"),
        ({"env": {"": "b"}}, "HF-BAD-ENV"),
        ({"env": {"1A": "b"}}, "HF-BAD-ENV"),
        ({"env": {"A\n": "b"}}, "HF-BAD-ENV"),
        ({"env": {"A" * 257: "b"}}, "HF-BAD-ENV"),
        ({"env": {"A": "x" * (128 * 1024)}}, "HF-BAD-ENV"),
        ({"env": {f"V{n}": "" for n in range(513)}}, "HF-BAD-ENV"),
        ({"allow_domains": ("a.example",) * 10_001}, "HF-BAD-DOMAIN"),
        ({"allow_domains": ("*.com",)}, "HF-BAD-DOMAIN"),
        ({"secrets": ("no name",)}, "HF-VAULT-NAME"),
        ({"secrets": ("TOKEN",) * 65}, "HF-VAULT-NAME"),
        ({"skills": ("a-b.1",) * 32}, None),
        ({"skills": ("a",) * 33}, "HF-SKILL-TOO-MANY"),
        ({"skills": ("../x",)}, "HF-SKILL-NAME"),
        ({"session_id": "../x"}, "HF-BAD-ID"),
        ({"session_id": ""}, "HF-BAD-ID"),
        ({"id": "act_\0"}, "HF-BAD-ID"),
        ({"id": "x" * 100_000}, "HF-BAD-ID"),
    ],
)  # fmt: skip
def test_each_bound_has_its_code(changes: dict[str, object], code: str | None) -> None:
    assert code_of(replace(FINE, **changes)) == code


@pytest.mark.parametrize(
    "changes",
    [{"want": RunCommand(("a", "\ud800"))}, {"env": {"A": "\ud800"}}, {"want": RunCommand(("\udfff",))}],
    ids=["argument", "variable", "program"],
)  # fmt: skip
def test_text_that_no_encoding_can_carry_is_bad_input_and_not_a_bare_exception(
    changes: dict[str, object],
) -> None:
    code = code_of(replace(FINE, **changes))
    assert code is not None
    assert code.startswith("HF-")


def test_skills_leave_half_of_the_memory_to_the_program():
    skill = Skill("a", {"b": b"x" * 4 * MIB}, frozenset(), "", ())
    check_room([skill], Limits(memory_bytes=9 * MIB))
    with pytest.raises(BadInput) as raised:
        check_room([skill], Limits(memory_bytes=8 * MIB))
    assert raised.value.code == "HF-SKILL-TOO-LARGE"
