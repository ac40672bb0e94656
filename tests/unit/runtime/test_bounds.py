"""Nothing unbounded or malformed passes the first step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.limits import MIB, Limits
from cellwall.core.skills import Skill
from cellwall.core.types import Action, Principal, RunCode, RunCommand, ServeClient
from cellwall.runtime.bounds import ActionBounds, check_skill_size

BOUNDS = ActionBounds(max_code_bytes=100, max_stdin_bytes=100)
FINE = Action(principal=Principal("me", "sdk"), operation=RunCommand(("ls", "-la")))


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
        ({"operation": RunCommand(())}, "CW-BAD-INPUT"),
        ({"operation": RunCommand(("",))}, "CW-BAD-INPUT"),
        ({"operation": RunCommand(("a", "b\0c"))}, "CW-NUL-BYTE"),
        ({"operation": RunCommand(("a\0",))}, "CW-NUL-BYTE"),
        ({"operation": RunCommand(("a", ""))}, None),
        ({"operation": RunCommand(("a",) * 4000)}, None),
        ({"operation": RunCommand(("a",) * 4001)}, "CW-ARGUMENTS-TOO-LONG"),
        ({"operation": RunCommand(("a", "x" * (128 * 1024 - 1)))}, None),
        ({"operation": RunCommand(("a", "x" * (128 * 1024)))}, "CW-ARGUMENTS-TOO-LONG"),
        ({"operation": RunCommand(("a", "\u00e9" * (64 * 1024)))}, "CW-ARGUMENTS-TOO-LONG"),
        ({"operation": RunCommand(("a", *["x" * 100_000] * 11))}, None),
        ({"operation": RunCommand(("a", *["x" * 100_000] * 16))}, "CW-ARGUMENTS-TOO-LONG"),
        ({"operation": RunCommand(("sh", "-c", "x" * (128 * 1024)))}, "CW-CODE-TOO-LARGE"),
        ({"operation": RunCommand(("sh", "a", "-c", "x" * (128 * 1024)))}, "CW-ARGUMENTS-TOO-LONG"),
        ({"operation": RunCommand(("a", "\udcff"))}, None),  # bytes that are no UTF-8, as Python has them
        ({"operation": RunCode("python", b"x" * 100)}, None),
        ({"operation": RunCode("python", b"x" * 101)}, "CW-CODE-TOO-LARGE"),
        ({"operation": RunCode("python", b"a\0b")}, "CW-NUL-BYTE"),
        ({"stdin": b"\0" * 100}, None),
        ({"stdin": b"x" * 101}, "CW-STDIN-TOO-LARGE"),
        ({"env": {"A": "b"}}, None),
        ({"env": {"A": "b\0"}}, "CW-BAD-ENV"),
        ({"env": {"A\0": "b"}}, "CW-BAD-ENV"),
        ({"env": {"A=B": "b"}}, "CW-BAD-ENV"),
        ({"env": {"": "b"}}, "CW-BAD-ENV"),
        ({"env": {"1A": "b"}}, "CW-BAD-ENV"),
        ({"env": {"A\n": "b"}}, "CW-BAD-ENV"),
        ({"env": {"A" * 257: "b"}}, "CW-BAD-ENV"),
        ({"env": {"A": "x" * (128 * 1024)}}, "CW-BAD-ENV"),
        ({"env": {f"V{n}": "" for n in range(513)}}, "CW-BAD-ENV"),
        ({"allow_domains": ("a.example",) * 10_001}, "CW-BAD-DOMAIN"),
        ({"allow_domains": ("*.com",)}, "CW-BAD-DOMAIN"),
        ({"secrets": ("no name",)}, "CW-VAULT-NAME"),
        ({"secrets": ("TOKEN",) * 65}, "CW-VAULT-NAME"),
        ({"skills": ("a-b.1",) * 32}, None),
        ({"skills": ("a",) * 33}, "CW-SKILL-TOO-MANY"),
        ({"skills": ("../x",)}, "CW-SKILL-NAME"),
        ({"session_id": "../x"}, "CW-BAD-ID"),
        ({"session_id": ""}, "CW-BAD-ID"),
        ({"id": "act_\0"}, "CW-BAD-ID"),
        ({"id": "x" * 100_000}, "CW-BAD-ID"),
    ],
)  # fmt: skip
def test_each_bound_has_its_code(changes: dict[str, object], code: str | None) -> None:
    assert code_of(replace(FINE, **changes)) == code


@pytest.mark.parametrize(
    "changes",
    [{"operation": RunCommand(("a", "\ud800"))}, {"env": {"A": "\ud800"}}, {"operation": RunCommand(("\udfff",))}],
    ids=["argument", "variable", "program"],
)  # fmt: skip
def test_text_that_no_encoding_can_carry_is_bad_input_and_not_a_bare_exception(
    changes: dict[str, object],
) -> None:
    code = code_of(replace(FINE, **changes))
    assert code is not None
    assert code.startswith("CW-")


def test_skills_leave_half_of_the_memory_to_the_program():
    skill = Skill("a", {"b": b"x" * 4 * MIB}, frozenset(), "", ())
    check_skill_size([skill], Limits(memory_bytes=9 * MIB))
    with pytest.raises(BadInput) as raised:
        check_skill_size([skill], Limits(memory_bytes=8 * MIB))
    assert raised.value.code == "CW-SKILL-TOO-LARGE"


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    ("client", "code"),
    [
        *((name, None) for name in ("a", "agent-2", "0", "a" * 32)),
        *(
            (name, "CW-BAD-CLIENT")
            for name in ("", "a/b", "..", "A", "a:b", "a@b", "-a", "a-", "a\n")
        ),
        ("a" * 33, "CW-BAD-CLIENT"),
    ],
)
def test_name_of_a_client_is_safe_in_urls_paths_and_logs(client: str, code: str | None) -> None:
    async def hold(*_: object) -> None:
        """Never called."""

    operation = ServeClient(client, b"", hold)
    action = Action(principal=Principal("me", "cli"), operation=operation)
    assert code_of(action) == code
