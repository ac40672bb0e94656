"""Names of files in the text of instructions (SKL-1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.instruction_imports import MAX_DEPTH, MAX_FILES, all_imports, imports_of

pytestmark = pytest.mark.requirement("SKL-1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@a.md", ("sub/a.md",)),
        ("See @docs/a.md, (@b.md) and @../c.md.", ("sub/docs/a.md", "sub/b.md", "c.md")),
        ("- @./my\\ file.md\n* @x/../y.md", ("sub/my file.md", "sub/y.md")),
        ("mail a@b.example, `x@1.2`", ()),
        ("@/etc/passwd @~/notes.md @../../out.md @.. @", ()),
        ('`@code.md` "@quoted.md"', ("sub/quoted.md",)),
    ],
)
def test_a_name_is_relative_to_its_file_and_stays_below_the_project(text, expected):
    assert imports_of(text.encode(), "sub/CLAUDE.md") == expected


@given(st.binary(max_size=2000), st.sampled_from(["CLAUDE.md", "a/b/AGENTS.md"]))
def test_no_text_leads_out_of_the_project(text, path):
    for place in imports_of(text + b" @../../../x.md @a/../../b", path):
        assert not place.startswith(("/", "../"))
        assert place not in {".", ".."}


def test_depth_and_number_are_bounded_and_cycles_end():
    chain = {f"{n}.md": f"@{n + 1}.md @0.md".encode() for n in range(20)}
    assert all_imports(["0.md"], chain.get) == tuple(f"{n}.md" for n in range(1, MAX_DEPTH + 1))
    wide = {"top.md": b" ".join(b"@%d/a.md" % n for n in range(200))}
    wide |= {f"{n}/a.md": b" ".join(b"@b%d.md" % m for m in range(200)) for n in range(200)}
    assert len(all_imports(["top.md"], wide.get)) == MAX_FILES
    assert all_imports(["a.md"], {"a.md": b"@decorator and @new.md"}.get) == ("new.md",)
